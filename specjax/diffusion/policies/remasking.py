"""Committed tokens that are not believed any more are masked again, fewer than were committed."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Change, Policy, Prediction, Probability, at_least_one


class Wide(NamedTuple):
  """Parameters of `wino`.

  Attributes:
    least: f32[B], the probability that a token must exceed to be committed; published 0.6.
    back: f32[B], the one below which a committed token is masked again; published 0.9.
  """

  least: Probability = 0.6
  back: Probability = 0.9


class Believed(NamedTuple):
  """The parameter of `remask`: the probability f32[B] that suffices; published 0.8 to 0.9."""

  least: Probability = 0.9


def _mine(prediction: Prediction) -> tuple[Array, Array]:
  """(the block's committed slots bool[B, W], the probability f32[B, W] of what slots hold)."""
  now = jnp.take_along_axis(prediction.text, prediction.position, 1)
  nats = jnp.take_along_axis(prediction.log_probs, now[..., None], -1)[..., 0]
  return prediction.filled & prediction.block & ~prediction.masked, jnp.exp(nats)


def _lowest(score: Array, slots: Array, count: Array) -> Array:
  """bool[B, W]: of `slots` the count i32[B] with the lowest score; of equal ones the left."""
  order = jnp.argsort(jnp.where(slots, score, jnp.inf), 1, stable=True)
  return slots & (jnp.argsort(order, 1) < count[:, None])


def _width(params: Any, W: int) -> Array:
  """i32[B], W: a block has at most as many rounds as slots."""
  return jnp.full(params.least.shape, W, jnp.int32)


@functools.cache
def wino() -> Policy:
  """LOSSY: commits by a low threshold, and masks again what a look without it does not confirm.

  WINO (Hong et al. 2025, arXiv 2507.18578, algorithm 1), whose second look is `/shadow`; without it
  a slot is judged by a pass that sees its token. Of m masked slots at most .7 m are committed, or 5
  or 20 where that is less or more. Where pass t commits a(t) > 1, it masks at most a(t - 1) - 1
  slots again, the first pass none. So of M slots at most M - (T - 1) - a(T) are masked after T
  passes, and T <= M.

  Measured: 96 of 96 texts equal (changes)
  """

  def select(params: Wide, memory: Array, prediction: Prediction):
    open_, sure = prediction.open, prediction.confidence
    most = jnp.clip(open_.sum(1) * 7 // 10, 5, 20)
    commit = _lowest(-sure, open_ & (sure > params.least[:, None]), most)
    commit = at_least_one(commit, sure, open_) & open_
    count = commit.sum(1, dtype=jnp.int32)
    mine, now = _mine(prediction)
    doubted = mine & (now < params.back[:, None])
    again = _lowest(now, doubted, jnp.where(count > 1, memory - 1, 0))
    return Change(commit, again=again), sure, count

  return Policy("wino", lambda B, W, V: jnp.ones(B, jnp.int32), select, Wide, rounds=_width)


@functools.cache
def remask() -> Policy:
  """LOSSY: commits all masked slots, and masks again what stays below a threshold, but one.

  dInfer (Ma et al. 2025, arXiv 2510.08666), whose threshold decoder does so on request. Of m masked
  slots and all that the block committed before, m - 1 at most are masked after a pass: the least
  probable. So a block of M slots has at most M passes.

  Measured: 48 of 48 texts equal (changes)
  """

  def select(params: Believed, memory: Any, prediction: Prediction):
    open_ = prediction.open
    mine, now = _mine(prediction)
    score = jnp.where(open_, prediction.confidence, now)
    doubted = (open_ | mine) & (score < params.least[:, None])
    redo = _lowest(score, doubted, open_.sum(1, dtype=jnp.int32) - 1)
    return Change(open_ & ~redo, again=mine & redo), prediction.confidence, memory

  return Policy("remask", lambda B, W, V: (), select, Believed, rounds=_width)
