"""Weights in 8 bits: whole numbers with a scale for each output.

`linear` and `lookup` take an `Int8` wherever they take an array, so networks do not mention it. The
model has a distribution of its own, near that of the floats; plain decoding and every drafter
follow it alike.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from specjax.kernels.platform import platform

WEIGHTS = ("float", "int8")
_FINE = 254.0  # fine steps in a coarse one


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8:
  """A matrix [..., out, in], or a stack of them.

  Attributes:
    rows: i8[..., out, in], first among the leaves: Flax compares its shape with the parameter's.
    scale: [..., out], what a step of a row is worth, in the dtype of the arithmetic.
  """

  rows: Array
  scale: Array

  @property
  def shape(self) -> tuple[int, ...]:
    return self.rows.shape

  @property
  def dtype(self) -> np.dtype:
    """That of the values."""
    return self.scale.dtype

  def __getitem__(self, key) -> "Int8":
    """Some of the outputs, or one of the stack."""
    return Int8(self.rows[key], self.scale[key])


@functools.partial(jax.jit, static_argnames="dtype")
def quantise(x: Array, dtype: DTypeLike) -> Int8:
  """x [..., out, in] to the nearest step: a row's largest magnitude is 127 steps.

  The error is at most half a step, and half the smallest number of `dtype` more.
  """
  x = x.astype(jnp.float32)
  scale = (jnp.abs(x).max(-1) / 127).astype(dtype)
  scale = jnp.where(scale == 0, jnp.ones_like(scale), scale)
  steps = jnp.round(x / scale.astype(jnp.float32)[..., None])
  return Int8(jnp.clip(steps, -127, 127).astype(jnp.int8), scale)


def parameter(x: np.ndarray | Array, dtype: DTypeLike, weights: str) -> Array | Int8:
  """A tensor of a checkpoint as it lies in memory: matrices by `weights`, one of WEIGHTS."""
  if weights == "int8" and x.ndim >= 2:
    return quantise(x, jnp.dtype(dtype))
  return jnp.asarray(x.astype(jnp.dtype(dtype), copy=False))


def dense(w: Array | Int8) -> Array:
  """The values of a weight."""
  if not isinstance(w, Int8):
    return w
  scale = w.scale.astype(jnp.float32)[..., None]
  return (w.rows.astype(jnp.float32) * scale).astype(w.dtype)


def product(x: Array, w: Int8) -> Array:
  """x [..., in] times w [out, in] -> [..., out].

  TPUs and GPUs widen the weights on their way into a float product. XLA for CPUs would first write
  the wide matrix to memory. It has fast products of whole numbers, however, so each row of x
  becomes two: steps of 1/127 of its largest magnitude, and what these leave in steps 254 times
  finer. Their sums are exact; a row's product does not depend on the rows beside it.
  """
  scale = w.scale.astype(jnp.float32)
  if platform() != "cpu":
    contract = (((x.ndim - 1,), (1,)), ((), ()))
    wide = w.rows.astype(x.dtype)
    y = lax.dot_general(x, wide, contract, preferred_element_type=jnp.float32)
    return (y * jnp.broadcast_to(scale, y.shape)).astype(x.dtype)
  flat = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
  step = jnp.abs(flat).max(-1, keepdims=True) / 127
  step = jnp.maximum(step, jnp.finfo(jnp.float32).tiny)
  steps = flat / step
  coarse = jnp.round(steps)
  both = jnp.concatenate([coarse, jnp.round((steps - coarse) * _FINE)]).astype(jnp.int8)
  contract = (((1,), (1,)), ((), ()))
  sums = lax.dot_general(both, w.rows, contract, preferred_element_type=jnp.int32)
  y, rest = jnp.split(lax.optimization_barrier(sums).astype(jnp.float32), 2)
  y = (y + rest / _FINE) * step * scale[None]
  return y.reshape(*x.shape[:-1], -1).astype(x.dtype)
