"""Terms of the loss of draft heads, each a mean over the rows that count, in float32.

A new term is a function and its row in TERMS; `LossWeights` and `train.heads --loss` then give its
weight.

Letters: P rows, V vocabulary, E width.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from specjax import checks
from specjax.heads.base import LossWeights


def mean(values: Array, weight: Array) -> Array:
  """Mean of values f32[P] where weight f32[P] is 1; 0 where it is 1 nowhere."""
  return (values * weight).sum() / jnp.maximum(weight.sum(), 1.0)


class Guess(NamedTuple):
  """What a term may read.

  Attributes:
    state: [P, E'], the head's `feature`; E' = E where "feature" has a weight.
    logits: f32[P, V], the head's logits.
    labels: i32[P], the tokens of the text.
    teacher: f32[P, V], the target's logits.
    hidden: [P, E], the target's state from which `teacher` comes.
  """

  state: Array
  logits: Array
  labels: Array
  teacher: Array
  hidden: Array


def hard(x: Guess, weight: Array) -> Array:
  """Cross-entropy with the text, in nats."""
  return mean(optax.softmax_cross_entropy_with_integer_labels(x.logits, x.labels), weight)


def soft(x: Guess, weight: Array) -> Array:
  """Cross-entropy with the target's distribution, in nats."""
  return mean(optax.softmax_cross_entropy(x.logits, jax.nn.softmax(x.teacher)), weight)


def feature(x: Guess, weight: Array) -> Array:
  """Huber distance of the states with threshold 1, mean over E."""
  state, hidden = x.state.astype(jnp.float32), x.hidden.astype(jnp.float32)
  return mean(optax.huber_loss(state, hidden).mean(-1), weight)


TERMS: dict[str, Callable[[Guess, Array], Array]] = {"hard": hard, "soft": soft, "feature": feature}


def depth_weights(decay: float, depth: int) -> list[float]:
  """decay ** (d - 1) for d = 1..depth; a decay of 0 trains depth 1 alone."""
  return [float(decay**d) for d in range(depth)]


def within(logits: Array, labels: Array, most: int) -> Array:
  """bool[P]: whether labels i32[P] are among the `most` best guesses of logits f32[P, V]."""
  own = jnp.take_along_axis(logits, labels[:, None], 1)
  return (logits > own).sum(-1) < most


def chosen(numbers: Sequence[float], like: LossWeights | None = None) -> LossWeights:
  """The weights of `--loss`: those of the terms in the order of TERMS, then the decay.

  Args:
    like: gives what these numbers leave open.

  Raises:
    ValueError: there is no weight, or there are more than there are terms.
  """
  if not 2 <= len(numbers) <= len(TERMS) + 1:
    raise ValueError(
      f"`loss` must be weights of {', '.join(TERMS)}, one or more in this order, then the decay, "
      f"got {' '.join(map(str, numbers))}."
    )
  terms = dict(zip(TERMS, numbers[:-1], strict=False))
  return LossWeights(decay=numbers[-1], within=like.within if like else 0, **terms)


def total(weights: LossWeights, guess: Guess, weight: Array) -> Array:
  """The weighted sum of TERMS at one depth; a guess counts where f32[P] `weight` is 1.

  Raises:
    ValueError: a weight is given for a term that is not in TERMS.
  """
  used = {checks.choice("loss", name, TERMS): scale for name, scale in weights.terms.items()}
  terms = (scale * TERMS[name](guess, weight) for name, scale in used.items() if scale)
  return sum(terms, jnp.zeros(()))
