"""A cache in pages of 64 rows, found for each text by a table.

Pages belong to no row. A page may stand in the tables of several texts that begin alike; whoever
makes the tables sees to it that no text writes into such a page, and that what a text writes has a
page of its own. Page 0 is nobody's: what need not be kept is written there, such as what is behind
an accepted path, and all that a row without a text has.

Letters: B batch, N nodes, A rows of an accepted path, S capacity, P pages.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Cache
from specjax.kernels.tree_attention import PAGE
from specjax.models.writing import Index, row_of, written

Tree = TypeVar("Tree")


class PagedCache(NamedTuple):
  """A cache in pages.

  Attributes:
    kv: KV with pages [P, K, 64, C]; None between programs, where another has what pages hold.
    table: i32[B, S / 64], which page has the rows of a text from 64 i on; None as `kv` is.
    length: i32[B], as in `Cache`.
  """

  kv: Any
  table: Any
  length: Array


class PagedHybrid(NamedTuple):
  """A cache of which layers that attend lie in pages, and recurrent ones have states.

  Attributes:
    pages: of the layers that attend, in order.
    states: of each layer its `recurrence.State`, None where it attends.
  """

  pages: PagedCache
  states: tuple[Any, ...]

  @property
  def length(self) -> Array:
    """i32[B], as in `Cache`."""
    return self.pages.length


def begun(cache: Cache) -> PagedCache:
  """A dense cache in pages: page 0, and S / 64 pages of each row's own, one row after another."""

  def cut(x: Array) -> Array:
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % PAGE), (0, 0)))
    B, K, S, C = x.shape
    pages = x.reshape(B, K, S // PAGE, PAGE, C).swapaxes(1, 2)
    pages = pages.reshape(B * (S // PAGE), K, PAGE, C)
    return jnp.pad(pages, ((1, 0), (0, 0), (0, 0), (0, 0)))

  B, S = len(cache.length), jax.tree.leaves(cache.kv)[0].shape[2]
  table = 1 + jnp.arange(B * -(-S // PAGE), dtype=jnp.int32).reshape(B, -1)
  return PagedCache(jax.tree.map(cut, cache.kv), table, cache.length)


def commit(cache: PagedCache, kv: KV, path: Array, rows: Array) -> PagedCache:
  """`cache.commit`. Written are pages in which the first A rows behind a text lie, and page 0."""
  for first in range(0, path.shape[1], PAGE):  # a path behind one that is not full adds nothing
    own = path[:, first : first + PAGE]
    some = jnp.clip(rows - first, 0, own.shape[1]) if path.shape[1] > PAGE else rows
    cache = _appended(cache, kv, own, some)
  return cache


def _appended(cache: PagedCache, kv: KV, path: Array, rows: Array) -> PagedCache:
  """`commit` of at most 64 nodes, which lie in one page or in two.

  Where the path needs two, the window of A rows ends with the first of them, so that some rows of
  the text are written again as they were, and the second begins with the nodes that are left. Where
  it needs one, what would be the second is page 0.
  """
  A, width = path.shape[1], cache.table.shape[1]
  start = cache.length + jnp.minimum(rows, 0)  # waits for the verdict, see `cache.commit`
  block, offset = jnp.minimum(start // PAGE, width - 1), start % PAGE
  begin = jnp.minimum(offset, PAGE - A)
  left = PAGE - offset  # nodes that the first page has room for

  def named(block: Array) -> Array:
    return jnp.take_along_axis(cache.table, block[:, None], 1)[:, 0]

  first = named(block)
  second = jnp.where(left < A, named(jnp.minimum(block + 1, width - 1)), 0)

  def window(pages: Array, fresh: Array, path: Array, *_: Array) -> Array:
    return jnp.take_along_axis(fresh, path[:, None, :, None], 2).astype(pages.dtype)

  def put(
    pages: Array,
    windows: Array,
    b: Index,
    path: Array,
    first: Array,
    second: Array,
    begin: Array,
    skipped: Array,
  ) -> Array:
    own = row_of(windows, b)
    place = first[b], 0, begin[b], 0
    if A == 1:
      return lax.dynamic_update_slice(pages, own, place)
    # From the first node that the second page has to the last, then from the first on.
    turned = lax.dynamic_slice_in_dim(jnp.concatenate([own, own], 2), A - skipped[b], A, 2)
    kept = (jnp.arange(A, dtype=jnp.int32) < skipped[b])[None, None, :, None]
    before = lax.dynamic_slice(pages, place, own.shape)
    pages = lax.dynamic_update_slice(pages, jnp.where(kept, before, turned), place)
    return lax.dynamic_update_slice(pages, turned, (second[b], 0, 0, 0))

  each = path, first, second, begin, offset - begin
  return cache._replace(kv=written(window, put, cache.kv, kv, *each), length=cache.length + rows)


def is_paged(x: Any) -> bool:
  """Whether x is a cache in pages."""
  return isinstance(x, PagedCache)


def caches(tree: Any) -> list[PagedCache]:
  """The caches in pages of a tree, in its order."""
  return [x for x in jax.tree.leaves(tree, is_leaf=is_paged) if is_paged(x)]


def bare(tree: Tree) -> Tree:
  """What each row has for itself: of a cache in pages the length alone."""

  def without(x: Any) -> Any:
    return x._replace(kv=None, table=None) if is_paged(x) else x

  return jax.tree.map(without, tree, is_leaf=is_paged)


def filled(tree: Tree, kvs: Sequence[Any], tables: Sequence[Any]) -> Tree:
  """`bare` undone: the i-th cache in pages has kvs[i] and tables[i]."""
  own = iter(zip(kvs, tables, strict=True))

  def put(x: Any) -> Any:
    return PagedCache(*next(own), x.length) if is_paged(x) else x

  return jax.tree.map(put, tree, is_leaf=is_paged)
