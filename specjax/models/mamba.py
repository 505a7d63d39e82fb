"""A layer of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, section 7), as Granite 4 has it.

A short convolution over x, B and C, state space duality, and a norm behind a gate. The letters are
those of `recurrence`; E is the width of the stream.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.models import recurrence, state_space
from specjax.models.config import Config, Mamba
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.recurrence import Nodes, State

_INIT = nn.initializers.normal(0.02)


def _slopes(key: Array, shape: tuple[int, ...]) -> Array:
  """The logarithms of 1 to H, from which heads forget at different speeds."""
  return jnp.log(jnp.arange(1, shape[0] + 1, dtype=jnp.float32))


class Mamba2(nn.Module):
  """What stands in attention's place; `config` is that of the layer."""

  config: Config

  @nn.compact
  def __call__(self, x: Array, mask: Array, state: State | None) -> tuple[Array, Nodes, Array]:
    """x [B, N, E], normed, behind a state or none.

    Returns:
      ([B, N, E] to be added to the stream; the nodes, and their inputs [B, 1, N, X], for `commit`)
    """
    c = self.config.recurrence
    assert isinstance(c, Mamba)
    B, N, E = x.shape
    H, F, K, C = c.heads, c.head_dim, c.groups, c.state
    X = H * F + 2 * K * C
    zxbct: Array = linear(x, weight(self, "zxbct", _INIT, (H * F + X + H, E)))
    z, inputs, time = jnp.split(zxbct, np.cumsum([H * F, X]).tolist(), -1)
    slope = self.param("log_slope", _slopes, (H,)).astype(jnp.float32)
    shift = self.param("time_bias", nn.initializers.ones, (H,)).astype(jnp.float32)
    skip = self.param("skip", nn.initializers.ones, (H,)).astype(jnp.float32)
    time = nn.softplus(time.astype(jnp.float32) + shift[None, None])
    time = jnp.clip(time, *c.step).swapaxes(1, 2)

    kernel = self.param("kernel", _INIT, (X, 1, c.kernel))[:, 0]
    bias = self.param("kernel_bias", nn.initializers.zeros, (X,))
    mixed = recurrence.convolved(inputs, kernel, mask, None if state is None else state.window)
    mixed = nn.silu(mixed + bias[None, None]).astype(jnp.float32)
    heads = jnp.split(mixed, np.cumsum([H * F, K * C]).tolist(), -1)
    v, k, q = (
      y.reshape(B, N, -1, width).swapaxes(1, 2) for y, width in zip(heads, (F, C, C), strict=True)
    )
    gate = -jnp.exp(slope)[None, :, None] * time
    y, nodes = recurrence.evaluated(
      state_space.evaluate, state, mask, q, k, time[..., None] * v, gate
    )

    y = y + skip[None, :, None, None] * v
    nodes = dataclasses.replace(nodes, read=y)
    y = y.swapaxes(1, 2).reshape(B, N, K, -1)
    y = y * nn.silu(z.astype(jnp.float32)).reshape(y.shape)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.config.norm_epsilon)
    norm = self.param("norm", nn.initializers.ones, (H * F,))
    y = y.astype(x.dtype).reshape(B, N, -1) * norm[None, None]
    out_init = nn.initializers.normal(0.02 / (2 * self.config.layers) ** 0.5)
    out: Array = linear(y, weight(self, "out", out_init, (E, H * F)))
    return out, nodes, inputs[:, None]
