"""Every policy against loops written from its paper, one row and one slot at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax.diffusion.base import Prediction, at_least_one
from specjax.diffusion.policies import (
  POLICIES,
  Distance,
  EndLast,
  Exploration,
  Filter,
  Flight,
  Leap,
  Levels,
  Ranked,
  Redundancy,
  Stable,
  Threshold,
)
from specjax.diffusion.policies.end_last import end_last
from specjax.diffusion.policies.r2 import r2

B, W, V = 40, 12, 5


def seen_of(seed: int) -> Prediction:
  """Sharp and flat distributions, open and closed slots, some ties."""
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(B, W, V)) * rng.choice([0.3, 3.0, 9.0], size=(B, W, 1))
  logits[::5, 3] = logits[::5, 7]
  probs = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
  top = np.sort(probs, -1)
  masked = rng.random((B, W)) < 0.7
  masked[:, 2] = True
  block = np.arange(W) < rng.integers(3, W + 1, size=(B, 1))
  open_ = masked & block
  return Prediction(
    token=jnp.asarray(probs.argmax(-1), jnp.int32),
    confidence=jnp.asarray(top[..., -1], jnp.float32),
    entropy=jnp.asarray(-(probs * np.log(probs)).sum(-1), jnp.float32),
    margin=jnp.asarray(top[..., -1] - top[..., -2], jnp.float32),
    log_probs=jnp.asarray(np.log(probs), jnp.float32),
    position=jnp.broadcast_to(jnp.arange(W, dtype=jnp.int32), (B, W)),
    masked=jnp.asarray(masked), open=jnp.asarray(open_), block=jnp.asarray(block),
    step=jnp.asarray(rng.integers(0, 4, B), jnp.int32),
    uniform=jnp.asarray(rng.random((B, W)), jnp.float32), filled=jnp.zeros((B, W), bool),
    text=jnp.zeros((B, W), jnp.int32), likeliest=jnp.asarray(probs.argmax(-1), jnp.int32),
  )  # fmt: skip


def best_first(score, open_):
  """Open slots, the best first; of equals the one on the left."""
  return sorted(np.flatnonzero(open_), key=lambda i: (-score[i], i))


def by_quota(score):
  return lambda s, k: set(best_first(score(s), s["open"])[:k])


def by_factor(s, f):
  order = best_first(s["confidence"], s["open"])
  count = 0
  for n, i in enumerate(order, 1):
    if (n + 1) * (1 - s["confidence"][i]) > f:
      break
    count = n
  return set(order[:count])


def by_frechet(s, delta):
  order = best_first(s["confidence"], s["open"])
  c = [s["confidence"][i] for i in order]
  good = [n for n in range(1, len(c) + 1)
          if max(0, sum(c[:n]) - (n - 1)) - (1 - c[n - 1]) > delta]  # fmt: skip
  return set(order[: max(good, default=0)])


def by_entropy_bound(s, gamma):
  order = best_first(-s["entropy"], s["open"])
  taken, chosen = 0.0, set()
  for i in order:
    if taken > gamma:
      break
    chosen.add(i)
    taken += s["entropy"][i]
  return chosen


def by_leap(s, p):
  anchors = [i for i in range(W) if s["open"][i] and s["confidence"][i] >= p.anchor]
  out = set()
  for i in np.flatnonzero(s["open"]):
    near = any(abs(i - a) <= p.radius for a in anchors)
    if s["confidence"][i] >= (p.near if near else p.anchor):
      out.add(i)
  return out


def by_hierarchy(s, p):
  out = {i for i in np.flatnonzero(s["open"]) if s["confidence"][i] > p.high}
  run: list[int] = []
  for i in range(W + 1):
    if i < W and s["open"][i]:
      run.append(i)
      continue
    if run:
      best = max(run, key=lambda j: (s["confidence"][j], -j))
      if s["confidence"][best] > p.low:
        out.add(best)
    run = []
  return out


def by_flight(s, p):
  blocks = [range(i, min(i + p.size, W)) for i in range(0, W, p.size)]
  out: set[int] = set()
  before = 1.0
  for block in blocks:
    if before < p.added:
      break
    inside = [i for i in block if s["block"][i]]
    todo = [i for i in inside if s["open"][i]]
    sure = [i for i in todo if s["confidence"][i] > p.least]
    full = before >= p.active or block[0] == 0
    out |= set(sure)
    if not sure and full and todo:
      out.add(max(todo, key=lambda i: (s["confidence"][i], -i)))
    before = 1 - len(todo) / max(len(inside), 1)
  return out


def by_warm_up(s, k):
  return (
    set(np.flatnonzero(s["open"]))
    if s["step"] >= k
    else set(best_first(s["confidence"], s["open"])[:1])
  )


def by_distance(s, p):
  todo = np.flatnonzero(s["open"])
  return {i for i in todo if s["entropy"][i] + p.slot * (i - todo[0]) < p.most}


CASES = {
  "random": (np.int32(3), by_quota(lambda s: s["uniform"])),
  "confidence": (np.int32(2), by_quota(lambda s: s["confidence"])),
  "margin": (np.int32(3), by_quota(lambda s: s["margin"])),
  "entropy": (np.int32(1), by_quota(lambda s: -s["entropy"])),
  "left_to_right": (np.int32(2), by_quota(lambda s: -s["position"])),
  "threshold": (
    np.float32(0.8), lambda s, t: {i for i in np.flatnonzero(s["open"]) if s["confidence"][i] >= t},
  ),
  "factor": (np.float32(1.0), by_factor),
  "frechet": (np.float32(0.25), by_frechet),
  "entropy_threshold": (
    np.float32(0.5), lambda s, t: {i for i in np.flatnonzero(s["open"]) if s["entropy"][i] <= t},
  ),
  "entropy_bound": (np.float32(0.3), by_entropy_bound),
  "entropy_distance": (Distance(np.float32(0.65), np.float32(0.1)), by_distance),
  "local_leap": (Leap(np.float32(0.9), np.float32(0.6), np.int32(2)), by_leap),
  "hierarchy": (Levels(np.float32(0.95), np.float32(0.5)), by_hierarchy),
  "in_flight": (Flight(np.int32(3), np.float32(0.8), np.float32(0.3), np.float32(0.6)), by_flight),
  "warm_up": (np.int32(2), by_warm_up),
}  # fmt: skip


def commits(name, params, prediction):
  policy = POLICIES[name]()
  parameters = params if isinstance(params, tuple) else policy.parameters(params)
  rows = jax.tree.map(lambda x: jnp.full(B, x), parameters)
  return policy.select(rows, policy.init(B, W, V), prediction)


@pytest.mark.parametrize("name", CASES)
def test_the_policy_commits_what_its_paper_says(name):
  params, oracle = CASES[name]
  for seed in range(3):
    prediction = seen_of(seed)
    commit, score, _ = commits(name, params, prediction)
    assert commit.shape == score.shape == (B, W)
    rows = {k: np.asarray(v) for k, v in prediction._asdict().items()}
    for b in range(B):
      row = {k: v[b] for k, v in rows.items()}
      got = set(np.flatnonzero(np.asarray(commit[b] & prediction.open[b])))
      assert got == oracle(row, params), (seed, b)


def subset(a, b) -> bool:
  return bool((~a | b).all())


def test_settings_in_which_policies_are_the_same():
  """Section by section of the papers: degenerate settings."""
  for seed in range(3):
    prediction = seen_of(seed)

    def of(name, params, prediction=prediction):
      return np.asarray(commits(name, params, prediction)[0])

    f32 = np.float32
    nothing = np.zeros((B, W), bool)
    assert (of("threshold", f32(1.1)) == nothing).all()
    assert (of("factor", f32(-1e-3)) == nothing).all()
    assert subset(of("factor", f32(0.75)), of("frechet", f32(0.25)))
    first = of("entropy", np.int32(1))
    np.testing.assert_array_equal(of("entropy_bound", f32(0.0)), first)
    np.testing.assert_array_equal(
      of("local_leap", Leap(f32(0.9), f32(0.6), np.int32(0)))
      & (np.asarray(prediction.confidence) >= 0.9),
      of("threshold", f32(0.9)),
    )
    np.testing.assert_array_equal(
      of("local_leap", Leap(f32(0.9), f32(0.9), np.int32(4))), of("threshold", f32(0.9))
    )
    above = of("threshold", f32(0.9))
    np.testing.assert_array_equal(of("hierarchy", Levels(f32(0.9), f32(1.0))), above)
    whole = of("in_flight", Flight(np.int32(W), f32(0.9), f32(0.1), f32(1.0)))
    assert subset(of("threshold", f32(0.9)), whole) and (whole.sum(1) >= 1).all()
    np.testing.assert_array_equal(of("warm_up", np.int32(0)), np.asarray(prediction.open))
    np.testing.assert_array_equal(of("warm_up", np.int32(9)), of("confidence", np.int32(1)))


def test_klass_waits_until_a_distribution_stands_still():
  policy = POLICIES["klass"]()
  params = Stable(jnp.full(B, 0.5), jnp.full(B, 1e-3), jnp.full(B, 2, jnp.int32))
  one, other = seen_of(0), seen_of(1)
  memory = policy.init(B, W, V)
  got = []
  for step, prediction in enumerate((one, one, one, other, other)):
    now = prediction._replace(step=jnp.full(B, step, jnp.int32))
    commit, _, memory = policy.select(params, memory, now)
    got.append(np.asarray(commit))
  sure = {id(s): np.asarray(s.open & (s.confidence > 0.5)) for s in (one, other)}
  nothing = np.zeros((B, W), bool)
  for commit, want in zip(got, (nothing, nothing, sure[id(one)], None, nothing), strict=True):
    if want is not None:
      np.testing.assert_array_equal(commit, want)
  # What moved between the two starts anew: nothing but slots whose distribution hardly changed.
  apart = (np.exp(other.log_probs) * (np.asarray(other.log_probs) - np.asarray(one.log_probs))).sum(
    -1
  )
  np.testing.assert_array_equal(got[3], sure[id(other)] & (apart < 1e-3))


def test_the_filter_is_an_mlp_over_the_window():
  rng = np.random.default_rng(0)
  into, out = rng.normal(size=(7, W)), rng.normal(size=(W, 7))
  b1, b2 = rng.normal(size=7), rng.normal(size=W)
  params = Filter(*(jnp.asarray(x, jnp.float32) for x in (into, b1, out, b2)), jnp.full(B, 0.6))
  prediction = seen_of(2)
  commit, *_ = POLICIES["learned"]().select(params, (), prediction)
  for b in range(B):
    z = np.maximum(into @ np.asarray(prediction.confidence[b], np.float64) + b1, 0)
    final = 1 / (1 + np.exp(-(out @ z + b2)))
    approved = set(np.flatnonzero((final > 0.6) & np.asarray(prediction.open[b])))
    surest = best_first(np.asarray(prediction.confidence[b]), prediction.open[b])[:1]
    assert set(np.flatnonzero(commit[b])) == approved | set(surest)


SCORES = {
  "confidence": lambda seen: seen.confidence,
  "margin": lambda seen: seen.margin,
  "entropy": lambda seen: -seen.entropy,
}


@pytest.mark.parametrize("name", SCORES)
def test_heat_draws_slots_one_after_the_other(name):
  """Pairs of slots, each with the probability of its two orders."""
  one, rows, heat = seen_of(4), 20_000, 0.4
  row = int(np.argmin(np.abs(np.asarray(one.open).sum(1) - 5)))
  many = jax.tree.map(lambda x: jnp.repeat(x[row : row + 1], rows, 0), one)
  noise = np.random.default_rng(7).random((rows, W)).astype(np.float32)
  many = many._replace(uniform=jnp.asarray(noise))
  params = Ranked(jnp.full(rows, 2, jnp.int32), jnp.full(rows, heat))
  commit = np.asarray(POLICIES[name]().select(params, (), many)[0])

  slots = np.flatnonzero(one.open[row])
  score = np.asarray(SCORES[name](one)[row], np.float64)[slots]
  p = np.exp(score / heat) / np.exp(score / heat).sum()
  want, got = [], []
  for i, a in enumerate(slots):
    for j in range(i + 1, len(slots)):
      want.append(rows * p[i] * p[j] * (1 / (1 - p[i]) + 1 / (1 - p[j])))
      got.append((commit[:, a] & commit[:, slots[j]]).sum())
  assert sum(got) == rows and len(got) > 3
  assert stats.chisquare(got, want).pvalue > 1e-3


def test_heat_commits_as_many_slots_whatever_the_noise():
  prediction = seen_of(1)._replace(uniform=jnp.zeros((B, W)))
  for heat in (1e-3, 1.0, 1e3):
    params = Ranked(jnp.full(B, 3, jnp.int32), jnp.full(B, heat))
    commit = POLICIES["confidence"]().select(params, (), prediction)[0]
    np.testing.assert_array_equal(commit.sum(1), np.minimum(prediction.open.sum(1), 3))


@pytest.mark.parametrize("name", ["confidence", "threshold", "entropy", "frechet"])
def test_ends_wait_until_nothing_else_is_open(name):
  (parameter, oracle), ends = CASES[name], [1, 3]
  base = POLICIES[name]()
  rows = jax.tree.map(lambda x: jnp.full(B, x), base.parameters(parameter))
  params = EndLast(rows, jnp.tile(jnp.asarray([ends], jnp.int32), (B, 1)))
  for seed in range(2):
    prediction = seen_of(seed)
    only = jnp.asarray(np.arange(B) % 3 == 0)[:, None]  # rows in which all slots are ends
    prediction = prediction._replace(token=jnp.where(only, 3, prediction.token))
    commit, score, _ = end_last(base).select(params, base.init(B, W, V), prediction)
    seen = {k: np.asarray(v) for k, v in prediction._asdict().items()}
    for b in range(B):
      row = {k: v[b] for k, v in seen.items()}
      others = row["open"] & ~np.isin(row["token"], ends)
      waits = row["open"] & ~others if others.any() else np.zeros(W, bool)
      want = oracle(row | {"open": row["open"] & ~waits}, parameter)
      assert set(np.flatnonzero(np.asarray(commit[b]) & row["open"])) == want, (seed, b)
      assert (score[b][waits] == -np.inf).all() and np.isfinite(
        score[b][~waits & row["open"]]
      ).all()


def test_every_policy_is_tested():
  # The last two in test_schedules and test_changes.
  elsewhere = {"klass", "learned", "explore", "origin", "remdm", "wino", "remask"}
  assert set(CASES) | elsewhere == set(POLICIES)


def test_exploration_reaches_past_the_block_and_probes_lean_rounds():
  params = Exploration(jnp.full(B, 0.9), jnp.full(B, 0.97), jnp.full(B, 2, jnp.int32))
  for seed in range(3):
    prediction = seen_of(seed)
    commit = np.asarray(POLICIES["explore"]().select(params, (), prediction)[0])
    for b in range(B):
      c, open_ = np.asarray(prediction.confidence[b]), np.asarray(prediction.open[b])
      want = {i for i in np.flatnonzero(open_) if c[i] >= 0.9}
      rest = [i for i in np.flatnonzero(open_) if i not in want]
      if len(want) < 2 and rest:
        want |= {max(rest, key=lambda i: (prediction.entropy[b, i], -i))}
      want |= {i for i in np.flatnonzero(np.asarray(prediction.masked[b]) & ~open_) if c[i] >= 0.97}
      assert set(np.flatnonzero(commit[b])) == want, (seed, b)


def r2_by_hand(row, memory, base, p):
  """One round of the three rules; memory is a dict slot -> (token, rounds)."""
  c, token, open_, block = (row[k] for k in ("confidence", "token", "open", "block"))
  taken = {i for i in np.flatnonzero(open_) if c[i] >= base} or set(best_first(c, open_)[:1])
  left = [bool(open_[i]) and i not in taken for i in range(W)]
  found = set()
  for i in range(W - 2):
    if all(block[i : i + 3]) and sum(left[i : i + 3]) >= 2:
      of = [j for j in range(i, i + 3) if left[j]]
      if np.mean([c[j] for j in of], dtype=np.float32) >= p["cluster"]:
        found |= set(of)
  taken |= found
  left = [bool(open_[i]) and i not in taken for i in range(W)]
  run: list[int] = []
  for i in range(W + 1):
    if i < W and left[i] and (not run or token[run[-1]] == token[i]):
      run.append(i)
      continue
    if len(run) >= 2 and max(c[j] for j in run) > p["run"]:
      taken.add(max(run, key=lambda j: (c[j], -j)))
    run = [i] if i < W and left[i] else []
  for i in np.flatnonzero(open_):
    count = memory.get(i, (None, 0))
    count = count[1] + 1 if count[0] == token[i] else 1
    if count >= p["rounds"] and c[i] >= p["stay"]:
      taken.add(i)
    memory[i] = (token[i], count)
  for i in range(W):
    if not open_[i] or i in taken:
      memory.pop(i, None)
  return taken


def test_r2_is_its_three_rules_one_after_the_other():
  policy, f32 = r2(POLICIES["threshold"]()), np.float32
  numbers = {"cluster": f32(0.5), "run": f32(0.4), "stay": f32(0.3), "rounds": 2}
  params = Redundancy(Threshold(jnp.full(B, 0.9)), *(jnp.full(B, x) for x in numbers.values()))
  memory = policy.init(B, W, V)
  by_hand: list[dict] = [{} for _ in range(B)]
  for seed in (0, 0, 1, 1):
    prediction = seen_of(seed)
    commit, _, memory = policy.select(params, memory, prediction)
    rows = {k: np.asarray(v) for k, v in prediction._asdict().items()}
    for b in range(B):
      want = r2_by_hand({k: v[b] for k, v in rows.items()}, by_hand[b], 0.9, numbers)
      assert set(np.flatnonzero(np.asarray(commit[b]))) == want, (seed, b)


def test_r2_that_asks_the_impossible_is_its_base():
  base = POLICIES["threshold"]()
  policy, never = r2(base), jnp.full(B, 2.0)
  params = Redundancy(
    low := Threshold(jnp.full(B, 0.8)), never, never, never, jnp.full(B, 3, jnp.int32)
  )
  prediction = seen_of(0)
  got = policy.select(params, policy.init(B, W, V), prediction)[0]
  alone, score, _ = base.select(low, (), prediction)
  np.testing.assert_array_equal(got, at_least_one(alone, score, prediction.open))
