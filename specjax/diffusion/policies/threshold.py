"""Every slot is committed whose prediction is sure enough; how sure may depend on the place."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Parameter, Policy, Prediction, Probability


class Threshold(NamedTuple):
  """The parameter of `threshold`: the probability f32[B] that suffices; published 0.9."""

  least: Probability = 0.9


@functools.cache
def threshold() -> Policy:
  """LOSSY: commits where the token's probability reaches a threshold.

  Fast-dLLM (Wu et al. 2025, arXiv 2505.22618, section 3.2).

  Measured: 3.0 passes, 93.0 % right (denoising_lists)
  """

  def select(params: Threshold, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    commit = prediction.open & (prediction.confidence >= params.least[:, None])
    return commit, prediction.confidence, memory

  return Policy("threshold", lambda B, W, V: (), select, Threshold)


class EntropyThreshold(NamedTuple):
  """Nats f32[B] that a slot may have, of `entropy_threshold`; published 0.45 to 0.5."""

  most: Parameter = 0.5


@functools.cache
def entropy_threshold() -> Policy:
  """LOSSY: commits where the entropy is small enough.

  dParallel (Chen et al. 2025, arXiv 2509.26488), made for models distilled by `train.distill`.

  Measured: 2.2 passes, 91.0 % right by a student (denoising_lists)
  Train: python -m specjax.train.distill
  """

  def select(
    params: EntropyThreshold, memory: Any, prediction: Prediction
  ) -> tuple[Array, Array, Any]:
    commit = prediction.open & (prediction.entropy <= params.most[:, None])
    return commit, -prediction.entropy, memory

  return Policy("entropy_threshold", lambda B, W, V: (), select, EntropyThreshold)


class Distance(NamedTuple):
  """Parameters of `entropy_distance`.

  Attributes:
    most: f32[B], nats that a slot may have, with what is added; published 0.4.
    slot: f32[B], nats that are added for each slot since the first masked one; published 0.02.
  """

  most: Parameter = 0.4
  slot: Parameter = 0.02


@functools.cache
def entropy_distance() -> Policy:
  """LOSSY: commits where the entropy, and more the farther a slot is, is small enough.

  WeDLM (Liu et al. 2025, arXiv 2512.22737, its distance penalty): text grows from the left, so that
  what is committed is soon read for the last time.

  It was measured with the blocks `streaming-16`, by a model that reads masks last.

  Measured: 1.1 passes, 99.3 % right (denoising_lists)
  """

  def select(params: Distance, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    open_, place = prediction.open, jnp.arange(prediction.open.shape[1], dtype=jnp.float32)[None]
    away = place - jnp.argmax(open_, 1).astype(jnp.float32)[:, None]
    nats = prediction.entropy + params.slot[:, None] * away
    return open_ & (nats < params.most[:, None]), -nats, memory

  return Policy("entropy_distance", lambda B, W, V: (), select, Distance)


class Leap(NamedTuple):
  """Parameters of `local_leap`.

  Attributes:
    anchor: f32[B], the probability that makes an anchor; published 0.9.
    near: f32[B], what neighbours of an anchor must reach; published 0.75.
    radius: i32[B], how far a neighbour may be; published 4.
  """

  anchor: Probability = 0.9
  near: Probability = 0.75
  radius: Parameter = 4


@functools.cache
def local_leap() -> Policy:
  """LOSSY: commits by a threshold that is lower near anchors.

  LocalLeap (2025, arXiv 2510.07081).

  Measured: 2.4 passes, 90.5 % right (denoising_lists)
  """

  def select(params: Leap, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    anchor = prediction.open & (prediction.confidence >= params.anchor[:, None])
    slot = jnp.arange(anchor.shape[1], dtype=jnp.int32)
    apart = jnp.abs(slot[:, None] - slot[None])[None]
    beside = (anchor[:, None] & (apart <= params.radius[:, None, None])).any(-1)
    least = jnp.where(beside, params.near[:, None], params.anchor[:, None])
    return prediction.open & (prediction.confidence >= least), prediction.confidence, memory

  return Policy("local_leap", lambda B, W, V: (), select, Leap)


class Levels(NamedTuple):
  """Parameters of `hierarchy`.

  Attributes:
    high: f32[B], the probability that suffices anywhere; published 0.92.
    low: f32[B], what the surest slot of a gap must exceed; published 0.62.
  """

  high: Probability = 0.92
  low: Probability = 0.62


@functools.cache
def hierarchy() -> Policy:
  """LOSSY: commits the surest slot of each masked run, and all above a threshold.

  dInfer (Ma et al. 2025, arXiv 2510.08666), hierarchical decoding.

  Measured: 2.9 passes, 90.2 % right (denoising_lists)
  """

  def select(params: Levels, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    open_, c = prediction.open, prediction.confidence
    begins = open_ & ~jnp.pad(open_, ((0, 0), (1, 0)))[:, :-1]
    run = jnp.cumsum(begins.astype(jnp.int32), 1)
    same = (run[:, :, None] == run[:, None]) & open_[:, None]
    best = jnp.where(same, c[:, None], -1.0).max(-1)
    # Of equal confidences the one on the left wins.
    slot = jnp.arange(c.shape[1], dtype=jnp.int32)
    elder = same & (c[:, None] == c[:, :, None]) & (slot[None] < slot[:, None])[None]
    top = open_ & (c == best) & ~elder.any(-1)
    return (top & (c > params.low[:, None])) | (open_ & (c > params.high[:, None])), c, memory

  return Policy("hierarchy", lambda B, W, V: (), select, Levels)


class Exploration(NamedTuple):
  """Parameters of `explore`; none of them is published.

  Attributes:
    least: f32[B], the probability that suffices in the block.
    ahead: f32[B], the one that suffices past it.
    fewest: i32[B], commits in the block below which a round explores.
  """

  least: Probability = 0.9
  ahead: Probability = 0.97
  fewest: Parameter = 2


@functools.cache
def explore() -> Policy:
  """LOSSY: a threshold, a stricter one after the block, and the most entropy if few slots pass.

  Our approximation of explore-then-exploit ("From Bits to Rounds", 2025, arXiv 2511.21103), of
  which neither code nor settings are public: it commits past the block and where a commit tells
  the most, as the paper says that it does. The blocks need slots `ahead`.

  Measured: 2.6 passes, 84.0 % right (denoising_lists)
  """

  def select(params: Exploration, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    sure = prediction.open & (prediction.confidence >= params.least[:, None])
    past = prediction.masked & ~prediction.open & (prediction.confidence >= params.ahead[:, None])
    lean = sure.sum(1, dtype=jnp.int32) < params.fewest
    most = jnp.argmax(jnp.where(prediction.open & ~sure, prediction.entropy, -jnp.inf), 1)
    probe = jnp.arange(sure.shape[1])[None] == most[:, None]
    commit = sure | past | (probe & lean[:, None] & prediction.open)
    return commit, prediction.confidence, memory

  return Policy("explore", lambda B, W, V: (), select, Exploration, ahead=True)
