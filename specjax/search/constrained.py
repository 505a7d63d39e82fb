"""Weighted samples of the texts that a predicate in Python allows, for constraints of any kind.

Adaptive weighted rejection sampling in a particle filter, Lipkin et al. 2025 (arXiv 2504.05410).
A particle tries tokens in the order of sampling without replacement until one is allowed, so that
few of the vocabulary are asked about. Its weight keeps account of the mass that was refused.
Without it, as where refused tokens are only masked, prefixes after which little is allowed would
be as frequent as if all were. Where a grammar or a regular expression says the same, processors are
faster, and any drafter serves.

Letters: K particles, S capacity of texts, T prompt length, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, speculate, switches
from specjax.base import Cache, Params, Target
from specjax.decoding.batching import check_model, read
from specjax.decoding.decoder import pad_to_bucket
from specjax.models.cache import read_one
from specjax.names.load import Model, Prompt
from specjax.sampling import Settings, warp

Allowed = Callable[[tuple[int, ...]], bool]


class Particle(NamedTuple):
  """A weighted text.

  Attributes:
    tokens: the new ids, the stop token included; fewer where nothing more was allowed.
    text: theirs.
    share: of the weight of all particles, 0 to 1; 0 where nothing more was allowed.
    log_weight: nats, not normalised. The mean of exp(log_weight) over the particles estimates,
      without bias, the probability that the model alone writes a text that is allowed.
  """

  tokens: list[int]
  text: str
  share: float
  log_weight: float


def draw(
  log_p: np.ndarray, noise: np.ndarray, allowed: Callable[[int], bool]
) -> tuple[int | None, float]:
  """(a token that is allowed, or None; its log-weight), properly weighted.

  The mean over the noise of weight * (token == t) is p[t] where t is allowed, and else 0. The
  weight is the mass of the tokens that were not refused if the next one in order is allowed too,
  and else p of the token itself.

  Args:
    log_p: f64[V], log-probabilities at which tokens are drawn, -inf where there is none.
    noise: f64[V], standard Gumbel noise.
    allowed: is asked about few tokens, each once.
  """
  left = log_p.copy()  # of the tokens that were not visited

  def likely() -> int | None:
    token = int(np.argmax(left + noise))
    return token if left[token] > -np.inf else None

  while (token := likely()) is not None:
    if allowed(token):
      most = left.max()
      mass = most + np.log(np.exp(left - most).sum())
      left[token] = -np.inf
      after = likely()
      # The last token that is left is all the mass.
      both = after is None or allowed(after)
      return token, float(mass if both else log_p[token])
    left[token] = -np.inf
  return None, -np.inf


def _weights(log_weights: np.ndarray) -> np.ndarray:
  """f64[K], which sum to 1, or are all 0."""
  most = log_weights.max()
  if most == -np.inf:
    return np.zeros(len(log_weights))
  weights = np.exp(log_weights - most)
  return weights / weights.sum()


def effective(log_weights: np.ndarray) -> float:
  """The effective sample size, 1 to K, of log-weights f64[K] that are not all -inf."""
  return float(1 / (_weights(log_weights) ** 2).sum())


def resampled(log_weights: np.ndarray, uniform: float) -> np.ndarray:
  """i64[K], the particles in whose place K equal ones go on; systematic resampling.

  A particle is there K times its share, rounded up or down by one uniform number below 1.
  """
  K = len(log_weights)
  total = np.cumsum(_weights(log_weights))
  points = (np.arange(K) + uniform) / K * total[-1]
  return np.searchsorted(total, points, side="right")


@functools.partial(jax.jit, static_argnames=("target", "particles", "capacity"))
def _start(
  target: Target, params: Params, tokens: Array, length: Array, *, particles: int, capacity: int
) -> Cache:
  """The cache of K rows after a prompt, tokens i32[1, T] of which length i32[1] count."""
  cache, _ = target.prefill(params, tokens, length, capacity)
  return jax.tree.map(lambda x: jnp.repeat(x, particles, 0), cache)


@functools.partial(jax.jit, static_argnames=("target",), donate_argnames=("cache",))
def _next(
  target: Target, params: Params, cache: Cache, tokens: Array, settings: Settings
) -> tuple[Array, Cache]:
  """(log-probabilities f32[K, V] after tokens i32[K], the cache that has them)."""
  logits, cache = read_one(target, params, cache, tokens)
  return warp(logits[:, None], settings)[:, 0], cache


@jax.jit
def _of_rows(cache: Cache, rows: Array) -> Cache:
  return jax.tree.map(lambda x: x[rows], cache)


def _follows(allowed: Allowed, text: tuple[int, ...], token: int) -> bool:
  return allowed((*text, token))


def _filtered(
  model: Model,
  ids: list[int],
  budget: int,
  allowed: Allowed,
  particles: int,
  settings: Settings,
  resample: float,
  rng: np.random.Generator,
) -> list[Particle]:
  K, T, V = particles, pad_to_bucket(len(ids)), model.config.vocab_size
  prompt = np.zeros((1, T), np.int32)
  prompt[0, : len(ids)] = ids
  cache = _start(
    model.target,
    model.params,
    jnp.asarray(prompt),
    jnp.full(1, len(ids), jnp.int32),
    particles=K,
    capacity=-(-speculate.capacity_for(T, budget, 0) // 64) * 64,
  )
  texts: list[tuple[int, ...]] = [()] * K
  last, weights, going = np.full(K, ids[-1], np.int32), np.zeros(K), np.ones(K, bool)
  for n in range(budget):
    if n and effective(weights) < resample * K:
      rows = resampled(weights, rng.random())
      cache = _of_rows(cache, jnp.asarray(rows, jnp.int32))
      texts, last, going = [texts[k] for k in rows], last[rows], going[rows]
      most = weights.max()
      weights = np.full(K, most + np.log(np.exp(weights - most).mean()))
    found, cache = _next(model.target, model.params, cache, jnp.asarray(last), settings)
    log_p = np.asarray(found, np.float64)
    if np.isnan(log_p).any():
      raise FloatingPointError(f"the logits of {model.name} became NaN.")
    for k in np.flatnonzero(going):
      asked = functools.partial(_follows, allowed, texts[k])
      token, more = draw(log_p[k], rng.gumbel(size=V), asked)
      weights[k] += more
      if token is not None:
        texts[k], last[k] = (*texts[k], token), token
      going[k] = token is not None and token not in model.stop
    if not going.any():
      break
  each = zip(texts, _weights(weights).tolist(), weights.tolist(), strict=True)
  return [Particle(list(text), model.decode(text, ids), *weight) for text, *weight in each]


@switches.hold
def constrained(
  model: Model,
  prompts: Sequence[Prompt],
  allowed: Allowed,
  particles: int = 8,
  max_new_tokens: int | Sequence[int] = 128,
  *,
  temperature: float = 1.0,
  resample: float = 0.5,
  seed: int = 0,
) -> list[list[Particle]]:
  """Weighted samples of the texts that a predicate in Python allows.

  The law is that of plain sampling, given that all prefixes of the text are allowed. The shares
  follow it the closer the more particles there are.

  There are K of them after every prompt; see the head of this file.

  Args:
    model: causal.
    prompts: texts, or lists of ids; they are decoded one after the other.
    allowed: says of new ids, one or more, whether a text may begin with them. A stop token ends a
      text, so of ids with one it says whether the text may end there. It is asked about the same
      ids once.
    particles: K, the rows of a pass of the model.
    max_new_tokens: a budget for all, or one per prompt. A text that reaches it without a stop
      token is one of the texts, too.
    temperature: above 0.
    resample: particles are drawn anew, in proportion to their weights, where the effective sample
      size is less than this part of K; 0 never does it.
    seed: of the noise; each prompt has its own.

  Raises:
    ValueError: a model that is not causal, or a number or an answer that is not accepted.
    FloatingPointError: the logits became NaN.
  """
  check_model(model, causal=True)
  if not callable(allowed):
    checks.refuse("allowed", allowed, "a function of a tuple of ids that returns true or false")
  checks.whole("particles", particles, 1, checks.BATCH)
  checks.number("temperature", temperature, above=0)
  checks.number("resample", resample, 0, 1)
  checks.whole("seed", seed, 0, checks.SEED)
  one, none = jnp.ones(particles), jnp.zeros(particles, jnp.int32)
  settings = Settings(temperature * one, none, one, 0 * one)
  found = []
  for r, (ids, budget) in enumerate(zip(*read(model, prompts, max_new_tokens), strict=True)):

    @functools.cache
    def asked(prefix: tuple[int, ...]) -> bool:
      answer = allowed(prefix)
      if not isinstance(answer, bool | np.bool_):
        checks.refuse("allowed(..)", answer, "true or false")
      return bool(answer)

    rng = np.random.default_rng((seed, r))
    found.append(_filtered(model, ids, budget, asked, particles, settings, resample, rng))
  return found
