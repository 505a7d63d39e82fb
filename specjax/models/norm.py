"""Normalisation of the residual stream."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.kernels import norm


def unit(x: Array, epsilon: float) -> Array:
  """x with a root mean square of 1 on the last axis, computed in float32."""
  if norm.serves(x):
    return norm.unit(x, epsilon)
  y = x.astype(jnp.float32)
  return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + epsilon)).astype(x.dtype)


class RMSNorm(nn.Module):
  """Scales the last axis to unit root mean square, in float32.

  `centred` is LayerNorm without a bias: the mean is subtracted first.
  """

  epsilon: float
  centred: bool = False

  @nn.compact
  def __call__(self, x: Array) -> Array:
    weight = self.param("weight", nn.initializers.ones, (x.shape[-1],))
    if self.centred:
      y = x.astype(jnp.float32)
      y = unit(y - jnp.mean(y, -1, keepdims=True), self.epsilon).astype(x.dtype)
    else:
      y = unit(x, self.epsilon)
    return y * jnp.broadcast_to(weight, x.shape)
