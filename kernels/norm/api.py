"""Rows of a root mean square of 1: which ones are served, and their call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.kernels import compiled
from specjax.kernels.platform import platform


def serves(x: Array) -> bool:
  """Whether `unit` takes x: float32, on one CPU, where there is a compiler."""
  one = platform() == "cpu" and jax.device_count() == 1
  return one and x.dtype == jnp.float32 and compiled.available()


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def unit(x: Array, epsilon: float) -> Array:
  """x f32[..., E] -> f32[..., E] with a mean square of 1 on the last axis, but for `epsilon`.

  A row's result does not depend on the rows beside it, bit for bit, nor on how many they are.
  Derivatives are XLA's.
  """
  shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
  call = jax.ffi.ffi_call(compiled.UNIT, shape, vmap_method="broadcast_all")
  return call(x, epsilon=np.float32(epsilon))


@unit.defjvp
def _derivative(epsilon: float, primals: tuple[Array], tangents: tuple[Array]):
  (x,), (dx,) = primals, tangents
  y = unit(x, epsilon)
  scale = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)
  return y, scale * (dx - y * jnp.mean(y * dx, -1, keepdims=True))
