"""Passes of a network over rows."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from rich.progress import track

from specjax.base import Features, Params
from specjax.data.packing import PackedRows
from specjax.heads.base import Examples
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask


def read(
  network: Transformer,
  params: Params,
  rows: PackedRows | Examples,
  hidden_layers: tuple[int, ...] = (),
) -> Features:
  """The network's states over rows, arrays [B, T]; each document sees itself alone."""
  mask = attention_mask(jnp.asarray(rows.segment), network.config.causal)
  features: Any = network.apply(
    params, rows.tokens, rows.position, mask, hidden_layers=hidden_layers, method="features"
  )
  return features[0]


def reader(
  config: Config, hidden_layers: tuple[int, ...], dtype: DTypeLike
) -> Callable[[Params, PackedRows], list[Array]]:
  """The jitted program of states that are kept or sent: (params, rows [B, T]) -> arrays [B, T, E],
  the last states and those of each layer, in a dtype."""
  network = Transformer(config)

  @jax.jit
  def run(params: Params, rows: PackedRows) -> list[Array]:
    features = read(network, params, rows, hidden_layers)
    return [x.astype(dtype) for x in (features.hidden, *features.hidden_layers)]

  return run


def states(
  network: Transformer,
  params: Params,
  tokens: Array,
  used: Array,
  shift: bool,
  seen: Array | None = None,
) -> Array:
  """States [B, T, E] that say every slot of i32[B, T]; attention sees the slots `used` bool[B, T].

  Of these, slot i sees slot j where `seen` bool[T, T] or [B, T, T] says so, by default all. With
  `shift` the state before a slot says it, as in Dream, and slot 0 says itself.
  """
  B, T = tokens.shape
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  mask = jnp.broadcast_to(used[:, None], (B, T, T))
  if seen is not None:
    mask = mask & jnp.broadcast_to(seen, mask.shape)
  hidden = jnp.asarray(network.apply(params, tokens, position, mask)[0])
  return jnp.concatenate([hidden[:, :1], hidden[:, :-1]], 1) if shift else hidden


def parts(
  rows: PackedRows, batch: int, description: str, first: int = 0
) -> Iterator[tuple[int, int, PackedRows]]:
  """(number of the first row, count of rows, these rows padded with zeros to `batch` rows).

  All parts have one shape, so that what reads them is compiled once.
  """
  for i in track(range(first, len(rows.tokens), batch), description=description):
    count = min(batch, len(rows.tokens) - i)
    yield (
      i,
      count,
      PackedRows(*(np.pad(x[i : i + batch], ((0, batch - count), (0, 0))) for x in rows)),
    )
