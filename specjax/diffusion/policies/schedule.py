"""Schedules: how many slots each step of a block commits, of a number of steps."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.diffusion.base import Count, Policy, Prediction, Probability, commits
from specjax.diffusion.policies.best import best


class Spread(NamedTuple):
  """Parameters of `steps`.

  Attributes:
    base: params of the policy that goes first.
    steps: i32[B], in so many steps a block is full; published a step for every slot.
  """

  base: Params
  steps: Count = 16


@functools.cache
def steps(base: Policy) -> Policy:
  """LOSSY: adds the best slots, so that each block is full after some steps.

  LLaDA's quota (Nie et al. 2025, arXiv 2502.09992): of M slots, step k of s commits
  floor(M / s) + [k < M mod s]. After a quota of one slot, as `confidence` has it, that is all that
  is committed. The published programs count the steps of all blocks together.

  It was measured as `confidence+steps-4`.

  Measured: 4.0 passes, 60.0 % right (denoising_lists)
  """

  def select(params: Spread, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    wanted, score, memory = base.select(params.base, memory, prediction)
    empty = prediction.block & (prediction.open | prediction.filled)  # when the block began
    slots, s = empty.sum(1, dtype=jnp.int32), jnp.maximum(params.steps, 1)
    count = slots // s + (prediction.step < slots % s).astype(jnp.int32)
    return commits(wanted) | best(score, prediction.open, count), score, memory

  return base._replace(name=f"{base.name}+steps", select=select, parameters=Spread)


class Timed(NamedTuple):
  """Parameters of `timesteps`.

  Attributes:
    base: params of the policy that goes first.
    steps: i32[B], how many times there are in a block.
    eps: f32[B], the last time; published 0.001.
  """

  base: Params
  steps: Count = 16
  eps: Probability = 1e-3


class Clock(NamedTuple):
  """The base's memory; i32[B], the next step of the block."""

  base: Any
  step: Array


@functools.cache
def timesteps(base: Policy) -> Policy:
  """LOSSY: adds slots by the best scores, as many as a falling noise level asks for.

  Dream (Ye et al. 2025, arXiv 2508.15487): of m masked slots, the step from time t to s commits
  floor(m (1 - s / t)), the times going evenly from 1 to eps; the last step commits all. Steps that
  would commit none change nothing, and no pass is spent on them. Dream has no blocks: its canvas is
  one block, such as `fixed-256`.

  It was measured as `entropy+timesteps-8`.

  Measured: 8.0 passes, 62.0 % right (denoising_lists)
  """

  def select(params: Timed, memory: Clock, prediction: Prediction) -> tuple[Array, Array, Any]:
    wanted, score, own = base.select(params.base, memory.base, prediction)
    masked, last = prediction.open.sum(1, dtype=jnp.int32), params.steps - 1
    m, n, span = masked.astype(jnp.float32), params.steps.astype(jnp.float32), 1 - params.eps
    # With times t_k = 1 - k span / n, m (1 - s / t) is 1 or more from this step on.
    first = jnp.ceil(n / jnp.maximum(span, 1e-6) - m).astype(jnp.int32)
    step = jnp.minimum(jnp.maximum(memory.step, first), last)
    share = m * span / (n - step.astype(jnp.float32) * span)
    count = jnp.where(step >= last, masked, jnp.maximum(share.astype(jnp.int32), 1))
    commit = commits(wanted) | best(score, prediction.open, count)
    return commit, score, Clock(own, step + 1)

  def init(B: int, W: int, V: int) -> Clock:
    return Clock(base.init(B, W, V), jnp.zeros(B, jnp.int32))

  def carry(new: Clock, old: Clock, by: Array) -> Clock:
    return new._replace(base=base.carry(new.base, old.base, by))

  return base._replace(
    name=f"{base.name}+timesteps", init=init, select=select, parameters=Timed, carry=carry
  )


class Times(NamedTuple):
  """Parameters of `origin`: how many times i32[B] there are in a block, and the last one f32[B]."""

  steps: Count = 16
  eps: Probability = 1e-3


@functools.cache
def origin() -> Policy:
  """LOSSY: commits each slot independently, with the probability of the noise level.

  Dream's `origin` (Ye et al. 2025, arXiv 2508.15487): in the step from time t to s each masked slot
  is committed with probability 1 - s / t, the times going evenly from 1 to eps; in the last step
  all are. So the steps of a slot are all as probable, but the last, which has eps more: each slot
  draws its own when the block begins, and no pass is spent on steps that no slot has drawn.

  It was measured with 8 steps.

  Measured: 7.0 passes, 80.2 % right (denoising_lists)
  """

  def select(params: Times, drawn: Array, prediction: Prediction) -> tuple[Array, Array, Any]:
    drawn = jnp.where(prediction.step[:, None] == 0, prediction.uniform, drawn)
    n, span = params.steps.astype(jnp.float32), jnp.maximum(1 - params.eps, 1e-6)
    step = jnp.minimum(jnp.floor(drawn * (n / span)[:, None]), n[:, None] - 1)
    following = jnp.where(prediction.open, step, jnp.inf).min(1, keepdims=True)
    return prediction.open & (step == following), -step, drawn

  return Policy("origin", lambda B, W, V: jnp.zeros((B, W)), select, Times, blind=True)
