"""The cache of a network some of whose layers are recurrent: rows of the others, and their states.

It is a `Cache`. At a recurrent layer its `k` has the `State` and its `v` nothing; fresh ones have
the `Nodes` and the convolution's inputs. Rows of a layer that reads another's have no numbers. All
but `prefill` and `commit` hand it on as it is. Where rows lie in pages it is a `PagedHybrid`.

Letters: B batch, T padded length of prompts, N nodes, A rows of an accepted path, S capacity.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from specjax.base import KV, Cache
from specjax.kernels.platform import mesh_axis
from specjax.models import cache as kv_cache
from specjax.models import pages, recurrence
from specjax.models.chunks import Read, committed
from specjax.models.config import Config, GatedDelta, Mamba
from specjax.models.pages import PagedHybrid
from specjax.models.recurrence import Nodes, State


def _spread(state: State) -> State:
  """On the mesh that is set: heads over "model", rows over "data"."""
  B, H = state.memory.shape[:2]
  rows, heads = mesh_axis("data", B), mesh_axis("model", H)
  if rows is None and heads is None:
    return state
  return State(
    lax.with_sharding_constraint(state.memory, PartitionSpec(rows, heads)),
    lax.with_sharding_constraint(state.window, PartitionSpec(rows)),
  )


def _by_layer(
  states: Sequence[State | None], kv: KV, path: Array, rows: Array, attended: Callable[[KV], Cache]
) -> Cache:
  """The states behind a path, and what `attended` makes of the other layers' part of kv."""
  others = [i for i, x in enumerate(kv.k) if not isinstance(x, Nodes)]
  cache = attended(KV(tuple(kv.k[i] for i in others), tuple(kv.v[i] for i in others)))
  k: list[Any] = [()] * len(kv.k)
  v: list[Any] = [()] * len(kv.v)
  for at, i in enumerate(others):
    k[i], v[i] = cache.kv.k[at], cache.kv.v[at]
  for i, (nodes, state) in enumerate(zip(kv.k, states, strict=True)):
    if isinstance(nodes, Nodes) and state is not None:
      k[i] = _spread(recurrence.commit(state, nodes, kv.v[i], path, rows))
  return Cache(KV(tuple(k), tuple(v)), cache.length)


def in_pages(cache: Cache) -> PagedHybrid:
  """A dense cache whose rows are put into pages, see `pages.begun`."""
  states = tuple(x if isinstance(x, State) else None for x in cache.kv.k)
  rows = KV(*(tuple(x for x in xs if isinstance(x, Array)) for xs in cache.kv))
  return PagedHybrid(pages.begun(Cache(rows, cache.length)), states)


def _paged_commit(cache: PagedHybrid, kv: KV, path: Array, rows: Array) -> PagedHybrid:
  states, k, v = list[State | None](), list[Any](), list[Any]()
  for nodes, inputs, state in zip(*kv, cache.states, strict=True):
    if isinstance(nodes, Nodes) and state is not None:
      states.append(recurrence.commit(state, nodes, inputs, path, rows))
    else:
      states.append(None)
      k.append(nodes)
      v.append(inputs)
  rest = pages.commit(cache.pages, KV(tuple(k), tuple(v)), path, rows)
  return PagedHybrid(rest, tuple(states))


def commit(cache: Any, kv: KV, path: Array, rows: Array) -> Any:
  """`cache.commit`; the states go on along the first rows[b] nodes of path[b]."""
  if isinstance(cache, PagedHybrid):
    return _paged_commit(cache, kv, path, rows)
  states = [x if isinstance(x, State) else None for x in cache.kv.k]
  old = KV(*(tuple(x for x in xs if isinstance(x, Array)) for xs in cache.kv))
  return _by_layer(
    states, kv, path, rows,
    lambda fresh: kv_cache.commit(Cache(old, cache.length), fresh, path, rows),
  )  # fmt: skip


def _begun(config: Config, kv: KV, length: Array, capacity: int) -> Cache:
  """`cache.allocate`; the states are those behind the first length i32[B] of the rows of kv."""
  B, _, T, _ = kv.v[0].shape

  def empty(i: int) -> State | None:
    own, nodes = config.of_layer(i).recurrence, kv.k[i]
    if isinstance(own, GatedDelta | Mamba) and isinstance(nodes, Nodes):
      return recurrence.begun(nodes, kv.v[i], own.kernel)
    return None

  states = list(map(empty, range(config.layers)))
  path = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  return _by_layer(
    states, kv, path, length, lambda fresh: kv_cache.allocate(fresh, length, capacity)
  )


def prefill(
  config: Config, read: Read, tokens: Array, length: Array, capacity: int
) -> tuple[Cache, Any]:
  """(the cache, what else `read` returns) of prompts i32[B, T], as `chunks.read_prompts` has it."""
  begin = functools.partial(_begun, config, capacity=capacity)
  return committed(read, begin, commit, tokens, length)
