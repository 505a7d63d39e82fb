"""Uniform noise: tokens are accepted for a round, all other slots are drawn anew, until the text of
likeliest tokens has settled."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.diffusion.base import Change, Count, Parameter, Policy, Prediction, commits


class Renoised(NamedTuple):
  """Parameters of `renoise`.

  Attributes:
    base: params of the policy that says which tokens are accepted.
    steps: i32[B], rounds of a block; published 48.
  """

  base: Params
  steps: Count = 48


class Said(NamedTuple):
  """The base's memory; i32[B, W], what slots get that are committed or accepted."""

  base: Any
  token: Array


def _token(base: Policy, own: Any, prediction: Prediction) -> Array:
  return prediction.token if base.said is None else base.said(own)


@functools.cache
def renoise(base: Policy) -> Policy:
  """LOSSY: what the policy chooses is accepted for a round, and all other slots are drawn anew.

  DiffusionGemma (2026), whose program has it with `entropy_bound-0.1`, `settled` and `cooling`, and
  tokens drawn at temperature 1. No slot is committed but in a block's last round, which commits the
  likeliest token of every slot, whatever was drawn.

  It is made for denoisers of uniform noise. Where noise is absorbing, a slot that is not accepted
  is masked again.

  Measured: 108 of 108 canvases equal (changes)
  """

  def init(B: int, W: int, V: int) -> Said:
    return Said(base.init(B, W, V), jnp.zeros((B, W), jnp.int32))

  def select(params: Renoised, memory: Said, prediction: Prediction):
    wanted, score, own = base.select(params.base, memory.base, prediction)
    accepted = commits(wanted)
    last = (prediction.step + 1 >= params.steps)[:, None]
    token = jnp.where(last, prediction.likeliest, _token(base, own, prediction))
    change = Change(prediction.open & last, replace=accepted, again=~accepted)
    return change, score, Said(own, token)

  def carry(new: Said, old: Said, by: Array) -> Said:
    return new._replace(base=base.carry(new.base, old.base, by))

  return base._replace(
    name=f"{base.name}+renoise",
    init=init,
    select=select,
    parameters=Renoised,
    carry=carry,
    said=lambda memory: memory.token,
    blind=False,
    rounds=lambda params, W: params.steps,
  )


class Settled(NamedTuple):
  """Parameters of `settled`.

  Attributes:
    base: params of the policy that goes first.
    rounds: i32[B], for so many rounds running the likeliest tokens are what they were; published 1.
    most: f32[B], nats, below which their mean entropy lies; published 0.005.
  """

  base: Params
  rounds: Count = 1
  most: Parameter = 0.005


class Last(NamedTuple):
  """The base's memory; what slots get; the likeliest tokens of the round before i32[B, W], and for
  how many rounds i32[B] they have been so."""

  base: Any
  token: Array
  likeliest: Array
  rounds: Array


@functools.cache
def settled(base: Policy) -> Policy:
  """LOSSY: commits the likeliest token of all slots, once these stay and are sure on average.

  DiffusionGemma (2026) stops a canvas so. It is counted over the block's masked slots.

  Measured: 5 of 5 texts equal (changes)
  """

  def init(B: int, W: int, V: int) -> Last:
    zero = jnp.zeros((B, W), jnp.int32)
    return Last(base.init(B, W, V), zero, zero - 1, jnp.zeros(B, jnp.int32))

  def select(params: Settled, memory: Last, prediction: Prediction):
    wanted, score, own = base.select(params.base, memory.base, prediction)
    open_, likeliest = prediction.open, prediction.likeliest
    same = (~open_ | (likeliest == memory.likeliest)).all(1)
    rounds = jnp.where(same, memory.rounds + 1, 0)
    count = jnp.maximum(open_.sum(1, dtype=jnp.float32), 1.0)
    mean = jnp.where(open_, prediction.entropy, 0.0).sum(1) / count
    ends = ((rounds >= params.rounds) & (mean < params.most))[:, None]
    token = jnp.where(ends, likeliest, _token(base, own, prediction))
    if isinstance(wanted, Change):
      wanted = wanted._replace(commit=wanted.commit | (open_ & ends))
    else:
      wanted = wanted | (open_ & ends)
    return wanted, score, Last(own, token, likeliest, rounds)

  def carry(new: Last, old: Last, by: Array) -> Last:
    return new._replace(base=base.carry(new.base, old.base, by))

  rounds = base.rounds
  return base._replace(
    name=f"{base.name}+settled",
    init=init,
    select=select,
    parameters=Settled,
    carry=carry,
    said=lambda memory: memory.token,
    blind=False,
    rounds=None if rounds is None else lambda params, W: rounds(params.base, W),
  )
