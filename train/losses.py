"""Terms of the loss of draft heads, each a mean over the rows that count, in float32.

Letters: P rows, V vocabulary, E width.
"""

import jax
import jax.numpy as jnp
import optax
from jax import Array

from specjax.drafters.base import LossWeights


def mean(values: Array, weight: Array) -> Array:
  """Mean of values f32[P] where weight f32[P] says so; 0 where nothing counts."""
  return (values * weight).sum() / jnp.maximum(weight.sum(), 1.0)


def hard_cross_entropy(logits: Array, labels: Array, weight: Array) -> Array:
  """Nats per row. logits f32[P, V], labels i32[P], weight f32[P]."""
  return mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels), weight)


def soft_cross_entropy(logits: Array, teacher: Array, weight: Array) -> Array:
  """Nats per row, against the distribution of teacher logits f32[P, V]."""
  return mean(optax.softmax_cross_entropy(logits, jax.nn.softmax(teacher)), weight)


def divergence(logits: Array, teacher: Array, weight: Array) -> Array:
  """KL(teacher || head) in nats: the soft cross-entropy less the teacher's own entropy."""
  log_probs = jax.nn.log_softmax(teacher)
  return mean((jnp.exp(log_probs) * (log_probs - jax.nn.log_softmax(logits))).sum(-1), weight)


def smooth_l1(x: Array, y: Array, weight: Array) -> Array:
  """Huber distance with threshold 1, mean over E. x, y [P, E]."""
  return mean(optax.huber_loss(x.astype(jnp.float32), y.astype(jnp.float32)).mean(-1), weight)


def depth_weights(decay: float, depth: int) -> list[float]:
  """decay ** (d - 1) for d = 1..depth; a decay of 0 trains depth 1 alone."""
  return [float(decay**d) for d in range(depth)]


def total(
  weights: LossWeights, state: Array, logits: Array, labels: Array, teacher: Array, hidden: Array,
  weight: Array,
) -> Array:  # fmt: skip
  """The loss at one depth, before its own weight: the sum of the terms that `weights` names.

  Args:
    state: [P, E'], what the head read; E' = E where a feature is asked for.
    logits: f32[P, V].
    labels: i32[P].
    teacher: f32[P, V], the target's logits.
    hidden: [P, E], the state these come from.
    weight: f32[P].
  """
  loss = jnp.zeros(())
  if weights.hard:
    loss = loss + weights.hard * hard_cross_entropy(logits, labels, weight)
  if weights.soft:
    loss = loss + weights.soft * soft_cross_entropy(logits, teacher, weight)
  if weights.feature:
    loss = loss + weights.feature * smooth_l1(state, hidden, weight)
  return loss
