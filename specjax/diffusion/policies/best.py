"""The open slots of the best scores are committed; each policy has a score, and says how many."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Count, Parameter, Params, Policy, Prediction, Probability
from specjax.sampling import heated


def best(score: Array, open_: Array, count: Array) -> Array:
  """bool[B, W]: the `count` i32[B] open slots of the highest score f32[B, W].

  Of equal scores the one on the left goes first.
  """
  order = jnp.argsort(jnp.where(open_, -score, jnp.inf), axis=1)
  return open_ & (jnp.argsort(order, axis=1) < count[:, None])


def _best(
  name: str,
  score: Callable[[Prediction], Array],
  count: Callable[[Params, Prediction], Array],
  parameters: type,
) -> Policy:
  """The policy that commits the `best` slots by a score."""

  def select(params: Params, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    value = score(prediction)
    return best(value, prediction.open, count(params, prediction)), value, memory

  return Policy(name, lambda B, W, V: (), select, parameters)


def _confidence(prediction: Prediction) -> Array:
  return prediction.confidence


class Quota(NamedTuple):
  """The parameter of policies that ask nothing of the model: i32[B], commits per round."""

  slots: Count = 1


class Ranked(NamedTuple):
  """Parameters of policies whose score alone tells them apart.

  Attributes:
    slots: i32[B], commits per round.
    heat: f32[B]. 0 commits the best slots; else they are drawn one after the other, without
      replacement, from softmax(score / heat) (Dream's alg_temp).
  """

  slots: Count = 1
  heat: Parameter = 0.0


def _quota(name: str, score: Callable[[Prediction], Array]) -> Policy:
  quota = _best(name, score, lambda params, prediction: params.slots, Quota)
  return quota._replace(blind=True)


def _ranked(name: str, score: Callable[[Prediction], Array]) -> Policy:
  """The best by their score; with heat by the Gumbel top-k trick, whose noise is `uniform`."""

  def select(params: Ranked, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    heat = jnp.reshape(params.heat, (-1, 1))
    uniform = jnp.maximum(prediction.uniform, jnp.finfo(jnp.float32).tiny)
    hot = heated(score(prediction), jnp.where(heat > 0, heat, 1.0))
    noisy = hot - jnp.log(-jnp.log(uniform))
    value = jnp.where(heat > 0, noisy, score(prediction))
    return best(value, prediction.open, params.slots), value, memory

  return Policy(name, lambda B, W, V: (), select, Ranked)


@functools.cache
def random() -> Policy:
  """LOSSY: commits slots anywhere in the block; one per round is exact for a random order.

  Nie et al. 2025 (arXiv 2502.09992).

  Measured: 16.0 passes, 90.2 % right (denoising_lists)
  """
  return _quota("random", lambda prediction: prediction.uniform)


@functools.cache
def confidence() -> Policy:
  """LOSSY: commits the slots of the most probable tokens (low-confidence remasking, LLaDA).

  Nie et al. 2025 (arXiv 2502.09992).

  One slot per pass is the model's own decoding. With 4 slots, 60.0 % are right in 4.0 passes.

  Measured: 16.0 passes, 94.2 % right (denoising_lists)
  """
  return _ranked("confidence", _confidence)


@functools.cache
def margin() -> Policy:
  """LOSSY: commits the slots where the likeliest token leads the most (Dream's topk_margin).

  Ye et al. 2025 (arXiv 2508.15487).

  Measured: 16.0 passes, 94.5 % right (denoising_lists)
  """
  return _ranked("margin", lambda prediction: prediction.margin)


@functools.cache
def entropy() -> Policy:
  """LOSSY: commits the slots of the least entropy (Dream's default).

  Ye et al. 2025 (arXiv 2508.15487).

  Measured: 16.0 passes, 92.5 % right (denoising_lists)
  """
  return _ranked("entropy", lambda prediction: -prediction.entropy)


@functools.cache
def left_to_right() -> Policy:
  """LOSSY: commits the next slots; one per round is exact for that order.

  A baseline of ParallelBench (Kang et al. 2025, arXiv 2510.04767).

  Measured: 16.0 passes, 86.8 % right (denoising_lists)
  """
  return _quota("left_to_right", lambda prediction: -prediction.position.astype(jnp.float32))


class WarmUp(NamedTuple):
  """The parameter of `warm_up`: i32[B], the first rounds of a block, which commit one slot each."""

  rounds: Parameter = 2


@functools.cache
def warm_up() -> Policy:
  """LOSSY: commits one slot per round of a block for a while, then all others.

  MDGR's two stages (2026, arXiv 2601.19501), made for short tuples of codes.

  Measured: 3.0 passes, 63.7 % right (denoising_lists)
  """

  def count(params: WarmUp, prediction: Prediction) -> Array:
    return jnp.where(prediction.step >= params.rounds, prediction.open.shape[1], 1)

  return _best("warm_up", _confidence, count, WarmUp)


def _leading(ok: Array) -> Array:
  """i32[B]: how many of bool[B, W] are True before the first that is not."""
  return jnp.cumprod(ok.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)


def _confidences(prediction: Prediction) -> tuple[Array, Array]:
  """(c f32[B, W], the n-th highest confidence of an open slot, then -1; n f32[1, W])."""
  c = -jnp.sort(jnp.where(prediction.open, -prediction.confidence, 1.0), axis=1)
  return c, jnp.arange(1, c.shape[1] + 1, dtype=jnp.float32)[None]


class Factor(NamedTuple):
  """The parameter of `factor`: f of the rule, f32[B]; published 1."""

  most: Parameter = 1.0


@functools.cache
def factor() -> Policy:
  """LOSSY: commits the n surest slots, n the largest with (n + 1) (1 - c_n) <= f.

  Fast-dLLM (Wu et al. 2025, arXiv 2505.22618, section 3.2); c_n is the n-th confidence. The
  published program, where the rule first fails at the very last of several open slots, commits that
  one too; the paper's rule does not, and neither does this.

  Measured: 2.5 passes, 81.5 % right (denoising_lists)
  """

  def count(params: Factor, prediction: Prediction) -> Array:
    c, n = _confidences(prediction)
    return _leading((n + 1) * (1 - c) <= params.most[:, None])

  return _best("factor", _confidence, count, Factor)


class Frechet(NamedTuple):
  """The parameter of `frechet`: d of the rule, f32[B]; published 0.25."""

  delta: Probability = 0.25


@functools.cache
def frechet() -> Policy:
  """LOSSY: commits the n surest slots, by Frechet's bound on all n being right.

  max(..) is Frechet's lower bound on the probability that all n are right, c their confidences.
  Fast-dLLM++ (2026). With all confidences equal this is `factor` with f = 1 - d, otherwise it
  commits no less.

  n is the largest with max(0, sum c - (n - 1)) - (1 - c_n) > d.

  Measured: 2.2 passes, 86.2 % right (denoising_lists)
  """

  def count(params: Frechet, prediction: Prediction) -> Array:
    c, n = _confidences(prediction)
    together = jnp.maximum(jnp.cumsum(c, 1) - (n - 1), 0.0)
    return _leading((together - (1 - c) > params.delta[:, None]) & (c >= 0))

  return _best("frechet", _confidence, count, Frechet)


class EntropyBound(NamedTuple):
  """Nats f32[B] of the slots before one, of `entropy_bound`; published 0.1 to 0.15."""

  most: Parameter = 0.1


@functools.cache
def entropy_bound() -> Policy:
  """LOSSY: commits slots by rising entropy while the entropies before them sum to little.

  EB-Sampler (Ben-Hamu et al. 2025, arXiv 2505.24857): the sum, less its largest term, bounds the
  mutual information of what is committed together.

  Measured: 2.8 passes, 91.0 % right (denoising_lists)
  """

  def count(params: EntropyBound, prediction: Prediction) -> Array:
    H = jnp.sort(jnp.where(prediction.open, prediction.entropy, jnp.inf), axis=1)
    before = jnp.pad(jnp.cumsum(H, 1), ((0, 0), (1, 0)))[:, :-1]
    return ((before <= params.most[:, None]) & jnp.isfinite(H)).sum(1, dtype=jnp.int32)

  return _best("entropy_bound", lambda prediction: -prediction.entropy, count, EntropyBound)
