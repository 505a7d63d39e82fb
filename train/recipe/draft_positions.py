"""Where in a row a head drafts in training, its loss there, and how often its guesses are right.

Letters: R rows, B rows of a batch, T row length, M drafting positions of a row, D depth, E width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import distributed
from specjax.base import Features, Params
from specjax.data.packing import PackedRows
from specjax.heads import draft_vocabulary, drafting
from specjax.heads.base import Examples, Head, LossWeights
from specjax.heads.parallel import Frames
from specjax.models import ring
from specjax.models.linear import linear
from specjax.models.sharding import on_all
from specjax.models.transformer import Transformer
from specjax.train.recipe import forward, frames, losses, means
from specjax.train.recipe.config import Training
from specjax.trees.structure import gather

RANKS = 10  # best guesses per depth whose hits are counted


class Batch(NamedTuple):
  """A step's examples."""

  examples: Examples  # the rows, and M positions of each from which the head drafts
  labels: np.ndarray  # i32[B, M, D], the token at `at` + d + 1
  weight: np.ndarray  # bool[B, M, D], whether that token is trained; False at padding


def candidates(rows: PackedRows, depth: int) -> tuple[np.ndarray, np.ndarray]:
  """Labels i32[R, T, D] of every position t, the tokens at t + d + 1, and weights bool[R, T, D].

  The weight is True where that token is trained and belongs to the same text as t.
  """
  T = rows.tokens.shape[1]
  later = np.arange(T)[:, None] + np.arange(2, depth + 2)
  inside, at = later < T, np.minimum(later, T - 1)
  same = rows.segment[:, at] == rows.segment[:, :, None]
  return np.where(inside, rows.tokens[:, at], 0), inside & rows.mask[:, at] & same


def first(rows: PackedRows) -> np.ndarray:
  """bool[R, T]: the positions of which the first draft token is trained."""
  return candidates(rows, 1)[1][:, :, 0]


class PositionSource:
  """Batches of drafting positions, a function of the step alone."""

  def __init__(
    self, rows: PackedRows, features: Features | None, depth: int, points: int, seed: int
  ):
    """`rows` are [R, T], their features [R, T, E], or None, for the step to compute them.

    `points` is M. Where a mesh is set that spreads the tokens of rows, a batch has as much padding
    behind its T and M as makes them even.
    """
    self.features, self.points, self.seed = features, points, seed
    self.length, self.width = (ring.filled(n) for n in (rows.tokens.shape[1], points))
    self.rows = PackedRows(*map(self._wide, rows))
    self.labels, self.weight = candidates(self.rows, depth)
    self.useful = [np.flatnonzero(x) for x in self.weight[:, :, 0]]

  def _wide(self, x: np.ndarray) -> np.ndarray:
    """An array [.., T, ..] with zeros behind T, which no earlier token sees."""
    more = self.length - x.shape[1]
    return np.pad(x, [(0, more if i == 1 else 0) for i in range(x.ndim)]) if more else x

  def take(self, turns: Sequence[tuple[int, np.ndarray]], batch: int) -> Batch:
    """The batch of up to B turns, each a row and up to M positions of it."""
    at, real = (np.zeros((batch, self.width), kind) for kind in (int, bool))
    chosen = np.zeros(batch, int)
    for b, (r, points) in enumerate(turns):
      chosen[b], at[b, : len(points)], real[b, : len(points)] = r, points, True
    features: Any = jax.tree.map(lambda x: self._wide(np.asarray(x[chosen])), self.features)
    tokens, position, segment, _ = (x[chosen] for x in self.rows)
    examples = Examples(tokens, position, segment, features, at.astype(np.int32))  # type: ignore[arg-type]  # numpy until it is on the device
    row = chosen[:, None]
    return Batch(examples, self.labels[row, at], self.weight[row, at] & real[:, :, None])

  def sample(self, chosen: np.ndarray, step: int) -> Batch:
    """The batch of a step: M different positions of each row, or all that it has."""
    rng = np.random.default_rng([self.seed, step])
    useful = [self.useful[r] for r in chosen]
    some = [np.sort(rng.choice(x, min(self.points, len(x)), replace=False)) for x in useful]
    return self.take(list(zip(chosen, some, strict=True)), len(chosen))

  def stepped(self, order: Callable[[int], np.ndarray], steps: int) -> Callable[[int], Batch]:
    """The batch of each of so many steps, of the rows that `order` says."""
    return lambda step: self.sample(order(step), step)

  def judged(self, count: int) -> Batch:
    """A batch of `count` rows on which weights are judged, the first that have a label."""
    labelled = np.array([r for r, points in enumerate(self.useful) if len(points)])
    return self.sample(labelled[np.arange(count) % len(labelled)], 0)

  def every(self, batch: int) -> Iterator[Batch]:
    """Batches that hold every useful position of every row once."""
    turns = [
      (r, points[i : i + self.points])
      for r, points in enumerate(self.useful)
      for i in range(0, len(points), self.points)
    ]
    for i in range(0, len(turns), batch):
      yield self.take(turns[i : i + batch], batch)


