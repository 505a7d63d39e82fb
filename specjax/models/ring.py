"""Attention over texts whose tokens lie on several devices: keys and values go round a ring.

The mesh that is set may have an axis "sequence" of n devices, each of which holds as many tokens of
every row, one stretch of it. Half of a device's keys and values goes to the next device, the other
half to the one before, n - 1 times, so that links carry both ways at once (as TokenRing has it,
Wang et al. 2024, arXiv 2412.20501, which sends queries). Each device adds what arrives to the
softmax of its own queries, in float32 (ring attention, Liu et al. 2023, arXiv 2310.01889, section
3). A gradient goes round once more, with the gradients of the keys and values that travel.

What a query sees, such as a window or its own text, is in the mask alone; where no query of some
sees any key of a half, nothing is computed.

Letters: B batch, H heads, K heads of keys, G = H / K, N queries, M keys, C width of a key, D that
of a value; of one device: L keys of a half, P parts of Q queries.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from specjax.models.products import wide

AXIS = "sequence"
TOGETHER = 512  # queries whose scores are in memory at a time

_QUERIES = PartitionSpec(None, None, None, AXIS)  # [B, K, G, N, ..]
_KEYS = PartitionSpec(None, None, AXIS)  # [B, K, M, ..]
_MASK = PartitionSpec(None, AXIS)  # [B, N, M]


def devices() -> int:
  """n, 1 where no mesh with this axis is set."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh.shape[AXIS] if AXIS in mesh.axis_names else 1


