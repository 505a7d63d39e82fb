"""Pseudo rows: guesses at later tokens made inside the target's own pass.

Row k of a node v stands for the token k places after v: it has position(v) + k, enters the residual
stream at a layer of its own, and sees the cached prefix, the nodes that v sees (v included) and
rows of v that have entered by then: rows 1..k, or all. No node sees a pseudo row and none reaches
the cache, so the target's distributions do not change. After the last layer, row k is read as the
distribution of the token k + 1 places after v. A head of such rows drafts from those of the round
before.

Letters: B batch, N nodes, G nodes with pseudo rows, P pseudo rows, K rows of one node at most,
D depth of the tree, E width, M drafting positions.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import (
  KV,
  Cache,
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  LayeredTarget,
  Params,
  Verdict,
)
from specjax.heads import draft_vocabulary
from specjax.heads.base import Examples, Head
from specjax.models.transformer import attention_mask
from specjax.sampling import NoiseSource, Settings
from specjax.trees.base import Counts, Guesser, Sampling, Tree, independent
from specjax.trees.prompt_token_budget import in_order
from specjax.trees.structure import gather


def run_with_pseudo_rows(
  network: LayeredTarget,
  target_params: Params,
  x: Array,
  position: Array,
  mask: Array,
  owner: Array,
  counts: Sequence[int],
  layers: Sequence[int],
  enter: Callable[[int, Array], Array],
  *,
  cache: Cache | None = None,
  start: int = 0,
  causal: bool = True,
) -> tuple[Array, Array, KV]:
  """Layers from `start` up over nodes and their pseudo rows.

  Args:
    x: [B, N, E], the stream of the nodes before layer `start`.
    position: i32[B, N].
    mask: bool[B, N, N].
    owner: i32[B, G], the nodes with pseudo rows. A node named twice has two sets, which do not see
      each other.
    counts: G numbers (static), pseudo rows of each owner.
    layers: K numbers (static), where rows k = 1..K enter, none before `start`.
    enter: (k, stream [B, G, E] of the nodes) -> [B, G, E], rows k as they enter.
    causal: whether row k sees the rows 1..k of its node, or all of them (static).

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
      nodes = gather(x[:, :N], owner[:, group[new]])
      # A row that is not finite would reach the nodes: hidden columns weigh 0, and 0 * NaN is NaN.
      rows = enter(k, nodes)
      rows = jnp.where(jnp.isfinite(rows), rows, 0)
      x, inside = jnp.concatenate([x, rows], 1), np.concatenate([inside, new])
    who = owner[:, group[inside]]
    steps = jnp.asarray(ahead[inside], jnp.int32)[None]
    own = group[inside][:, None] == group[inside][None]
    if causal:
      own &= ahead[inside][:, None] >= ahead[inside][None]
    above = jnp.take_along_axis(mask, who[:, :, None], 1)
    below = jnp.concatenate([above, jnp.broadcast_to(own, (B, *own.shape))], 2)
    hidden_from = jnp.zeros((B, N, len(inside)), bool)
    places = jnp.concatenate([position, gather(position, who) + steps], 1)
    sees = jnp.concatenate([jnp.concatenate([mask, hidden_from], 2), below], 1)
    x, kv = network.run_layers(target_params, x, places, sees, cache, start=first, stop=stop)
    ks, vs = (*ks, *(k[:, :, :N] for k in kv.k)), (*vs, *(v[:, :, :N] for v in kv.v))
  x = network.norm(target_params, x)
  return x[:, :N], x[:, N:][:, np.argsort(inside)], KV(ks, vs)


def mean_of_sets(rows: Array, counts: Sequence[int], sets: int) -> Array:
  """[B, P, E]: the means of the rows [B, P sets, E] of all `sets` of a node, for its `counts` rows.

  The rows are sorted by node, then set, then k; counts and sets are static.
  """
  if sets == 1:
    return rows
  number = np.asarray(counts)
  within = np.concatenate([np.arange(n) for n in counts])
  first = np.repeat(sets * (np.cumsum(number) - number), number) + within
  return jnp.stack([rows[:, first + i * np.repeat(number, number)] for i in range(sets)]).mean(0)