class Objective:
  """The loss and the hits of a head that guesses in a draft vocabulary of target ids.

  `network` is the target's, which reads the rows of a batch that comes without features.
  """

  def __init__(self, head: Head, vocabulary: np.ndarray | None, network: Transformer | None = None):
    self.head, self.network, V = head, network, head.target.vocab_size
    self.frames = isinstance(head, Frames)
    self.place = np.arange(V)  # of each target id in the draft vocabulary
    if vocabulary is not None:
      self.place = np.full(V, -1)
      self.place[vocabulary] = np.arange(len(vocabulary))

  def seen(self, target_params: Params, batch: Batch) -> Batch:
    """The batch with the features of its rows, computed now where it has none.

    The target is spread over a mesh's rows and columns, the head, which is small, over rows alone.
    """
    examples = batch.examples
    if self.network is not None:
      found = forward.read(self.network, target_params, examples, self.head.hidden_layers)
      # First they stay as the target leaves them, or XLA would gather its weights to spread rows.
      found = jax.lax.optimization_barrier(distributed.shard_texts(jax.lax.stop_gradient(found)))
      examples = examples._replace(features=found)
    return distributed.shard_over_all(batch._replace(examples=examples))

  def states(self, params: Params, target_params: Params, examples: Examples):
    """The head's states at every depth, from features in the target's own dtype."""
    dtype = jax.tree.leaves(target_params)[0].dtype
    features = jax.tree.map(lambda x: x.astype(dtype), examples.features)
    examples = examples._replace(features=features)
    return drafting.unroll(self.head, params, target_params, examples)

  def loss(
    self,
    params: Params,
    target_params: Params,
    batch: Batch,
    weights: LossWeights,
    noise: float = 0.0,
    key: Any = None,
  ) -> tuple[Array, dict[str, Array]]:
    """The loss in nats of a whole batch and its metrics; see `terms`."""
    terms, metrics = self.terms(params, target_params, batch, weights, noise, key)
    total = means.added(means.values(terms))
    return total, {"loss": total, **means.values(metrics)}

  def terms(
    self,
    params: Params,
    target_params: Params,
    batch: Batch,
    weights: LossWeights,
    noise: float = 0.0,
    key: Any = None,
  ) -> tuple[list[means.Mean], dict[str, means.Mean]]:
    """The terms of the loss in nats, one for each depth that counts, and its metrics.

    Logits are recomputed in the backward pass. `weights` and `noise`, the width of uniform noise on
    the hidden states, are static; `key` is one, or one for each row.
    """
    batch = self.seen(target_params, batch)
    examples, hidden = batch.examples, batch.examples.features.hidden
    if noise:
      drawn = jax.vmap(lambda key: jax.random.uniform(key, hidden.shape[1:]))
      shift = noise * (drawn(means.row_keys(key, len(hidden))) - 0.5)
      noisy = examples.features._replace(hidden=hidden + shift.astype(hidden.dtype))
      examples = examples._replace(features=noisy)
    states = self.states(params, target_params, examples)
    if self.frames:
      return [self._of_all_depths(params, target_params, states, batch)], {}
    matrix = draft_vocabulary.rows(
      self.head.target.lm_head(target_params), draft_vocabulary.ids(params)
    )
    T, terms, metrics = hidden.shape[1], [], {}
    scales = losses.depth_weights(weights.decay, len(states))
    reached = jnp.ones(examples.at.size, bool)
    if weights.units:
      reached = self._sure(target_params, batch, matrix, weights.units)
    shares = self._shares(params, target_params, states, batch, weights)
    for d, (state, scale) in enumerate(zip(states, scales, strict=True), 1):
      label, known, weight = self._labels(batch, d)
      own = gather(hidden, jnp.minimum(examples.at + d, T - 1)).astype(matrix.dtype)

      @jax.checkpoint
      def at_depth(state, own, reached, label=label, known=known, weight=weight, d=d, scale=scale):
        log_odds = self.head.log_odds and self.head.log_odds(params, state).reshape(-1)
        logits = self.head.read(params, target_params, state, d)
        flat, own = logits.reshape(-1, logits.shape[-1]), own.reshape(-1, own.shape[-1])
        teacher = self.head.target.logits(linear(own, matrix))
        right = (flat.argmax(-1) == label).astype(jnp.float32)
        if weights.units:
          reached = reached & known & losses.sure(teacher, label, weights.units)
        state = self.head.feature(state, d)
        whole = state.reshape(-1, state.shape[-1])
        guess = losses.Guess(whole, flat, label, teacher, own, log_odds)
        counts = jnp.where(reached, weight, 0.0)
        value = scale * losses.weighted(weights, guess, counts, shares and shares[d - 1])
        loss = means.over(counts, value)
        if weights.within:
          reached = reached & known & losses.within(flat, label, weights.within)
        return loss, means.over(weight, losses.mean(right, weight)), reached

      loss, metrics[f"accuracy_{d}"], reached = at_depth(state, own, reached)
      terms += [loss] if scale else []
    return terms, metrics

  def _sure(self, target_params: Params, batch: Batch, matrix: Any, least: float) -> Array:
    """bool[B * M], whether the target gives the token after `at` more than this probability."""
    tokens, _, _, features, at = batch.examples
    label = jnp.asarray(self.place)[gather(tokens, jnp.minimum(at + 1, tokens.shape[1] - 1))]
    own = gather(features.hidden, at).astype(matrix.dtype)
    teacher = self.head.target.logits(linear(own.reshape(-1, own.shape[-1]), matrix))
    label = label.reshape(-1)
    return (label >= 0) & losses.sure(teacher, jnp.maximum(label, 0), least)

  def _labels(self, batch: Batch, d: int) -> tuple[Array, Array, Array]:
    """Of depth d, arrays [B * M]: the labels in the draft vocabulary, whether they are in it, and
    f32, 1 where one is trained, too."""
    label = jnp.asarray(self.place)[batch.labels[:, :, d - 1]]
    # The head cannot guess a token outside the draft vocabulary and is not trained on it.
    label, known = jnp.maximum(label, 0).reshape(-1), (label >= 0).reshape(-1)
    trained = jnp.asarray(batch.weight[:, :, d - 1]).reshape(-1)
    return label, known, (trained & known).astype(jnp.float32)

  def _shares(
    self,
    params: Params,
    target_params: Params,
    states: Sequence[Array],
    batch: Batch,
    weights: LossWeights,
  ) -> list[Array] | None:
    """`losses.dpace` of the head as it stands, D arrays f32[B * M]; None where it is not asked."""
    if weights.dpace is None:
      return None
    right, counts = [], []
    for d, state in enumerate(states, 1):
      label, _, weight = self._labels(batch, d)
      logits = jax.lax.stop_gradient(self.head.read(params, target_params, state, d))
      log_probs = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]))
      right.append(jnp.exp(gather(log_probs, label[:, None])[:, 0]))
      counts.append(weight)
    return losses.dpace(right, counts, weights.dpace)

  def _known(self, batch: Batch) -> tuple[Array, Array]:
    """Labels [B, M, D] in the draft vocabulary, and whether they are in it and trained."""
    label = jnp.asarray(self.place)[batch.labels]
    return jnp.maximum(label, 0), (label >= 0) & batch.weight

  def _of_all_depths(self, params: Params, target_params: Params, states: Any, batch: Batch):
    """The loss of frames, see `frames.loss`; logits are recomputed in the backward pass."""
    tokens, known = self._known(batch)

    @jax.checkpoint
    def whole(states):
      read = [self.head.read(params, target_params, x, d) for d, x in enumerate(states, 1)]
      return frames.loss(jnp.stack(read, 2), tokens, known)

    return means.over(known[:, :, 0], whole(states))

  def hits(self, params: Params, target_params: Params, batch: Batch) -> tuple[Array, Array]:
    """(i[D, RANKS], number of labels guessed at each rank; i[D], number of labels).

    The label of a frame is what `frames.follow` says.
    """
    batch = self.seen(target_params, batch)
    states = self.states(params, target_params, batch.examples)
    labels, weight = jnp.asarray(self.place)[batch.labels], jnp.asarray(batch.weight)
    said = frames.Said(jnp.zeros(labels.shape[:2], jnp.int32), jnp.ones(labels.shape[:2], bool))
    if self.frames:
      tokens, known = self._known(batch)
      weight = jnp.broadcast_to(known[:, :, :1], weight.shape)
    hits = []
    for d, state in enumerate(states, 1):
      logits = self.head.read(params, target_params, state, d)
      best = jax.lax.top_k(logits, min(RANKS, logits.shape[-1]))[1]
      label = labels[:, :, d - 1]
      if self.frames:
        label, said = frames.follow(logits, tokens, known, said)
      right = best == label[:, :, None]
      hits.append((right & weight[:, :, d - 1, None]).sum((0, 1)))
    return jnp.stack(hits), weight.sum((0, 1))

  def rates(
    self, params: Params, target_params: Params, source: PositionSource, training: Training
  ) -> np.ndarray:
    """f[D, RANKS]: how often each rank is right, at every useful position of a source."""
    ranks, D = min(RANKS, int((self.place >= 0).sum()) + self.frames), self.head.depth
    hits, counts = np.zeros((D, ranks), int), np.zeros(D, int)
    measure, (dealt, copied) = jax.jit(self.hits), training.shardings()
    params, target_params = jax.device_put(params, copied), on_all(target_params, copied)
    for part in source.every(training.batch):
      found = measure(params, target_params, jax.device_put(part, dealt))
      hits, counts = jax.tree.map(np.add, (hits, counts), distributed.fetch(found))
    return hits / np.maximum(counts, 1)[:, None]
