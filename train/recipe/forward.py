"""Passes of a frozen network over packed rows."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.progress import track

from specjax.base import Features, Params
from specjax.data.packing import Rows
from specjax.models.transformer import Transformer, attention_mask


def read(
  network: Transformer, params: Params, rows: Rows, hidden_layers: tuple[int, ...] = ()
) -> Features:
  """The network's states over rows, arrays [B, T]; each document sees itself alone."""
  mask = attention_mask(jnp.asarray(rows.segment), network.config.causal)
  features: Any = network.apply(
    params, rows.tokens, rows.position, mask, hidden_layers=hidden_layers, method="features"
  )
  return features[0]


def parts(
  rows: Rows, batch: int, description: str, first: int = 0
) -> Iterator[tuple[int, int, Rows]]:
  """(number of the first row, count of rows, rows of zeros after them up to `batch`), in order.

  All parts have one shape, so that what reads them is compiled once.
  """
  for i in track(range(first, len(rows.tokens), batch), description=description):
    count = min(batch, len(rows.tokens) - i)
    yield i, count, Rows(*(np.pad(x[i : i + batch], ((0, batch - count), (0, 0))) for x in rows))
