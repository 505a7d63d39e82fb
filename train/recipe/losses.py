"""Terms of the loss of draft heads, each a mean over the rows that count, in float32.

A new term is a function and its row in TERMS; `LossWeights` and `train.heads --loss` then give its
weight.

Letters: P rows, V vocabulary, E width.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    log_odds: f32[P], what `Head.log_odds` says; None where the head says nothing.
  """

  state: Array
  logits: Array
  labels: Array
  teacher: Array
  hidden: Array
  log_odds: Array | None = None


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


def variations(x: Guess) -> Array:
  """f32[P], total variation of the head's distribution and the target's, 0 to 1."""
  return jnp.abs(jax.nn.softmax(x.logits) - jax.nn.softmax(x.teacher)).sum(-1) / 2


def tv(x: Guess, weight: Array) -> Array:
  """Total variation from the target's distribution: the share of drafts that would be refused."""
  return mean(variations(x), weight)


def reverse_kl(x: Guess, weight: Array) -> Array:
  """KL divergence of the head's distribution from the target's, KL(q || p), in nats."""
  log_q, log_p = jax.nn.log_softmax(x.logits), jax.nn.log_softmax(x.teacher)
  return mean((jnp.exp(log_q) * (log_q - log_p)).sum(-1), weight)


def lk(x: Guess, weight: Array) -> Array:
  """Negative logarithm of the share of drafts that would be accepted, sum of min(p, q), in nats.

  LK loss, "alpha" of SpecForge and "nla" of speculators. It is taken from logarithms, so that a row
  of which nothing is accepted still has a gradient.
  """
  log_q, log_p = jax.nn.log_softmax(x.logits), jax.nn.log_softmax(x.teacher)
  return mean(-jax.nn.logsumexp(jnp.minimum(log_q, log_p), axis=-1), weight)


def confidence(x: Guess, weight: Array) -> Array:
  """Binary cross-entropy of the head's own confidence with the share that would be accepted, 1
  minus the total variation, which is not trained by it; in nats, 0 for a head that has none."""
  if x.log_odds is None:
    return jnp.zeros(())
  share = jax.lax.stop_gradient(1 - variations(x))
  return mean(optax.sigmoid_binary_cross_entropy(x.log_odds, share), weight)


TERMS: dict[str, Callable[[Guess, Array], Array]] = {
  "hard": hard, "soft": soft, "feature": feature, "tv": tv, "reverse_kl": reverse_kl, "lk": lk,
  "confidence": confidence,
}  # fmt: skip


def dpace(right: Sequence[Array], weight: Sequence[Array], alpha: float) -> list[Array]:
  """What each guess weighs by D-PACE, D arrays f32[P]: its share of the expected length.

  With q_d = (1 - alpha) p_d + alpha, where p_d is the probability that the head gives the text's
  token at depth d, depth j weighs the sum over m >= j of q_1 .. q_m.

  Args:
    right: D arrays f32[P], p_d.
    weight: D arrays f32[P], 1 where the guess counts, else 0, which takes it from products and
      sums.
  """
  smooth = [
    jnp.where(w > 0, (1 - alpha) * p + alpha, 1.0) for p, w in zip(right, weight, strict=True)
  ]
  reached = jnp.cumprod(jnp.stack(smooth), 0) * jnp.stack(weight)
  return list(jnp.cumsum(reached[::-1], 0)[::-1] * jnp.stack(weight))


def depth_weights(decay: float, depth: int) -> list[float]:
  """decay ** (d - 1) for d = 1..depth; a decay of 0 trains depth 1 alone."""
  return [float(decay**d) for d in range(depth)]


def within(logits: Array, labels: Array, most: int) -> Array:
  """bool[P]: whether labels i32[P] are among the `most` best guesses of logits f32[P, V]."""
  own = jnp.take_along_axis(logits, labels[:, None], 1)
  return (logits > own).sum(-1) < most


def sure(logits: Array, labels: Array, least: float) -> Array:
  """bool[P]: whether labels i32[P] have more than this probability by logits f32[P, V]."""
  own = jnp.take_along_axis(jax.nn.softmax(logits), labels[:, None], 1)
  return own[:, 0] > least


def chosen(words: Sequence[float | str], like: LossWeights | None = None) -> LossWeights:
  """The weights of `--loss`: NAME=NUMBER for some of the TERMS, `decay`, `within`, `dpace` and
  `units`, or numbers alone, those of the terms in the order of TERMS, then the decay.

  Args:
    like: gives what these leave open, the decay and `within`.

  Raises:
    ValueError: there is no weight above 0, a name is none of these or a number is none, or there
      are more numbers than terms.
  """
  usual = {"within": like.within, "decay": like.decay} if like else {}
  if any(isinstance(word, str) for word in words):
    named = _named(words)
  elif not 2 <= len(words) <= len(TERMS) + 1:
    raise ValueError(
      f"`loss` must be weights of {', '.join(TERMS)}, one or more in this order, then the decay, "
      f"got {' '.join(map(str, words))}."
    )
  else:
    named = dict(zip(TERMS, words[:-1], strict=False)) | {"decay": words[-1]}
  if not any(named.get(name) for name in TERMS):
    raise ValueError(
      f"`loss` must have a weight above 0 for at least one term, got {' '.join(map(str, words))}."
    )
  if named.get("dpace") is not None and "decay" not in named:
    usual["decay"] = 1.0  # it takes the decay's place
  return LossWeights(**usual | {"hard": 0.0} | named)


_REST: dict[str, Callable[[str, Any], Any]] = {
  "decay": functools.partial(checks.number, least=0),
  "dpace": functools.partial(checks.number, least=0, most=1),
  "within": checks.whole,
  "units": functools.partial(checks.number, least=0, most=1),
}


def _named(words: Sequence[float | str]) -> dict[str, Any]:
  """{name: number} of words NAME=NUMBER."""
  numbers = dict.fromkeys(TERMS, functools.partial(checks.number, least=0)) | _REST
  found: dict[str, Any] = {}
  for word in words:
    name, equals, number = str(word).partition("=")
    if not equals or name not in numbers or name in found:
      raise ValueError(
        f"`loss` must be NAME=NUMBER for names among {', '.join(numbers)}, each once, or numbers "
        f"alone, got {' '.join(map(str, words))}."
      )
    try:
      value = int(number) if name == "within" else float(number)
    except ValueError:
      raise ValueError(f"`loss`: {name} must be a number, got {number!r}.") from None
    found[name] = numbers[name](f"loss: {name}", value)
  return found


def total(weights: LossWeights, guess: Guess, weight: Array) -> Array:
  """The weighted sum of TERMS at one depth; a guess counts where f32[P] `weight` is 1.

  Raises:
    ValueError: a weight is given for a term that is not in TERMS.
  """
  used = {checks.choice("loss", name, TERMS): scale for name, scale in weights.terms.items()}
  terms = (scale * TERMS[name](guess, weight) for name, scale in used.items() if scale)
  return sum(terms, jnp.zeros(()))


def weighted(
  weights: LossWeights, guess: Guess, weight: Array, share: Array | None = None
) -> Array:
  """`total`, where each guess also weighs its `share` f32[P]; the mean stays that of the guesses
  that count."""
  if share is None:
    return total(weights, guess, weight)
  both = weight * share
  counted = jnp.maximum(both.sum(), 1.0) / jnp.maximum(weight.sum(), 1.0)
  return total(weights, guess, both) * counted
