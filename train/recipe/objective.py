"""The loss of a head over a batch of drafting positions, and how often its guesses are right.

Letters: B rows, M drafting positions of a row, D depth, E width.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Params
from specjax.drafters import draft_vocabulary, drafting
from specjax.drafters.base import Examples, Head, LossWeights
from specjax.drafters.memory import rows_at
from specjax.models.linear import linear
from specjax.train.recipe import losses
from specjax.train.recipe.draft_positions import Batch

RANKS = 10  # best guesses per depth whose hits are counted


class Objective:
  """The loss and the hits of a head that guesses in a draft vocabulary of target ids."""

  def __init__(self, head: Head, vocabulary: np.ndarray | None):
    self.head, V = head, head.target.vocab_size
    self.place = np.arange(V)  # of each target id in the draft vocabulary
    if vocabulary is not None:
      self.place = np.full(V, -1)
      self.place[vocabulary] = np.arange(len(vocabulary))

  def states(self, params: Params, target_params: Params, examples: Examples):
    """The head's states at every depth, from features in the target's own dtype."""
    dtype = jax.tree.leaves(target_params)[0].dtype
    features = jax.tree.map(lambda x: x.astype(dtype), examples.features)
    examples = examples._replace(features=features)
    return drafting.unroll(self.head, params, target_params, examples)

  def loss(
    self, params: Params, target_params: Params, batch: Batch, weights: LossWeights,
    noise: float = 0.0, key: Any = None,
  ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """The loss in nats and its metrics; logits are recomputed in the backward pass.

    `weights` and `noise`, the width of uniform noise on the hidden states, are static.
    """
    hidden, examples = batch.examples.features.hidden, batch.examples
    if noise:
      shift = noise * (jax.random.uniform(key, hidden.shape) - 0.5)
      noisy = examples.features._replace(hidden=hidden + shift.astype(hidden.dtype))
      examples = examples._replace(features=noisy)
    states = self.states(params, target_params, examples)
    matrix = draft_vocabulary.rows(
      self.head.target.lm_head(target_params), draft_vocabulary.ids(params)
    )
    T, total, metrics = hidden.shape[1], jnp.zeros(()), {}
    scales = losses.depth_weights(weights.decay, len(states))
    for d, (state, scale) in enumerate(zip(states, scales, strict=True), 1):
      label = jnp.asarray(self.place)[batch.labels[:, :, d - 1]]
      # The head cannot guess a token outside the draft vocabulary and is not trained on it.
      weight = (batch.weight[:, :, d - 1] & (label >= 0)).astype(jnp.float32).reshape(-1)
      label = jnp.maximum(label, 0).reshape(-1)
      own = rows_at(hidden, jnp.minimum(examples.at + d, T - 1)).astype(matrix.dtype)

      @jax.checkpoint
      def at_depth(state, own, label=label, weight=weight, d=d):
        logits = self.head.read(params, target_params, state, d)
        flat, own = logits.reshape(-1, logits.shape[-1]), own.reshape(-1, own.shape[-1])
        teacher = linear(own, matrix).astype(jnp.float32)
        right = (flat.argmax(-1) == label).astype(jnp.float32)
        state = state.reshape(-1, state.shape[-1])
        guess = losses.Guess(state, flat, label, teacher, own)
        return losses.total(weights, guess, weight), losses.mean(right, weight)

      loss, metrics[f"accuracy_{d}"] = at_depth(state, own)
      if scale:
        total = total + scale * loss
    return total, {"loss": total, **metrics}

  def hits(self, params: Params, target_params: Params, batch: Batch) -> tuple[Array, Array]:
    """(i[D, RANKS], number of labels guessed at each rank; i[D], number of labels)."""
    states = self.states(params, target_params, batch.examples)
    hits = []
    for d, state in enumerate(states, 1):
      logits = self.head.read(params, target_params, state, d)
      best = jax.lax.top_k(logits, min(RANKS, logits.shape[-1]))[1]
      right = best == jnp.asarray(self.place)[batch.labels[:, :, d - 1, None]]
      hits.append((right & batch.weight[:, :, d - 1, None]).sum((0, 1)))
    return jnp.stack(hits), batch.weight.sum((0, 1))