class Guesses(NamedTuple):
  """The pseudo rows of the last accepted node: states [B, D, E] after the final norm, and how many
  of them there are, known i32[B]; 0 after a prefill, which has no pseudo rows."""

  states: Array
  known: Array


def newest(
  rows_of_nodes: Array, counts: np.ndarray, verdict: Verdict, rows: Array, old: Guesses
) -> Guesses:
  """The pseudo rows of the last committed node, from those [B, P, E] of all N nodes.

  Args:
    counts: i[N] or, where they differ by old.known, i[D + 1, N] (static); see `in_order`.
    rows: i32[B], nodes committed; where 0, `old` stays.
  """
  order, first = in_order(counts), np.empty_like(counts)
  number = np.take_along_axis(counts, order, -1)
  np.put_along_axis(first, order, np.cumsum(number, -1) - number, -1)
  node = gather(verdict.path, jnp.maximum(rows[:, None] - 1, 0))

  def of_node(table: np.ndarray) -> Array:
    values = jnp.asarray(table, jnp.int32)
    return values[node] if values.ndim == 1 else values[old.known[:, None], node]

  step = jnp.arange(old.states.shape[1], dtype=jnp.int32)[None]
  # Behind the rows of a node come those of another, which `known` leaves out.
  index = jnp.minimum(of_node(first) + step, rows_of_nodes.shape[1] - 1)
  live = rows > 0
  return Guesses(
    jnp.where(live[:, None, None], gather(rows_of_nodes, index), old.states),
    jnp.where(live, of_node(counts)[:, 0], old.known),
  )


class Enter(Protocol):
  """Pseudo rows k = 1..D (static) as they enter, [B, G, E], from the stream [B, G, E] of their G
  nodes; a node comes once for each of its sets, one after the other."""

  def __call__(self, params: Params, k: int, stream: Array) -> Array: ...


class OfPass(Protocol):
  """The target's weights for a pass over `nodes` (static) nodes and the pseudo rows behind them.

  They may differ from `target_params` for the rows, and for the nodes they must not; see
  `models.lora.gate`.
  """

  def __call__(self, params: Params, target_params: Params, nodes: int) -> Params: ...


