"""How the matrices of a network lie in memory: as floats, in bfloat16, or in 4 to 8 bits."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.models import groups, panels
from specjax.models.bfloat16 import Bfloat16, rounded
from specjax.models.groups import GROUP, Groups
from specjax.models.int8 import Int8, quantise
from specjax.models.panels import Panels

Matrix = Array | Bfloat16 | Int8 | Groups | Panels
"""A weight [..., out, in], as `linear` and `lookup` take it."""

WEIGHTS = ("float", "bfloat16", "int8", "int4", "native")
ACTIVATIONS = ("float", "int8")


def parameter(
  x: np.ndarray | Array, dtype: DTypeLike, weights: str, looked_up: bool = False
) -> Matrix:
  """A tensor of a checkpoint as it lies in memory: a matrix by `weights`, one of WEIGHTS.

  An embedding is `looked_up`. Stacks of experts go by 8 bits alone: XLA on CPU has no slices of
  bfloat16, and would widen the whole stack in every call. With "native" only what is a float on
  disk comes here, see `checkpoints.gguf`. On a CPU the parameter may be `x` itself, which no one
  may write into from here on: a copy would be a large matrix's second.

  Raises:
    ValueError: "int4" for a stack, or for rows that do not lie in groups of 32.
  """
  dtype = jnp.dtype(dtype)
  if weights == "int8" and x.ndim >= 2:
    return quantise(x, dtype)
  if weights == "int4" and x.ndim >= 2:
    if x.ndim > 2 or x.shape[1] % GROUP:
      accepted = f"one for a matrix {x.shape}: int4 takes rows of a multiple of {GROUP} numbers"
      checks.refuse("weights", weights, f"{accepted}, and no experts")
    return groups.quantise(x, dtype)
  if weights == "bfloat16" and x.ndim == 2 and dtype != jnp.bfloat16:
    return rounded(x, dtype, looked_up)
  return jax.device_put(x.astype(dtype, copy=False), may_alias=True)


def dense(w: Matrix) -> Array:
  """The values of a weight."""
  if isinstance(w, Bfloat16):
    return w.rows.astype(w.dtype)
  if isinstance(w, Panels):
    w = panels.unpacked(w)
  if isinstance(w, Groups):
    return groups.dense(w)
  if not isinstance(w, Int8):
    return w
  scale = w.scale.astype(jnp.float32)[..., None]
  return (w.rows.astype(jnp.float32) * scale).astype(w.dtype)


def count_parameters(params: Any) -> int:
  """Numbers of a tree of weights, each once: neither scales nor a second form of rows count."""
  return sum(math.prod(w.shape) for w in jax.tree.leaves(params, is_leaf=has_own_form))


def as_floats(params: Params) -> Params:
  """A tree of weights with their values, whatever form they have in memory."""
  return jax.tree.map(dense, params, is_leaf=has_own_form)


def has_own_form(w: Any) -> bool:
  """Whether a weight is a `Matrix` that is no array."""
  return isinstance(w, Bfloat16 | Int8 | Groups | Panels)