def filled(size: int) -> int:
  """The least number of tokens, or of queries, from `size` on that the ring deals out evenly."""
  whole = 2 * devices() if devices() > 1 else 1
  return -(-size // whole) * whole


def serves(q: Array, k: Array, prefix: tuple[Any, ...] | None) -> bool:
  """Whether `attend` takes these arguments of `models.attention.attend`: a text's own rows, and
  others that masks tell, but no cache."""
  if devices() == 1 or q.shape[2] < devices() or k.shape[3] < q.shape[3]:
    return False
  return prefix is None or prefix[0].ndim == 5 or (prefix[2].ndim == 3 and len(prefix) == 3)


def attend(
  q: Array,
  k: Array,
  v: Array,
  mask: Array,
  prefix: tuple[Any, ...] | None,
  cap: float | None = None,
  sinks: Array | None = None,
) -> Array:
  """`models.attention.attend`, for what `serves`: [B, N, H * D].

  Each of what a query sees has a softmax of its own, and their totals join them.
  """
  (B, H, N, C), K = q.shape, k.shape[1]
  q = (q * C**-0.5).reshape(B, K, H // K, N, C)
  found = [_round(q, k, v, mask, cap)]
  if prefix is not None and prefix[0].ndim == 5:
    found.append(_own(q, prefix[0], prefix[1], cap))
  elif prefix is not None:
    found.append(_round(q, prefix[0], prefix[1], prefix[2], cap))
  if sinks is not None:
    nothing = jnp.zeros_like(found[0][0])
    own = sinks.astype(jnp.float32).reshape(1, K, H // K, 1)
    found.append((nothing, jnp.broadcast_to(own, nothing.shape[:-1])))
  top = lax.stop_gradient(functools.reduce(jnp.maximum, [total for _, total in found]))
  shares = [jnp.exp(total - top) for _, total in found]
  mixed = [share[..., None] * own for share, (own, _) in zip(shares, found, strict=True)]
  out, total = (functools.reduce(jnp.add, terms) for terms in (mixed, shares))
  out = (out / total[..., None]).astype(v.dtype)
  return out.reshape(B, H, N, -1).swapaxes(1, 2).reshape(B, N, -1)


def _own(q: Array, k: Array, v: Array, cap: float | None) -> tuple[Array, Array]:
  """`_round` for keys [B, K, N, S, C] and values that one query each sees, all of them."""
  q, k, v = wide(q, k, v)
  s = _scores("bkgnc,bknsc->bkgns", q, k, cap)
  total = jax.nn.logsumexp(s, axis=-1)
  p = jnp.exp(s - total[..., None]).astype(v.dtype)
  return jnp.einsum("bkgns,bknsd->bkgnd", p, v, preferred_element_type=jnp.float32), total


def _round(q: Array, k: Array, v: Array, mask: Array, cap: float | None) -> tuple[Array, Array]:
  """Queries q [B, K, G, N, C], which are scaled, over keys [B, K, M, C] and values [B, K, M, D]
  that bool[B, N, M] lets them see: (f32[B, K, G, N, D], the logarithms f32[B, K, G, N] of the sums
  of their exponentials, -inf where nothing is seen)."""
  N, M = mask.shape[1:]
  k, v = (_padded(x, 2, filled(M)) for x in (k, v))
  mask = _padded(_padded(mask, 1, filled(N)), 2, filled(M))
  found = _around(_padded(q, 3, filled(N)), k, v, mask, cap)
  return found[0][:, :, :, :N], found[1][:, :, :, :N]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _around(q: Array, k: Array, v: Array, mask: Array, cap: float | None) -> tuple[Array, Array]:
  """`_round` for what the devices share evenly."""
  return _forward(q, k, v, mask, cap)[0]


def _forward(q: Array, k: Array, v: Array, mask: Array, cap: float | None) -> tuple[Any, Any]:
  local = functools.partial(_softmax, cap)
  places = (_QUERIES, _KEYS, _KEYS, _MASK), (_QUERIES, _QUERIES)
  found = _on_devices(local, *places)(q, k, v, mask)
  return found, (q, k, v, mask, *found)


def _backward(cap: float | None, saved: Any, cotangents: tuple[Array, Array]) -> Any:
  q, k, v, mask, out, total = saved
  g, of_total = cotangents
  less = (g * out).sum(-1) - of_total
  local = functools.partial(_gradient, cap)
  places = (_QUERIES, _KEYS, _KEYS, _MASK, _QUERIES, _QUERIES, _QUERIES), (_QUERIES, _KEYS, _KEYS)
  grads = _on_devices(local, *places)(q, k, v, mask, g.astype(v.dtype), total, less)
  return *(x.astype(y.dtype) for x, y in zip(grads, (q, k, v), strict=True)), None


_around.defvjp(_forward, _backward)


def _on_devices(local: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
  """`local` on every device of the axis, given its number i32[1] first; XLA spreads the rest."""
  spread: Callable[..., Any] = jax.shard_map(
    local, in_specs=(PartitionSpec(AXIS), *inputs), out_specs=outputs,
    axis_names={AXIS}, check_vma=False,
  )  # fmt: skip
  return functools.partial(spread, jnp.arange(devices(), dtype=jnp.int32))


def _softmax(
  cap: float | None, place: Array, q: Array, k: Array, v: Array, mask: Array
) -> tuple[Array, Array]:
  """What one device does for `_around`."""
  N, n = q.shape[3], mask.shape[2] // k.shape[2]
  queries = _parts(q, 3)
  shape = *queries.shape[:-1], v.shape[3]
  begun = jnp.zeros(shape), jnp.full(shape[:-1], -jnp.inf, jnp.float32), jnp.zeros(shape[:-1])

  def add(held: Any, seen: Array, q: Array, *sums: Array) -> tuple[Array, ...]:
    """The sums of Q queries with a half: mixed values, highest scores, totals."""
    (k, v), (out, top, total) = held, sums
    s = _scores("bkgnc,bkmc->bkgnm", q, k, cap)
    s = jnp.where(seen[:, None, None], s, -jnp.inf)
    higher = jnp.maximum(top, s.max(-1))
    base = _finite(higher)
    p, kept = jnp.exp(s - base[..., None]), jnp.exp(top - base)
    mixed = jnp.einsum(
      "bkgnm,bkmd->bkgnd", p.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    return out * kept[..., None] + mixed, higher, total * kept + p.sum(-1)

  def added(t: Any, halves: Any, sums: Any) -> Any:
    for half, held in enumerate(halves):
      seen = _parts(_columns(mask, place, t, half, n), 1)
      sums = _of_parts(functools.partial(add, held), seen, (queries,), sums)
    return sums

  def step(t: Any, carry: Any) -> Any:
    halves, sums = carry
    return _passed(halves, n), added(t, halves, sums)  # these travel while those are added

  halves, sums = lax.fori_loop(0, n - 1, step, (_halves(k, v), begun))
  out, top, total = (_joined(x, 3, N) for x in added(n - 1, halves, sums))
  some = total > 0
  total = jnp.where(some, total, 1.0)
  return out / total[..., None], jnp.where(some, _finite(top) + jnp.log(total), -jnp.inf)


def _gradient(
  cap: float | None,
  place: Array,
  q: Array,
  k: Array,
  v: Array,
  mask: Array,
  g: Array,
  total: Array,
  less: Array,
) -> tuple[Array, Array, Array]:
  """What one device does for the gradients of `_around`, f32 each, by q, k and v.

  `g` is the gradient by its output. A score's is p (g v - less), where the probabilities p follow
  from its logarithms `total`.
  """
  N, n = q.shape[3], mask.shape[2] // k.shape[2]
  queries = tuple(_parts(x, 3) for x in (q, g, total, less))
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)

  def add(
    held: Any, seen: Array, q: Array, g: Array, total: Array, less: Array, dq: Array
  ) -> tuple[Array, Array, Array]:
    """The gradients by Q queries with those of a half, and what they add to the half's own."""
    k, v = held
    s = _scores("bkgnc,bkmc->bkgnm", q, k, cap)
    p = jnp.where(seen[:, None, None], jnp.exp(s - total[..., None]), 0.0)
    ds = p * (product("bkgnd,bkmd->bkgnm", g, v) - less[..., None])
    if cap is not None:
      ds = ds * (1 - (s / cap) ** 2)
    p, ds = p.astype(v.dtype), ds.astype(q.dtype)
    dq = dq + product("bkgnm,bkmc->bkgnc", ds, k)
    return dq, product("bkgnm,bkgnc->bkmc", ds, q), product("bkgnm,bkgnd->bkmd", p, g)

  def added(t: Any, halves: Any, dq: Array) -> tuple[Array, Any]:
    own = []
    for half, held in enumerate(halves):
      seen, none = _parts(_columns(mask, place, t, half, n), 1), _zeros(held)

      def part(sums: Any, one: Any, held: Any = held) -> Any:
        seen, dq, q, g, total, less = one

        def further() -> Any:
          after, *more = add(held, seen, q, g, total, less, dq)
          return jax.tree.map(jnp.add, sums, tuple(more)), after

        return lax.cond(seen.any(), further, lambda: (sums, dq))

      fresh, dq = lax.scan(part, none, (seen, dq, *queries))
      own.append(fresh)
    return dq, tuple(own)

  def step(t: Any, carry: Any) -> Any:
    halves, own, dq = carry
    ahead, own = _passed(halves, n), _passed(own, n)
    dq, fresh = added(t, halves, dq)
    return ahead, jax.tree.map(jnp.add, own, fresh), dq

  halves = _halves(k, v)
  begun = halves, _zeros(halves), jnp.zeros(queries[0].shape)
  halves, own, dq = lax.fori_loop(0, n - 1, step, begun)
  dq, fresh = added(n - 1, halves, dq)
  own = jax.tree.map(jnp.add, _passed(own, n), fresh)
  dk, dv = (jnp.concatenate(pair, 2) for pair in zip(*_passed(own, n), strict=True))  # home again
  return _joined(dq, 3, N), dk, dv


def _passed(halves: Any, n: int) -> Any:
  """The first half from the device before, the other from the next."""
  onward, back = ([(i, (i + by) % n) for i in range(n)] for by in (1, -1))
  return lax.ppermute(halves[0], AXIS, onward), lax.ppermute(halves[1], AXIS, back)


def _halves(k: Array, v: Array) -> tuple[tuple[Array, Array], ...]:
  return tuple(zip(*(jnp.split(x, 2, 2) for x in (k, v)), strict=True))


def _columns(mask: Array, place: Array, t: Any, half: int, n: int) -> Array:
  """bool[B, N, L] of a mask bool[B, N, M], for a half that has been passed on t times."""
  L = mask.shape[2] // (2 * n)
  origin = (place[0] + (t if half else -t)) % n
  return lax.dynamic_slice_in_dim(mask, (2 * origin + half) * L, L, 2)


def _of_parts(
  add: Callable[..., Any], seen: Array, queries: tuple[Array, ...], sums: tuple[Array, ...]
) -> tuple[Array, ...]:
  """`add` for a part of the queries after the other, for those that see something."""

  def part(one: Any) -> Any:
    seen, query, sums = one
    return lax.cond(seen.any(), lambda: add(seen, *query, *sums), lambda: sums)

  return lax.map(part, (seen, queries, sums))


def _scores(letters: str, q: Array, k: Array, cap: float | None) -> Array:
  s = jnp.einsum(letters, q, k, preferred_element_type=jnp.float32)
  return s if cap is None else cap * jnp.tanh(s / cap)


def _finite(top: Array) -> Array:
  return jnp.where(top > -jnp.inf, top, 0.0)


def _zeros(tree: Any) -> Any:
  return jax.tree.map(lambda x: jnp.zeros(x.shape), tree)


def _padded(x: Array, axis: int, size: int) -> Array:
  more = [(0, size - n if i == axis else 0) for i, n in enumerate(x.shape)]
  return x if size == x.shape[axis] else jnp.pad(x, more)


def _parts(x: Array, axis: int) -> Array:
  """[.., N, ..] -> [P, .., Q, ..], with zeros behind the last query."""
  N = x.shape[axis]
  P = math.ceil(N / TOGETHER)
  x = _padded(x, axis, P * math.ceil(N / P))
  return jnp.moveaxis(x.reshape(*x.shape[:axis], P, -1, *x.shape[axis + 1 :]), axis, 0)


def _joined(x: Array, axis: int, size: int) -> Array:
  """The first `size` queries of their parts."""
  x = jnp.moveaxis(x, 0, axis)
  x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
  return lax.slice_in_dim(x, 0, size, axis=axis)
