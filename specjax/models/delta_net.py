"""A layer of Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), as Qwen3-Next has it.

A short convolution, the gated delta rule, and a norm that is gated. The letters are those of
`recurrence`; E is the width of the stream.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.models import gated_delta, recurrence
from specjax.models.config import Config, GatedDelta
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.recurrence import Nodes, State

_INIT = nn.initializers.normal(0.02)


def _unit(x: Array) -> Array:
  return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class GatedDeltaNet(nn.Module):
  """What stands in attention's place; `config` is that of the layer."""

  config: Config

  @nn.compact
  def __call__(self, x: Array, mask: Array, state: State | None) -> tuple[Array, Nodes, Array]:
    """x [B, N, E], normed, behind a state or none.

    Returns:
      ([B, N, E] to be added to the stream; the nodes, and their inputs [B, 1, N, X], for `commit`)
    """
    c = self.config.recurrence
    assert isinstance(c, GatedDelta)
    B, N, E = x.shape
    K, H, C, F = c.key_heads, c.value_heads, c.key_dim, c.value_dim
    X = 2 * K * C + H * F
    qkvz: Array = linear(x, weight(self, "qkvz", _INIT, (X + H * F, E)))
    inputs, z = qkvz[..., :X], qkvz[..., X:]
    rate, time = jnp.split(linear(x, weight(self, "rate_time", _INIT, (2 * H, E))), 2, -1)
    slope = self.param("log_slope", nn.initializers.zeros, (H,)).astype(jnp.float32)
    shift = self.param("time_bias", nn.initializers.ones, (H,)).astype(jnp.float32)
    time = time.astype(jnp.float32) + shift[None, None]
    gate = -jnp.exp(slope)[None, None] * nn.softplus(time)

    kernel = self.param("kernel", _INIT, (X, 1, c.kernel))[:, 0]
    mixed = recurrence.convolved(inputs, kernel, mask, None if state is None else state.window)
    mixed = nn.silu(mixed).astype(jnp.float32)
    heads = jnp.split(mixed, np.cumsum([K * C, K * C]).tolist(), -1)
    q, k, v = (
      y.reshape(B, N, -1, width).swapaxes(1, 2) for y, width in zip(heads, (C, C, F), strict=True)
    )
    gate, rate = (y.swapaxes(1, 2) for y in (gate, nn.sigmoid(rate.astype(jnp.float32))))
    y, nodes = recurrence.evaluated(
      gated_delta.evaluate, state, mask, _unit(q) * C**-0.5, _unit(k), v, gate, rate
    )
    nodes = dataclasses.replace(nodes, read=y)

    y = y.swapaxes(1, 2)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.config.norm_epsilon)
    norm = self.param("norm", nn.initializers.ones, (F,))
    y = y.astype(x.dtype) * norm[None, None, None]
    gated = y.astype(jnp.float32) * nn.silu(z.astype(jnp.float32)).reshape(y.shape)
    out_init = nn.initializers.normal(0.02 / (2 * self.config.layers) ** 0.5)
    out: Array = linear(
      gated.astype(x.dtype).reshape(B, N, -1), weight(self, "out", out_init, (E, H * F))
    )
    return out, nodes, inputs[:, None]
