"""Pseudo rows: guesses at later tokens made inside the target's own pass.

Row k of a node v stands for the token k places after v: it has position(v) + k, enters the residual
stream at a layer of its own, and sees the cached prefix, the nodes that v sees (v included) and the
rows 1..k of v which have entered by then. No node sees a pseudo row and none reaches the cache, so
the target says what it says without them. Above the last layer, row k is read as the distribution
of the token k + 1 places after v.

Letters: B batch, N nodes, G nodes with pseudo rows, P pseudo rows, K rows of one node at most,
E width.
"""

import itertools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import KV, Cache, Params, Target
from specjax.drafters.memory import rows_at
from specjax.trees.structure import at

Enter = Callable[[int, Array], Array]
"""(k, stream [B, G, E]) -> [B, G, E]: rows k as they enter, from the stream of their nodes."""


def ride(
  network: Target, target_params: Params, x: Array, position: Array, mask: Array, owner: Array,
  counts: Sequence[int], layers: Sequence[int], enter: Enter, *,
  cache: Cache | None = None, start: int = 0,
) -> tuple[Array, Array, KV]:  # fmt: skip
  """Layers from `start` up over nodes and their pseudo rows.

  Args:
    x: [B, N, E], the stream of the nodes before layer `start`.
    position: i32[B, N].
    mask: bool[B, N, N].
    owner: i32[B, G], the nodes with pseudo rows. One named twice has two sets, unaware of each
      other.
    counts: G numbers (static), pseudo rows of each owner.
    layers: K numbers (static), where rows k = 1..K enter, none before `start`.

  Returns:
    (nodes [B, N, E], pseudo rows [B, P, E], KV of the nodes alone); both after the final norm, the
    rows sorted by owner, then k.
  """
  B, N, _ = x.shape
  group = np.repeat(np.arange(len(counts)), counts)
  ahead = np.concatenate([np.arange(1, n + 1) for n in counts]) if counts else np.zeros(0, int)
  entry = np.array([layers[k - 1] for k in ahead], int)
  inside = np.zeros(0, int)  # rows of group and ahead, in order of entering
  ks: tuple[Array, ...] = ()
  vs: tuple[Array, ...] = ()
  for first, stop in itertools.pairwise([*sorted({start, *entry.tolist()}), None]):
    for k in np.unique(ahead[entry == first]).tolist():
      new = np.flatnonzero((entry == first) & (ahead == k))
      nodes = rows_at(x[:, :N], owner[:, group[new]])
      # A row that is not finite would reach the nodes: hidden columns weigh 0, and 0 * NaN is NaN.
      rows = enter(k, nodes)
      rows = jnp.where(jnp.isfinite(rows), rows, 0)
      x, inside = jnp.concatenate([x, rows], 1), np.concatenate([inside, new])
    who = owner[:, group[inside]]
    steps = jnp.asarray(ahead[inside], jnp.int32)[None]
    own = group[inside][:, None] == group[inside][None]
    own &= ahead[inside][:, None] >= ahead[inside][None]
    above = jnp.take_along_axis(mask, who[:, :, None], 1)
    below = jnp.concatenate([above, jnp.broadcast_to(own, (B, *own.shape))], 2)
    hidden_from = jnp.zeros((B, N, len(inside)), bool)
    places = jnp.concatenate([position, at(position, who) + steps], 1)
    sees = jnp.concatenate([jnp.concatenate([mask, hidden_from], 2), below], 1)
    x, kv = network.run_layers(target_params, x, places, sees, cache, start=first, stop=stop)
    ks, vs = (*ks, *(k[:, :, :N] for k in kv.k)), (*vs, *(v[:, :, :N] for v in kv.v))
  x = network.norm(target_params, x)
  return x[:, :N], x[:, N:][:, np.argsort(inside)], KV(ks, vs)
