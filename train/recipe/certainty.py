"""Certainty-forcing distillation: what is masked, and the loss. Letters: B batch, T row length.

dParallel (Chen et al. 2025, arXiv 2509.26488).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from specjax.train.recipe import losses


class Masks(NamedTuple):
  """What the student does not see, and what it is to predict.

  Attributes:
    hidden: bool[2, B, T], slots that are masked in the first and in the second pass.
    asked: bool[2, B, T], those of them that count, each in one of the passes.
  """

  hidden: Array
  asked: Array


def masks(key: Array, answer: Array, block: int, share: float | None, whole: bool) -> Masks:
  """Complementary masks of one block, drawn for each row; later blocks are hidden and not asked.

  The block is uniform among those that the answer has.

  Args:
    answer: bool[B, T], a run of slots in each row.
    block: number of slots of a block (static).
    share: share of the block that the first pass hides; None draws it for each row, uniformly.
    whole: whether the block is the whole answer (static).
  """
  of_block, of_slot, of_share = jax.random.split(key, 3)
  hides = jax.random.uniform(of_share, (len(answer), 1)) if share is None else share
  place = jnp.cumsum(answer, 1, dtype=jnp.int32) - 1
  size = answer.sum(1, dtype=jnp.int32)
  blocks = -(-size // block)
  chosen = jax.random.randint(of_block, size.shape, 0, jnp.maximum(blocks, 1))
  begin, end = (chosen * block)[:, None], ((chosen + 1) * block)[:, None]
  segment = answer if whole else answer & (place >= begin) & (place < end)
  after = answer & ~segment & (place >= end)
  drawn = jax.random.uniform(of_slot, answer.shape) < hides
  asked = jnp.stack([segment & drawn, segment & ~drawn])
  return Masks(asked if whole else asked | after[None], asked)


def certainty_loss(
  logits: Array, tokens: Array, asked: Array, weight: float, temperature: float
) -> tuple[Array, dict[str, Array]]:
  """Cross-entropy of the asked slots, and entropy of those that are right, in nats (section 3.2).

  Args:
    logits: f32[B, T, V].
    tokens: i32[B, T], the answers.
    asked: bool[B, T].
    weight: weight of the entropy.
    temperature: temperature of the distribution that is to be certain.
  """
  nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
  log_probs = jax.nn.log_softmax(logits / temperature)
  entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
  right = asked & (logits.argmax(-1) == tokens)
  counts, correct = asked.astype(jnp.float32), right.astype(jnp.float32)
  said, sure = losses.mean(nll, counts), losses.mean(entropy, correct)
  figures = {"cross_entropy": said, "entropy": sure, "accuracy": losses.mean(correct, counts)}
  return said + weight * sure, figures
