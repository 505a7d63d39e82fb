"""A cache in pages of 64 rows, found for each text by a table, behind the contract of `Target`.

Pages belong to no row. A page may stand in the tables of several texts that begin alike; whoever
makes the tables sees to it that no text writes into such a page, and that what a text writes has a
page of its own. Page 0 is nobody's: what need not be kept is written there, such as what is behind
an accepted path, and all that a row without a text has.

Letters: B batch, N nodes, A rows of an accepted path, S capacity, P pages.
"""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.kernels.tree_attention import PAGE
from specjax.models import cache as kv_cache
from specjax.models import transformer
from specjax.models.cache import PagedCache
from specjax.models.config import Config


def begun(cache: Cache) -> PagedCache:
  """A dense cache in pages: page 0, and S / 64 pages of each row's own, one row after another."""

  def cut(x: Array) -> Array:
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % PAGE), (0, 0)))
    B, K, S, C = x.shape
    pages = x.reshape(B, K, S // PAGE, PAGE, C).swapaxes(1, 2).reshape(-1, K, PAGE, C)
    return jnp.pad(pages, ((1, 0), (0, 0), (0, 0), (0, 0)))

  kv = KV(tuple(map(cut, cache.kv.k)), tuple(map(cut, cache.kv.v)))
  B = len(cache.length)
  count = B * -(-cache.kv.k[0].shape[2] // PAGE)
  table = 1 + jnp.arange(count, dtype=jnp.int32).reshape(B, -1)
  return PagedCache(kv, table, cache.length)


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
    b: kv_cache.Index,
    path: Array,
    first: Array,
    second: Array,
    begin: Array,
    skipped: Array,
  ) -> Array:
    own = kv_cache.row_of(windows, b)
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
  return cache._replace(
    kv=kv_cache.written(window, put, cache.kv, kv, *each), length=cache.length + rows
  )


def bare(cache: Any) -> Any:
  """What each row has of a cache for itself: of one in pages the length alone."""
  return cache._replace(kv=None, table=None) if isinstance(cache, PagedCache) else cache


def unlike(config: Any) -> str:
  """What a network has that no cache in pages keeps; "" where it has nothing such."""
  if not isinstance(config, Config):
    return "layers of another kind"
  found = {
    "recurrent layers": config.recurrent,
    "latent attention": config.latent is not None,
    "a sliding window": bool(config.windows),
    "attention to what follows": not config.causal,
  }
  return next((name for name, there in found.items() if there), "")


@functools.cache
def paged(config: Config) -> LayeredTarget:
  """The network of a config over caches in pages; one object for each, so that jit caches hit.

  What `prefill` makes has pages for B rows of its capacity. Whoever shares pages makes tables of
  his own, see `serving.pool`.

  Raises:
    ValueError: a network with one of the features that `unlike` names.
  """
  if kind := unlike(config):
    raise ValueError(f"a network whose cache is in pages must have no {kind}.")
  lm = transformer.target(config)

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    cache, features = lm.prefill(params, tokens, length, capacity, hidden_layers)
    return begun(cache), features

  return dataclasses.replace(lm, prefill=prefill, commit=commit)
