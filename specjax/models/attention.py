"""Attention of N fresh rows over a cached prefix and over each other, on one device or a ring."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.kernels.platform import platform
from specjax.kernels.tree_attention import (
  Paged,
  gathered,
  paged_attention,
  reads_blocks,
  tree_attention,
)
from specjax.models import ring
from specjax.models.products import turned, wide

QUERIES = 512  # of a long text at a time, whose scores would otherwise fill the memory
_NEAR = 2**20  # scores that a CPU's caches hold


def queries(heads: int, columns: int) -> int:
  """How many nodes of a text attend at a time, given B * H and the rows that each may see.

  On CPU their scores stay in the caches: over 384 nodes of 8 texts and 9 heads, attention takes a
  third of the time, and its gradient half.
  """
  return min(QUERIES, max(32, _NEAR // (heads * columns))) if platform() == "cpu" else QUERIES


def attend(
  q: Array,
  k: Array,
  v: Array,
  mask: Array,
  prefix: tuple[Any, ...] | None,
  cap: float | None = None,
  sinks: Array | None = None,
) -> Array:
  """Softmax attention in two parts that share one normaliser.

  The mask never spans the prefix, so verifying a tree takes one N x N mask however long the text
  is. A long prefix is read in blocks, and only the blocks that are seen; one product reads a prefix
  that is short, or of which nodes see different rows, and on GPU one that few nodes see.

  Args:
    q: [B, H, N, C].
    k, v: fresh keys [B, K, M, C] and values [B, K, M, D], H a multiple of K; there may be fewer
      nodes than M. Where keys are narrower, by D, a query's first D numbers are multiplied with the
      values (latent attention).
    mask: bool[B, N, M], node i sees fresh row j. Every node must see one row at least, its own.
    prefix: (k [B, K, S, C], v, visible) or None. `visible` says which rows are seen: the first ones
      by all nodes, i32[B]; any by all nodes, bool[B, S]; or any by each node, bool[B, N, S]. Keys
      and values [B, K, N, S, C] are rows that one node each sees, all of them. `Paged` ones lie in
      pages, which are gathered where no kernel reads them in their places. A fourth part
      i32[B, N] is the first of the rows that a node sees, where a window hides those before it; a
      fifth i32[B] says how many rows of the text are held no more.
    cap: c of scores c tanh(s / c), static.
    sinks: f32[H], scores without values, beside those of each head's rows.

  Returns:
    [B, N, H * D].
  """
  if prefix is not None and isinstance(prefix[0], Paged):
    start = prefix[3] if len(prefix) > 3 else None
    out = None
    if k.shape[3] == q.shape[3]:
      out = paged_attention(q, *prefix[:3], k, v, mask, start=start, cap=cap, sinks=sinks)
    if out is not None:
      return out.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)
    prefix = _side_by_side(prefix)
  if ring.serves(q, k, prefix):
    return ring.attend(q, k, v, mask, prefix, cap, sinks)
  B, H, N, C = q.shape
  K, D = k.shape[1], v.shape[3]
  with_values = k.shape[3] < C
  # A tree over a cache is not parted: each part would read the cache anew.
  together = queries(B * H, k.shape[2]) if prefix is None else QUERIES
  if together < N:
    return _by_parts(q, k, v, mask, prefix, together, cap, sinks)
  shared = prefix is not None and prefix[0].ndim == 4 and prefix[2].ndim < 3
  start, before = (*(prefix or ())[3:], None, None)[:2]
  shared = shared and not with_values
  if prefix is not None and shared and reads_blocks(q, prefix[0], prefix[2], start, sinks):
    seen: dict[str, Any] = {"start": start, "cap": cap, "sinks": sinks, "before": before}
    out = tree_attention(q, *prefix[:3], k, v, mask, **seen)
    return out.swapaxes(1, 2).reshape(B, N, H * C)
  q = (q * C**-0.5).reshape(B, K, -1, C)  # the group's heads and the nodes are rows of one matmul

  def capped(s: Array) -> Array:
    return s if cap is None else cap * jnp.tanh(s / cap)

  def product(q: Array, rows: Array) -> Array:
    if rows.ndim == 4:
      return _times(q, rows, 3)
    of_each = q.reshape(B, K, H // K, N, -1)
    return jnp.einsum(
      "bkgnc,bknsc->bkgns", *wide(of_each, rows), preferred_element_type=jnp.float32
    )

  def scores(q: Array, keys: Array, values: Array, visible: Array) -> Array:
    s = product(q[..., D:] if with_values else q, keys)
    s = capped(s + product(q[..., :D], values) if with_values else s)
    if keys.ndim == 5:
      return s.reshape(B, K, -1, s.shape[-1])
    s = s.reshape(B, K, H // K, N, -1)
    s = jnp.where(visible[:, None, None], s, -jnp.inf)
    return s.reshape(B, K, -1, s.shape[-1])

  def mix(p: Array, values: Array) -> Array:
    p = p.astype(values.dtype)
    if values.ndim == 5:
      of_each = p.reshape(B, K, H // K, N, -1)
      y = jnp.einsum(
        "bkgns,bknsc->bkgnc", *wide(of_each, values), preferred_element_type=jnp.float32
      )
      return y.reshape(B, K, -1, D)
    return _times(p, values, 2)

  s = scores(q, k, v, mask)
  top = s.max(-1, keepdims=True)
  sink = None
  if sinks is not None:
    own = sinks.astype(jnp.float32).reshape(1, K, H // K, 1)
    sink = jnp.broadcast_to(own, (1, K, H // K, N)).reshape(1, K, -1, 1)
    top = jnp.maximum(top, jnp.broadcast_to(sink, top.shape))
  if prefix is None:
    p = jnp.exp(s - top)
    out, total = mix(p, v), p.sum(-1, keepdims=True)
  else:
    prefix_k, prefix_v, visible = prefix[:3]
    if visible.ndim == 1:
      visible = jnp.arange(prefix_k.shape[2])[None] < visible[:, None]
    if visible.ndim == 2:
      visible = visible[:, None]
    if start is not None:
      visible = visible & (jnp.arange(prefix_k.shape[2])[None, None] >= start[:, :, None])
    # Otherwise XLA on GPU joins the two products with q, for which it copies cache and tree.
    far = scores(jax.lax.optimization_barrier(q), prefix_k, prefix_v, visible)
    top = jnp.maximum(top, far.max(-1, keepdims=True))
    p, p_far = jnp.exp(s - top), jnp.exp(far - top)
    out = mix(p, v) + mix(p_far, prefix_v)
    total = p.sum(-1, keepdims=True) + p_far.sum(-1, keepdims=True)
  if sink is not None:
    total = total + jnp.exp(sink - top)
  out = (out / total).astype(v.dtype)
  return out.reshape(B, H, N, D).swapaxes(1, 2).reshape(B, N, H * D)


def _side_by_side(prefix: tuple[Any, ...]) -> tuple[Array, ...]:
  """A prefix that lies in pages as one that is dense."""
  k, v, visible, *rest = prefix
  if visible.dtype == bool:
    seen = visible if visible.ndim == 2 else visible.any(1)
  else:
    S = k.table.shape[1] * k.pages.shape[2]
    seen = jnp.arange(S, dtype=jnp.int32)[None] < visible[:, None]
  return gathered(k, seen), gathered(v, seen), visible, *rest


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _times(x: Array, y: Array, axis: int) -> Array:
  """x [B, K, R, n] times y -> f32[B, K, R, m]; its `axis` (static) of n is 2 or 3, the other of m.

  Gradients are products of the operands' dtype, too, summed in float32. JAX's own ones multiply
  bfloat16 by float32, which no processor has units for.
  """
  return lax.dot_general(
    x, y, (((3,), (axis,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
  )


def _forward(x: Array, y: Array, axis: int) -> tuple[Array, tuple[Array, Array]]:
  return _times(x, y, axis), (x, y)


def _backward(axis: int, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
  x, y = saved
  g = g.astype(x.dtype)
  dx = _times(g, y, 5 - axis)
  dy = _times(turned(g), x, 2) if axis == 3 else _times(turned(x), g, 2)
  return dx.astype(x.dtype), dy.astype(y.dtype)


_times.defvjp(_forward, _backward)


def _by_parts(
  q: Array,
  k: Array,
  v: Array,
  mask: Array,
  prefix: tuple[Array, ...] | None,
  together: int,
  cap: float | None,
  sinks: Array | None,
) -> Array:
  """`attend` for up to `together` nodes at a time; a backward pass computes their scores anew."""
  N = q.shape[2]
  count = -(-N // together)
  size = -(-N // count)
  last = N - size  # where the last part begins, which may have some nodes of the one before

  @jax.checkpoint
  def part(i: Array) -> Array:
    def nodes(x: Array, axis: int) -> Array:
      return jax.lax.dynamic_slice_in_dim(x, jnp.minimum(i * size, last), size, axis)

    far = prefix
    if far is not None and far[0].ndim == 5:
      far = nodes(far[0], 2), nodes(far[1], 2), far[2]
    if far is not None and far[2].ndim == 3:
      far = far[0], far[1], nodes(far[2], 1)
    if far is not None and len(far) > 3:
      far = *far[:3], nodes(far[3], 1), *far[4:]
    return attend(nodes(q, 2), k, v, nodes(mask, 1), far, cap, sinks)

  parts = jax.lax.map(part, jnp.arange(count, dtype=jnp.int32))
  before = parts[:-1].swapaxes(0, 1).reshape(q.shape[0], -1, parts.shape[-1])
  return jnp.concatenate([before, parts[-1][:, (count - 1) * size - last :]], 1)