@dataclasses.dataclass(frozen=True)
class PseudoRows(Head):
  """A head whose guesses are rows of the pass in which the target verifies; `ppd.py` is one.

  To write one is to write `weights`, `read`, which is asked with d = None and reads the rows after
  the final norm, and what follows. The first of the `hidden_layers`, if any, is where training
  starts, with the target's stream there; no row may enter below.

  Attributes:
    layers: D layers of the target; row k enters before layers[k - 1] (static).
    enter: see `Enter`.
    causal: whether a row sees no later rows of its node, or all of them (static).
    of_pass: see `OfPass`.
    sets: of rows that a node has, which do not see each other; a guess is the mean of their states,
      and so of the logits that are linear in them (static).
  """

  target: LayeredTarget
  layers: tuple[int, ...]
  enter: Enter
  causal: bool = True
  of_pass: OfPass = lambda params, target_params, nodes: target_params
  sets: int = 1

  def drafter(self, tree: Tree, counts: Counts | None = None) -> Drafter:
    """A drafter whose guesses all come from the target's pass of the round before.

    There are no guesses after a prefill, so the first round of a text is plain decoding with an
    invalid draft. After a node with m pseudo rows, levels 1..m of the tree are drafted, or the tree
    T_m of `trees.by_guesses`.

    Args:
      counts: pseudo rows per node, N numbers in the order of the tree's nodes; or D + 1 tuples of
        them, those of a draft after m = 0..D guesses, which differ in their order only. None gives
        every node as many as the tree is deep, and more could never be used.

    Raises:
      ValueError: counts that do not fit the tree.
    """
    network, nodes, depth, sets = self.target, tree.nodes, tree.depth, self.sets
    table = np.array((depth,) * nodes if counts is None else counts, np.int32)
    within = table.shape in ((nodes,), (depth + 1, nodes)) and table.min() >= 0
    within = within and (np.sort(table) == np.sort(table.reshape(-1, nodes)[0])).all()
    if not within or table.max() > depth or table.flat[0] < min(depth, 1):
      raise ValueError(
        f"`counts` must be {nodes} numbers between 0 and {depth}, the first at least 1 so that "
        f"something is drafted, or {depth + 1} times the same numbers in any order, got {counts}."
      )
    order = in_order(table)
    number = np.take_along_axis(table, order, -1).reshape(-1, nodes)[0].tolist()

    def init(
      params: Params, target_params: Params, context: Context, features: Features, capacity: int
    ) -> Any:
      B, _, E = features.hidden.shape
      return Guesses(jnp.zeros((B, depth, E), features.hidden.dtype), jnp.zeros(B, jnp.int32))

    def propose(
      params: Params,
      target_params: Params,
      guesses: Guesses,
      context: Context,
      settings: Settings,
      noise: NoiseSource,
    ) -> tuple[Draft, Any]:
      logits = self.read(params, target_params, guesses.states, None)
      ids, sampling = draft_vocabulary.ids(params), Sampling(settings, noise, network.vocab_size)
      guesser = Guesser(independent(logits), (), (), ids, sampling, known=guesses.known)
      draft = tree.fill(context.root, guesser)
      reached = draft.depth <= guesses.known[:, None]
      return draft._replace(valid=draft.valid & reached), guesses

    def evaluate(
      params: Params, target_params: Params, guesses: Guesses, cache: Any, draft: Draft, mask: Array
    ) -> Evaluation:
      owner = jnp.asarray(np.repeat(order, sets, -1), jnp.int32)
      owner = owner[None] if owner.ndim == 1 else owner[guesses.known]
      hidden, guessed, kv = run_with_pseudo_rows(
        network,
        self.of_pass(params, target_params, nodes),
        network.embed(target_params, draft.tokens),
        cache.length[:, None] + draft.depth,
        mask,
        jnp.broadcast_to(owner, (len(draft.tokens), nodes * sets)),
        np.repeat(number, sets).tolist(),
        self.layers,
        functools.partial(self.enter, params),
        cache=cache,
        causal=self.causal,
      )
      guessed = mean_of_sets(guessed, number, sets)
      return Evaluation(network.head(target_params, hidden), Features(hidden), kv, guessed)

    def update(
      params: Params,
      target_params: Params,
      guesses: Guesses,
      draft: Draft,
      evaluation: Evaluation,
      verdict: Verdict,
      rows: Array,
    ) -> Any:
      return newest(evaluation.aux, table, verdict, rows, guesses)

    def read(
      params: Params,
      target_params: Params,
      guesses: Guesses,
      draft: Draft,
      evaluation: Evaluation,
      verdict: Verdict,
      rows: Array,
    ) -> Any:
      return guesses._replace(known=jnp.where(rows > 0, 0, guesses.known))  # as after a prefill

    return Drafter(
      self.name,
      tree.proposal,
      nodes,
      depth,
      init,
      propose,
      update,
      evaluate,
      read=read,
      by_pieces=True,
    )

  def unroll(self, params: Params, target_params: Params, examples: Examples) -> tuple[Array, ...]:
    if self.hidden_layers:
      x, start = examples.features.hidden_layers[0], self.hidden_layers[0]
    else:
      x, start = self.target.embed(target_params, examples.tokens), 0
    (B, M), D, sets = examples.at.shape, self.depth, self.sets
    _, guessed, _ = run_with_pseudo_rows(
      self.target,
      self.of_pass(params, target_params, x.shape[1]),
      x,
      examples.position,
      attention_mask(examples.segment, causal=True),
      jnp.repeat(examples.at, sets, 1),
      (D,) * (M * sets),
      self.layers,
      functools.partial(self.enter, params),
      start=start,
      causal=self.causal,
    )
    guessed = guessed.reshape(B, M, sets, D, -1).mean(2)
    return tuple(guessed[:, :, d] for d in range(D))
