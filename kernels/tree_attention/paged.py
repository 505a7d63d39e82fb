"""A cache in pages of 64 rows, which texts may share: a table says which pages a text has.

Letters: those of `reference`, and P pages.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

PAGE = 64  # rows, a block of the kernel in C++


class Paged(NamedTuple):
  """The keys or the values of a layer.

  Attributes:
    pages: [P, K, 64, C].
    table: i32[B, S / 64], which page has the rows of a text from 64 i on.
  """

  pages: Array
  table: Array

  @property
  def ndim(self) -> int:
    """4, as of the rows of every text side by side."""
    return self.pages.ndim


def side_by_side(x: Paged) -> Array:
  """[B, K, S, C], the rows of every text."""
  rows = jnp.take(x.pages, x.table, 0, mode="clip").swapaxes(1, 2)
  return rows.reshape(*rows.shape[:2], -1, rows.shape[-1])


def gathered(x: Paged, seen: Array) -> Array:
  """[B, K, S, C], the rows of every text; 0 where not seen, bool[B, S].

  What nobody sees may be of a text that has gone, and a weight of 0 times NaN is NaN.
  """
  return jnp.where(seen[:, None, :, None], side_by_side(x), 0)
