"""Slots are committed that are sure and whose distribution has stopped moving."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Knob, Policy, Prediction


class Stable(NamedTuple):
  """Knobs of `klass`.

  Attributes:
    least: f32[B], the probability that a token must exceed.
    moved: f32[B], nats: the divergence from the round before must stay below it,
    rounds: i32[B], for so many rounds running.
  """

  least: Knob = 0.9
  moved: Knob = 0.01
  rounds: Knob = 2


class History(NamedTuple):
  """log_probs f32[B, W, V] of the round before; still i32[B, W], rounds without a move."""

  log_probs: Array
  still: Array


@functools.cache
def klass() -> Policy:
  """LOSSY: commits where c > least and KL(now || before) < moved, for some rounds running.

  KLASS (Kim et al. 2025, arXiv 2511.05664). The numbers are ours, the paper gives none.
  """

  def init(B: int, W: int, V: int) -> History:
    # Before the first round nothing is known: a distribution of -inf is infinitely far from any.
    return History(jnp.full((B, W, V), -jnp.inf), jnp.zeros((B, W), jnp.int32))

  def select(params: Stable, memory: History, prediction: Prediction):
    probs = jnp.exp(prediction.log_probs)
    apart = jnp.where(probs > 0, probs * (prediction.log_probs - memory.log_probs), 0.0).sum(-1)
    still = jnp.where(apart < params.moved[:, None], memory.still + 1, 0)
    sure = prediction.confidence > params.least[:, None]
    commit = prediction.open & sure & (still >= params.rounds[:, None])
    return commit, prediction.confidence, History(prediction.log_probs, still)

  return Policy("klass", init, select, Stable)
