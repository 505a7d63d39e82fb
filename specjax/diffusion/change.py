"""What a policy wants of the slots, what of that is allowed, and the canvas after it.

Letters: those of `base`.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.diffusion.base import (
  Canvas,
  Change,
  Params,
  Policy,
  Prediction,
  SlotMask,
  SlotNumbers,
  at_least_one,
)

Records = tuple[Array, Array]
"""(when i32[B, L], log_prob f32[B, L]), see `denoise.DenoiseState`."""


def decided(
  policy: Policy,
  params: Params,
  wanted: Array | Change,
  score: Array,
  prediction: Prediction,
  live: Array,
) -> Change:
  """What happens of what a policy wants, in rows that are `live` bool[B].

  A set of slots is committed, one slot at least. So is what a `Change` commits, once the block has
  had the policy's `rounds`; then nothing else of it is done.

  Raises:
    ValueError: arrays of a wrong shape, or a `Change` of a policy that has no `rounds`.
  """
  B, W = prediction.open.shape
  whose = f"the policy {policy.name!r}"
  checks.array(f"`score` of {whose}", score, SlotNumbers, B=B, W=W)
  if not isinstance(wanted, Change):
    checks.array(f"`commit` of {whose}", wanted, SlotMask, B=B, W=W)
    sure = at_least_one(wanted, score, prediction.open)
    return Change(sure & prediction.masked & live[:, None])
  if policy.rounds is None:
    raise ValueError(f"`rounds` of {whose} must be given, for it returns a Change.")
  for name in ("commit", "replace", "again"):
    if (slots := getattr(wanted, name)) is not None:
      checks.array(f"`{name}` of {whose}", slots, SlotMask, B=B, W=W)
  free = live & (prediction.step < policy.rounds(params, W))
  sure = at_least_one(wanted.commit, score, prediction.open)
  commit = jnp.where(free[:, None], wanted.commit, sure) & prediction.masked & live[:, None]
  ours = prediction.open | (prediction.block & prediction.filled)
  mine = ours & free[:, None] & ~commit
  replace = None if wanted.replace is None else wanted.replace & mine
  again = None if wanted.again is None else wanted.again & mine
  if again is not None and replace is not None:
    again = again & ~replace
  return Change(commit, replace, again, None if wanted.stay is None else wanted.stay & free)


def may_be_open(change: Change, open_: Array) -> Array:
  """bool[B, W]: the slots of the block that are masked before a change or after it."""
  return open_ if change.again is None else open_ | change.again


def applied(
  change: Change,
  canvas: Canvas,
  records: Records,
  at: tuple[Array, Array],
  token: Array,
  nats: Callable[[], Array],
  now: Array,
  noise: Callable[[], Array],
) -> tuple[Canvas, Records]:
  """The canvas and the records after a change.

  Args:
    at: (row i32[B, 1], position i32[B, W]) of the window's slots.
    token: i32[B, W], what slots get.
    nats: () -> f32[B, W], its log-probability.
    now: i32[B], the round.
    noise: () -> i32[B, W], what slots get that are drawn again.
  """
  (when, log_prob), (row, position), L = records, at, canvas.tokens.shape[1]
  tokens, masked = canvas.tokens, canvas.masked
  column = jnp.where(change.commit, position, L)  # L is nowhere
  tokens = tokens.at[row, column].set(token, mode="drop")
  masked = masked.at[row, column].set(False, mode="drop")
  when = when.at[row, column].set(now[:, None], mode="drop")
  of_token = nats()
  log_prob = log_prob.at[row, column].set(of_token, mode="drop")
  if change.replace is not None:
    tokens = tokens.at[row, jnp.where(change.replace, position, L)].set(token, mode="drop")
    column = jnp.where(change.replace & ~canvas.masked[row, position], position, L)
    when = when.at[row, column].set(now[:, None], mode="drop")
    log_prob = log_prob.at[row, column].set(of_token, mode="drop")
  if change.again is not None:
    column = jnp.where(change.again, position, L)
    tokens = tokens.at[row, column].set(noise(), mode="drop")
    masked = masked.at[row, column].set(True, mode="drop")
    when = when.at[row, column].set(-1, mode="drop")
    log_prob = log_prob.at[row, column].set(0.0, mode="drop")
  return canvas._replace(tokens=tokens, masked=masked), (when, log_prob)
