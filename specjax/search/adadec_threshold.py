"""The entropy above which AdaDec looks ahead, learned from texts for a model.

He et al. 2025 (arXiv 2506.08980, section 3.1, and the published program). Of each token of a text
that is right, the entropy before it and whether it was the likeliest are known. A logistic
regression on as many tokens of either kind says how probable the likeliest token is right, given
the entropy. On the tokens that were held out, the probability is chosen from which on saying that
it is right is right most often, and the entropy of that probability is the threshold.

Letters: B batch, T padded length of a text, V vocabulary, E width, n tokens.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from scipy import optimize, special

from specjax import checks, switches
from specjax.base import Params, Target
from specjax.decoding.batching import check_model
from specjax.decoding.decoder import pad_to_bucket
from specjax.names.load import Model

CHUNK = 32  # tokens whose distributions are held at once
HELD_OUT = 0.2
CHOSEN = np.arange(1, 100) / 100  # probabilities that are tried


class Threshold(NamedTuple):
  """What was learned.

  Attributes:
    nats: from this entropy on AdaDec looks ahead.
    accuracy: how often it is right, on tokens that were held out, that the likeliest token is the
      text's below the threshold, and is not above it.
    first: how often the likeliest token was the text's, of all tokens.
    above: how many of all tokens have this entropy or more.
    tokens: how many there were.
  """

  nats: float
  accuracy: float
  first: float
  above: float
  tokens: int


@functools.partial(jax.jit, static_argnames="target")
def _read(target: Target, params: Params, tokens: Array, length: Array) -> tuple[Array, Array]:
  """(entropy f32[T] after each of tokens i32[1, T], whether the next one is the likeliest)."""
  T = tokens.shape[1]
  _, features = target.prefill(params, tokens, length, T)
  after = jnp.roll(tokens[0], -1)

  def one(each: tuple[Array, Array]) -> tuple[Array, Array]:
    log_p = jax.nn.log_softmax(target.head(params, each[0]))
    entropy = -jnp.where(log_p > -jnp.inf, jnp.exp(log_p) * log_p, 0.0).sum()
    return entropy, jnp.argmax(log_p) == each[1]

  return lax.map(one, (features.hidden[0], after), batch_size=CHUNK)


def uncertainty(
  model: Model, texts: Sequence[tuple[Sequence[int], Sequence[bool]]]
) -> tuple[np.ndarray, np.ndarray]:
  """(entropy f64[n] in nats before each token that counts, bool[n] whether it was the likeliest).

  Args:
    texts: (ids, which of them count); the first id of a text does not.
  """
  found = []
  for ids, counted in texts:
    tokens = np.zeros((1, pad_to_bucket(len(ids))), np.int32)
    tokens[0, : len(ids)] = ids
    length = jnp.full(1, len(ids), jnp.int32)
    read = _read(model.target, model.params, jnp.asarray(tokens), length)
    chosen = np.flatnonzero(np.asarray(counted)[1:])
    found.append([np.asarray(x)[chosen] for x in read])
  entropy, first = (np.concatenate(x) for x in zip(*found, strict=True))
  if not np.isfinite(entropy).all():
    raise FloatingPointError(f"the logits of {model.name} became NaN.")
  return entropy.astype(np.float64), first


def regressed(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
  """(w, b) of the probability 1 / (1 + exp(-w x - b)) of y bool[n] given x f64[n].

  The squared slope is penalised by a half, as the published program does.
  """

  def loss(found: np.ndarray) -> tuple[float, np.ndarray]:
    z = found[0] * x + found[1]
    wrong = special.expit(z) - y
    value = np.logaddexp(0, z).sum() - z[y].sum() + found[0] ** 2 / 2
    return float(value), np.array([(wrong * x).sum() + found[0], wrong.sum()])

  w, b = optimize.minimize(loss, np.zeros(2), jac=True, method="BFGS").x
  return float(w), float(b)


@switches.hold
def learned_threshold(
  model: Model, texts: Sequence[tuple[Sequence[int], Sequence[bool]]], *, seed: int = 0
) -> Threshold:
  """The threshold that AdaDec learns for a model, see the head of this file.

  Args:
    model: causal.
    texts: right texts: (ids, which of them count), as a chat template's `encode` gives them of a
      question and its answer.
    seed: of which tokens are held out, and which count for the regression.

  Raises:
    ValueError: a model that is not causal, or texts of which no threshold can be learned: all
      tokens are the likeliest or none is, or entropy does not tell them apart.
    FloatingPointError: the logits became NaN.
  """
  check_model(model, causal=True)
  checks.whole("seed", seed, 0, checks.SEED)
  if not len(checks.sequence("texts", texts, "a list of texts")):
    checks.refuse("texts", texts, "a list of one text or more")
  entropy, first = uncertainty(model, texts)
  rng = np.random.default_rng(seed)
  order = rng.permutation(len(first))
  held, rest = np.split(order, [round(HELD_OUT * len(order))])
  least = min(first[rest].sum(), (~first[rest]).sum())
  if not least or not len(held):
    checks.refuse("texts", f"{len(first)} tokens", "texts with likeliest tokens and others")
  same = np.concatenate([rest[first[rest]][:least], rest[~first[rest]][:least]])
  w, b = regressed(entropy[same], first[same])
  if w >= 0:
    checks.refuse("texts", f"slope {w:.3g}", "texts whose entropy is lower at likeliest tokens")
  probability = special.expit(w * entropy[held] + b)
  right = [float(((probability >= p) == first[held]).mean()) for p in CHOSEN]
  best = int(np.argmax(right))
  nats = max(float((special.logit(CHOSEN[best]) - b) / w), 0.0)
  return Threshold(
    nats, right[best], float(first.mean()), float((entropy >= nats).mean()), len(first)
  )
