"""Rotary embedding: pairs of a head's numbers turn by angles that grow with the position."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.models.config import Config, RopeScaling


def rope_frequencies(config: Config) -> np.ndarray:
  """Angle per position of each pair that turns, f32[C / 2], in radians."""
  turned = config.rotary_dim or config.head_dim
  exponent = np.arange(0, turned, 2, dtype=np.float64) / turned
  frequency = config.rope_theta**-exponent
  scaling = config.rope_scaling
  if scaling is None:
    return frequency.astype(np.float32)
  if scaling.kind == "longrope":
    longer = config.max_length > scaling.original_length
    return (frequency / np.array(scaling.long if longer else scaling.short)).astype(np.float32)
  turns = scaling.original_length * frequency / (2 * math.pi)
  if scaling.kind == "linear":
    keep = np.zeros(turned // 2)
  elif scaling.kind == "proportional":
    keep = np.zeros(turned // 2)
    frequency = frequency * (np.arange(turned // 2) < int(scaling.share * turned // 2))
  elif scaling.kind == "llama3":
    between = max(scaling.high - scaling.low, 1e-9)  # both may be the same (Llama 4)
    keep = np.clip((turns - scaling.low) / between, 0.0, 1.0)
  else:
    keep = 1 - _yarn_ramp(scaling, turns)
  return (frequency * (keep + (1 - keep) / scaling.factor)).astype(np.float32)


def _yarn_ramp(scaling: RopeScaling, turns: np.ndarray) -> np.ndarray:
  """f64[C / 2], the share of each pair that is stretched; pairs make fewer and fewer turns."""
  per_pair = math.log(turns[0] / turns[1]) if len(turns) > 1 else math.inf
  first, last = (math.log(turns[0] / limit) / per_pair for limit in (scaling.high, scaling.low))
  if scaling.whole_pairs:
    first, last = math.floor(first), math.ceil(last)
  # The published code ends the ramp before number C - 1, not before the last of C / 2 pairs.
  first, last = max(first, 0), min(last, 2 * len(turns) - 1)
  return np.clip((np.arange(len(turns)) - first) / max(last - first, 1e-3), 0.0, 1.0)


def angles(config: Config, position: Array) -> Array | None:
  """The rotary angles as cosine and sine, f32[2, B, N, C / 2]; position i32[B, N].

  Where queries grow with the position, what multiplies them is a third; where nothing turns
  the angles are 0 then, and None otherwise. The config is of one layer where layers differ.
  """
  grows = config.rope_scaling is not None and config.rope_scaling.growth > 0
  if config.rotary_dim == 0 and not grows:
    return None
  frequencies = np.zeros(1, np.float32) if config.rotary_dim == 0 else rope_frequencies(config)
  angle = position[..., None].astype(jnp.float32) * frequencies[None, None]
  both = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
  if config.rope_scaling is not None and config.rope_scaling.attention != 1:
    both = both * jnp.float32(config.rope_scaling.attention)
  if config.rope_scaling is not None and grows:
    ahead = config.rope_scaling.ahead
    chunk = (position + ahead if ahead else position) // config.rope_scaling.original_length
    grown = 1 + config.rope_scaling.growth * jnp.log1p(chunk.astype(jnp.float32))
    both = jnp.concatenate([both, jnp.broadcast_to(grown[None, ..., None], (1, *angle.shape))])
  # As one array behind a barrier; otherwise XLA on CPU computes both anew for every layer and head.
  return jax.lax.optimization_barrier(both)


def angles_of_layers(config: Config, position: Array) -> tuple[Array | None, ...]:
  """The `angles` of every layer, computed once where layers turn alike."""
  found: dict[Any, Array | None] = {}
  every = []
  for i in range(config.layers):
    own = config.of_layer(i)
    key = own.rope_theta, own.rope_scaling, own.rotary_dim
    if key not in found:
      found[key] = angles(own, position)
    every.append(found[key])
  return tuple(every)


def rotate(x: Array, angle: Array | None, neighbours: bool = False) -> Array:
  """Rotary embedding. x [B, H, N, C], angle as of `angles`; pairs are (i, i + C / 2), or
  (2i, 2i + 1) where they are `neighbours`.

  Of a head that turns in part, C here is what turns.
  """
  if angle is None:
    return x
  if (turned := 2 * angle.shape[-1]) < x.shape[-1]:
    return jnp.concatenate([rotate(x[..., :turned], angle, neighbours), x[..., turned:]], -1)
  cos, sin = angle[0][:, None], angle[1][:, None]
  if neighbours:
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    both = jnp.stack([a * cos - b * sin, b * cos + a * sin], -1)
    return both.reshape(x.shape).astype(x.dtype)
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
