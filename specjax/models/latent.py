"""Latent attention (MLA; DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1).

All heads' keys and values are made of one vector of a token, its latent, and of one rotary key. The
cache holds these two alone: in the place of keys the rotary one, and in that of values the latent,
each of one head.

Letters: B batch, N nodes, M fresh rows, S cached rows, H heads, E width, R rank, r rotary numbers,
n plain ones, v numbers of a value.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.models.attention import attend
from specjax.models.config import Config, Latent
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm
from specjax.models.rotary import rotate
from specjax.models.weights import dense

_INIT = nn.initializers.normal(0.02)
_EPSILON = 1e-6  # of the latents' norms, whatever the layer's


class LatentAttention(nn.Module):
  """Attention of a layer up to its output matrix; `inputs` is the width of what it reads."""

  config: Config
  latent: Latent
  inputs: int

  def setup(self):
    c, own = self.config, self.latent
    queries = c.heads * c.head_dim
    self.down = weight(self, "kv_down", _INIT, (own.rank + own.rotary, self.inputs))
    self.norm = RMSNorm(_EPSILON, name="kv_norm")
    self.up = weight(self, "kv_up", _INIT, (c.heads * (own.plain + own.value), own.rank))
    if own.q_rank:
      self.q_down = weight(self, "q_down", _INIT, (own.q_rank, self.inputs))
      self.q_norm = RMSNorm(_EPSILON)
    self.q_up = weight(self, "q_up", _INIT, (queries, own.q_rank or self.inputs))

  def project(self, h: Array, angle: Array) -> tuple[Array, Array, Array]:
    """h [B, N, inputs] -> q [B, H, N, n + r], rotary keys [B, 1, N, r], latents [B, 1, N, R]."""
    c, own = self.config, self.latent
    q = self.q_norm(linear(h, self.q_down)) if own.q_rank else h
    q = linear(q, self.q_up).reshape(*h.shape[:2], c.heads, c.head_dim).swapaxes(1, 2)
    plain, turned = q[..., : own.plain], rotate(q[..., own.plain :], angle, c.neighbours)
    latents, key = jnp.split(linear(h, self.down), [own.rank], -1)
    key = rotate(key[:, None], angle, c.neighbours)
    return jnp.concatenate([plain, turned], -1), key, self.norm(latents)[:, None]

  def __call__(self, q: Array, key: Array, latent: Array, mask: Array, prefix=None) -> Array:
    """[B, N, H * v]; see `attend`, whose keys and values are here rotary keys and latents.

    Behind a cache no key or value is made: a query's plain numbers are multiplied by its head's
    part of the matrix that would make keys of latents, and what a head attends to by that of
    values. A text alone is cheaper with keys and values of every head, which are narrower.
    """
    own, (B, H, N, _) = self.latent, q.shape
    up = dense(self.up).reshape(H, own.plain + own.value, own.rank)
    to_keys, to_values = up[:, : own.plain], up[:, own.plain :]
    if prefix is None:
      keys, values = (jnp.einsum("bmr,hcr->bhmc", latent[:, 0], w) for w in (to_keys, to_values))
      shared = jnp.broadcast_to(key, (B, H, *key.shape[2:]))
      return attend(q, jnp.concatenate([keys, shared], -1), values, mask, None)
    q = q * ((own.rank + own.rotary) / self.config.head_dim) ** 0.5  # as `attend` has it
    plain, turned = jnp.split(q, [own.plain], -1)
    plain = jnp.einsum("bhnc,hcr->bhnr", plain, to_keys)
    y = attend(jnp.concatenate([plain, turned], -1), key, latent, mask, prefix)
    y = jnp.einsum("bnhr,hcr->bnhc", y.reshape(B, N, H, own.rank), to_values)
    return y.reshape(B, N, H * own.value)
