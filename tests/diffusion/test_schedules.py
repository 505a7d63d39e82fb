"""Schedules against those of LLaDA, Learn2PD and Dream, see `published_loops`."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from published_loops import NEW, B, V, agree, best_first, filter_of, learned_pick, rows

from specjax.diffusion.base import Prediction
from specjax.diffusion.policies import ADDED, POLICIES, Filter
from specjax.diffusion.policies.schedule import Spread, Timed, Times

SCORES = {
  "confidence": lambda p: p.max(-1), "margin": lambda p: np.sort(p)[:, -1] - np.sort(p)[:, -2],
  "entropy": lambda p: (p * np.log(p + 1e-10)).sum(-1),
}  # fmt: skip


def per_row(numbers) -> np.ndarray:
  """A number for every row, all of `numbers` in turn."""
  return np.resize(np.asarray(numbers), B)


@pytest.mark.full(but=["margin"])
@pytest.mark.parametrize("name", SCORES)
def test_steps_that_do_not_divide_a_block(name):
  """LLaDA: n_k = floor(M / s) + [k < M mod s]."""
  steps, policy = per_row(range(1, 13)), ADDED["steps"](POLICIES[name]())

  def pick_of(row):
    s = steps[row]
    return lambda p, left, lo, step: best_first(SCORES[name](p), left)[: 8 // s + (step < 8 % s)]

  params = Spread(rows(POLICIES[name]().parameters()), jnp.asarray(steps, jnp.int32))
  agree(policy, params, pick_of, 8)


def test_steps_beside_a_filter():
  """Learn2PD with fewer steps than slots: the quota of the surest, whatever the filter adds."""
  steps, policy = per_row(range(1, 9)), ADDED["steps"](POLICIES["learned"]())

  def pick_of(row):
    def pick(p, left, lo, step):
      quota = 8 // steps[row] + (step < 8 % steps[row])
      return learned_pick(5, 8, 0.7)(p, left, lo, step) | set(best_first(p.max(-1), left)[:quota])

    return pick

  own = Filter(*map(jnp.float32, filter_of(5, 8)), jnp.full(B, 0.7))
  agree(policy, Spread(own, jnp.asarray(steps, jnp.int32)), pick_of, 8)


@pytest.mark.full(but=["0.001-entropy", "0.237-*"])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("eps", [1e-3, 0.237])  # of which no share is a whole number
def test_timesteps(name, eps):
  """Dream: floor(m (1 - s / t)) slots, between times from 1 to eps; all in the last step."""
  steps, policy = per_row(range(1, 25)), ADDED["timesteps"](POLICIES[name]())

  def pick_of(row):
    t = np.linspace(1, eps, steps[row] + 1)

    def pick(p, left, lo, step):
      last = step == steps[row] - 1
      count = len(left) if last else int(len(left) * (1 - t[step + 1] / t[step]))
      return best_first(SCORES[name](p), left)[:count]

    return pick

  own = rows(POLICIES[name]().parameters())
  params = Timed(own, jnp.asarray(steps, jnp.int32), jnp.full(B, eps, jnp.float32))
  agree(policy, params, pick_of, NEW)


def orders(left: frozenset, step: int, steps: int, eps: float) -> dict[tuple, float]:
  """Dream's `origin`: how probable each order of committing `left` is, idle steps left out."""
  if not left:
    return {(): 1.0}
  t = np.linspace(1, eps, steps + 1)
  p = 1.0 if step == steps - 1 else 1 - t[step + 1] / t[step]
  found: dict[tuple, float] = {}
  for n in range(len(left) + 1):
    for taken in map(frozenset, itertools.combinations(left, n)):
      chance = p**n * (1 - p) ** (len(left) - n)
      if chance:
        for rest, x in orders(left - taken, step + 1, steps, eps).items():
          order = (taken, *rest) if taken else rest
          found[order] = found.get(order, 0.0) + chance * x
  return found


@pytest.mark.parametrize(("steps", "eps"), [(3, 1e-3), (4, 0.5), (1, 0.1)])
def test_origin_commits_each_slot_by_itself(steps, eps):
  R, W = 20000, 3
  policy, rng = POLICIES["origin"](), np.random.default_rng(0)
  params = Times(jnp.full(R, steps, jnp.int32), jnp.full(R, eps, jnp.float32))
  memory, left = policy.init(R, W, V), np.ones((R, W), bool)
  some = jnp.zeros((R, W))
  got: list[tuple] = [()] * R
  for step in range(W):
    left_now = jnp.asarray(left)
    prediction = Prediction(
      some, some, some, some, some, some, left_now, left_now, left_now, jnp.full(R, step),
      jnp.float32(rng.random((R, W))), ~left_now, some, some,
    )  # fmt: skip
    commit, _, memory = policy.select(params, memory, prediction)
    commit = np.asarray(commit)
    assert (commit.any(1) == left.any(1)).all() and not (commit & ~left).any()
    taken = [frozenset(np.flatnonzero(c).tolist()) for c in commit]
    got = [order + ((slots,) if slots else ()) for order, slots in zip(got, taken, strict=True)]
    left &= ~commit
  assert not left.any()
  want = orders(frozenset(range(W)), 0, steps, eps)
  assert set(got) <= set(want)
  for order, x in want.items():
    assert abs(got.count(order) / R - x) <= 4.5 * np.sqrt(x * (1 - x) / R) + 1e-9, order
