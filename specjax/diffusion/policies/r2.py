"""Clusters of slots, runs of a token and tokens that stay are committed after another policy."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.diffusion.base import Count, Policy, Prediction, Probability, at_least_one, commits


class Redundancy(NamedTuple):
  """Parameters of `r2`.

  Attributes:
    base: params of the policy that goes first.
    cluster: f32[B], what three neighbours must reach on average; published 0.8.
    run: f32[B], what the best of a run of one token must exceed; published 0.8.
    stay: f32[B], what a token that stays must reach; published 0.8.
    rounds: i32[B], how long it must stay; published 3.
  """

  base: Params
  cluster: Probability = 0.8
  run: Probability = 0.8
  stay: Probability = 0.8
  rounds: Count = 3


class Persistence(NamedTuple):
  """The base's memory; each slot's last token i32[B, W], and for how many rounds it has stayed."""

  base: Any
  token: Array
  rounds: Array


def clusters(left: Array, block: Array, confidence: Array, least: Array) -> Array:
  """bool[B, W]: slots of three neighbours of which two or more are left, and sure on average."""

  def three(x: Array) -> Array:  # sums over slots w, w + 1, w + 2
    padded = jnp.pad(x, ((0, 0), (0, 2)))
    return padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]

  count = three(left.astype(jnp.float32))
  whole = three(block.astype(jnp.float32)) == 3
  mean = three(jnp.where(left, confidence, 0.0)) / jnp.maximum(count, 1.0)
  good = whole & (count >= 2) & (mean >= least[:, None])
  before = jnp.pad(good, ((0, 0), (2, 0)))
  return left & (before[:, 2:] | before[:, 1:-1] | before[:, :-2])


def runs(left: Array, token: Array, confidence: Array, least: Array) -> Array:
  """bool[B, W]: the surest slot of each run of two or more left slots that say the same."""
  W = left.shape[1]
  same = left[:, 1:] & left[:, :-1] & (token[:, 1:] == token[:, :-1])
  number = jnp.cumsum(jnp.pad(~same, ((0, 0), (1, 0)), constant_values=True).astype(jnp.int32), 1)
  mates = (number[:, :, None] == number[:, None]) & left[:, :, None] & left[:, None]
  slot = jnp.arange(W)
  better = confidence[:, None] > confidence[:, :, None]
  elder = (confidence[:, None] == confidence[:, :, None]) & (slot[None] < slot[:, None])[None]
  best = left & ~(mates & (better | elder)).any(-1)
  return best & (mates.sum(-1) >= 2) & (confidence > least[:, None])


@functools.cache
def r2(base: Policy) -> Policy:
  """LOSSY: adds confident clusters of three, one slot of each run, and stable tokens.

  R2-dLLM (2026, arXiv 2604.18995), its three rules one after the other on what is left. Where the
  policy that goes first names no open slot, its best one is committed before them.

  The published program takes tokens and probabilities of the second and third rule from the logits
  as they are, whatever token was drawn; here all rules see the token that would be committed. At
  temperature 0 these are the same.

  Measured: 2.7 passes, 91.0 % right (denoising_lists)
  """

  def init(B: int, W: int, V: int) -> Persistence:
    return Persistence(
      base.init(B, W, V), jnp.full((B, W), -1, jnp.int32), jnp.zeros((B, W), jnp.int32)
    )

  def select(
    params: Redundancy, memory: Persistence, prediction: Prediction
  ) -> tuple[Array, Array, Any]:
    wanted, score, own = base.select(params.base, memory.base, prediction)
    commit = at_least_one(commits(wanted), score, prediction.open)
    left = prediction.open & ~commit
    commit = commit | clusters(left, prediction.block, prediction.confidence, params.cluster)
    commit = commit | runs(
      prediction.open & ~commit, prediction.token, prediction.confidence, params.run
    )
    count = jnp.where(prediction.token == memory.token, memory.rounds + 1, 1)
    stays = (count >= params.rounds[:, None]) & (prediction.confidence >= params.stay[:, None])
    commit = commit | (prediction.open & stays)
    still = prediction.open & ~commit
    return (
      commit,
      score,
      Persistence(own, jnp.where(still, prediction.token, -1), jnp.where(still, count, 0)),
    )

  def carry(new: Persistence, old: Persistence, by: Array) -> Persistence:
    return new._replace(base=base.carry(new.base, old.base, by))

  return Policy(f"{base.name}+r2", init, select, Redundancy, carry, base.ahead)
