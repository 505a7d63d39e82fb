"""Tensors on disk in 8 bits: NAME holds whole numbers, and NAME.scale the step of each row.

The step is 1/127 of the row's largest magnitude, so that a value is off by at most half a step. It
is a float of 16 bits, or of 32 where those cannot hold it.
"""

import pathlib

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import checks
from specjax.checkpoints.files import Tensors
from specjax.models.int8 import Int8, quantise
from specjax.models.weights import dense

SCALE = ".scale"
_LEAST = 2**14  # values of a tensor that is worth it; biases have fewer
_HALF = np.finfo(np.float16)


def cast(tensors: Tensors, dtype: DTypeLike) -> Tensors:
  """The tensors with floats in a dtype, by `narrow` if that is int8; `files.write` refuses what is
  not finite in it."""
  if jnp.dtype(dtype) == jnp.int8:
    return narrow(tensors)
  with np.errstate(over="ignore"):
    return {k: x if x.dtype.kind == "i" else x.astype(jnp.dtype(dtype)) for k, x in tensors.items()}


def narrow(tensors: Tensors) -> Tensors:
  """The tensors with large ones, such as matrices [..., out, in], in 8 bits; others in float16."""
  found: Tensors = {}
  for name, x in tensors.items():
    if x.dtype.kind != "i" and x.ndim > 1 and x.size >= _LEAST and np.isfinite(x).all():
      step = np.abs(x).max(-1) / 127
      fits = (step == 0) | ((step >= _HALF.tiny) & (step < _HALF.max))
      small = quantise(jnp.asarray(x), jnp.dtype(np.float16 if fits.all() else np.float32))
      found |= {name: np.asarray(small.rows), name + SCALE: np.asarray(small.scale)}
    else:
      found |= cast({name: x}, jnp.float16)
  return found


def widen(tensors: Tensors, path: pathlib.Path) -> Tensors:
  """The tensors of a file in float32 where they are in 8 bits.

  It raises ValueError, which names the file, for a scale that is no float of each row of a tensor.
  """
  found = dict(tensors)
  for name in tensors:
    if name.endswith(SCALE):
      scale, rows = found.pop(name), tensors.get(name.removesuffix(SCALE))
      if rows is None or rows.dtype != np.int8 or scale.shape != rows.shape[:-1]:
        checks.refuse(
          f"{path}: shape of tensor {name}",
          scale.shape,
          "that of a tensor of int8 beside it, without its last axis",
        )
      found[name.removesuffix(SCALE)] = values(rows, scale)
  return found


def values(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
  """The values f32[..., out, in] of rows i8[..., out, in] whose steps are scale [..., out]."""
  return np.asarray(dense(Int8(jnp.asarray(rows), jnp.asarray(scale, jnp.float32))))
