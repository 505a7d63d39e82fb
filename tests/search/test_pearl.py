"""PEARL's bookkeeping: the distribution of what it commits, in full, and how much per tick.

Target and draft are tables of the next token given the last one, f32[V, V].
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import DRAFT, Noise, request_keys
from specjax.search import pearl
from specjax.testing.enumerate import Script, probability

BEFORE = 4  # committed when the first tick begins


def tables(seed: int, V: int) -> tuple[np.ndarray, np.ndarray]:
  log_probs = np.exp(np.random.default_rng(seed).normal(size=(2, V, V)))
  return tuple(np.float32(log_probs / log_probs.sum(-1, keepdims=True)))


def tick_of(p, q, block: int, source, draft_source):
  """A tick of a draft and a target that know what their caches would hold.

  (state, the newest committed token i32[B]) -> (the same, (tokens, count, rollback, post)).
  """
  V = len(p)
  log_p, log_q = jnp.log(p), jnp.log(q)

  def tick(carry):
    state, newest = carry
    pending = jnp.concatenate([newest[:, None], state.tokens], 1)
    last = jnp.where(state.post, pending[:, -1], newest)
    noise, tokens, distributions = draft_source(state.key, state.position), [], []
    for i in range(block):
      distributions.append(log_q[last])
      last = noise.draw(DRAFT + i, distributions[-1])
      tokens.append(last)
    # What is not pending was not read: whatever the target says there must not matter.
    known = (jnp.arange(block)[None] == 0) | state.post[:, None]
    target_distribution = jnp.where(known[..., None], log_p[pending], jnp.log(1 / V))
    fresh = jnp.stack(tokens, 1), jnp.stack(distributions, 1)
    after, committed, count, rollback = pearl.tick(state, target_distribution, *fresh, source)
    newest = jnp.take_along_axis(committed, count[:, None] - 1, 1)[:, 0]
    return (after, newest), (committed, count, rollback, state.post)

  return tick


def start(rows: int, block: int, V: int):
  key, position = request_keys(0, np.arange(rows)), jnp.full(rows, BEFORE, jnp.int32)
  return pearl.start(key, position, block, V), jnp.zeros(rows, jnp.int32)


@functools.partial(
  jax.jit,
  static_argnums=(2, 3),
  compiler_options={"xla_backend_optimization_level": 0},
)
def _play(p, q, block: int, ticks: int, rows):
  script, carry, seen = Script(rows), start(len(rows), block, len(p)), []
  tick = tick_of(p, q, block, *[lambda key, position: script] * 2)
  for _ in range(ticks):
    carry, out = tick(carry)
    seen.append(out)
  return seen, script.record


def committed_distribution(
  p, q, block: int, ticks: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
  """(f64[V, .., V], of the next tokens; f64[2^ticks], of who is `post`), by enumeration."""
  V = len(p)
  total = (V ** (block + 1) * 2**block) ** ticks
  seen, record = jax.device_get(_play(p, q, block, ticks, np.arange(total, dtype=np.int32)))
  text = np.full((total, length + block * ticks), -1)
  at, posts = np.zeros(total, int), np.zeros(total, int)
  for number, (committed, count, _, post) in enumerate(seen):
    for i in range(block):
      rows = np.flatnonzero(i < count)
      text[rows, at[rows] + i] = committed[rows, i]
    at, posts = at + count, posts + post * 2**number
  weight = np.prod([probability(entry) for entry in record], 0)
  log_probs = np.zeros((V,) * length)
  prefixes, group = np.unique(text[:, :length], axis=0, return_inverse=True)
  for prefix, mass in zip(prefixes, np.bincount(group.ravel(), weight), strict=True):
    for rest in itertools.product(range(V), repeat=int((prefix < 0).sum())):
      whole = (*prefix[prefix >= 0].tolist(), *rest)
      known = length - len(rest)
      steps = itertools.pairwise((0, *whole))
      log_probs[whole] += mass * np.prod([p[a, b] for a, b in itertools.islice(steps, known, None)])
  return log_probs, np.bincount(posts, weight, 2**ticks)


def target_distribution(p, length: int) -> np.ndarray:
  log_probs = np.ones(())
  for i in range(length):
    log_probs = log_probs[..., None] * (p[0] if i == 0 else p)
  return log_probs


@pytest.mark.full(but=["3-2-2", "2-2-3"])
@pytest.mark.parametrize(
  ("V", "block", "ticks"),
  [(3, 1, 3), (3, 2, 2), (2, 2, 3), (2, 3, 2)],
)
def test_what_is_committed_has_the_targets_distribution(V, block, ticks):
  for seed in range(2):
    p, q = tables(seed, V)
    length = block + 2
    log_probs, modes = committed_distribution(p, q, block, ticks, length)
    assert np.abs(log_probs - target_distribution(p, length)).sum() / 2 < 1e-6
    # All that can follow upon another does: only the first tick is bound to be without pending.
    assert ((modes > 0.01) == (np.arange(2**ticks) % 2 == 0)).all()


def test_another_distribution_would_be_noticed():
  p, q = tables(0, 2)
  wrong = committed_distribution(p, q, 2, 2, 4)[0] - target_distribution(tables(1, 2)[0], 4)
  assert np.abs(wrong).sum() > 0.1


def pair(alpha: float):
  """(p, q) [2, 2], a fair coin for a draft, of which a share alpha is accepted."""
  return np.tile(np.float32([1.5 - alpha, alpha - 0.5]), (2, 1)), np.full((2, 2), np.float32(0.5))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _counts(p, q, block: int, source):
  tick = tick_of(p, q, block, source, Noise)
  return jax.lax.scan(lambda carry, _: tick(carry), start(1000, block, 2), length=80)[1][1]


def simulated(alpha: float, block: int, source=Noise) -> float:
  """Tokens per tick, the first twenty left out."""
  return float(np.asarray(_counts(*pair(alpha), block, source))[20:].mean())


@pytest.mark.parametrize(
  ("alpha", "block", "want"),
  [(0.8, 5, 2.283), (0.9, 8, 3.876), (0.0, 3, 1.0), (1.0, 4, 4.0), (0.6, 1, 1.0)],
)
def test_the_rate_in_closed_form(alpha, block, want):
  got = pearl.rate(alpha, block)
  assert abs(got - want) < 5e-4
  if 0 < alpha < 1:
    a, g = alpha, block
    np.testing.assert_allclose(got, (1 - a**g) / ((1 - a**g + a) * (1 - a)))


@pytest.mark.slow
@pytest.mark.full(but=["0.9-5"])
@pytest.mark.parametrize(("alpha", "block"), [(0.6, 5), (0.8, 5), (0.9, 5)])
def test_ticks_commit_as_much_as_the_closed_form_says(alpha, block):
  assert abs(simulated(alpha, block) / pearl.rate(alpha, block) - 1) < 0.015


@pytest.mark.slow
def test_a_coin_of_the_tick_before_would_be_noticed():
  # The fault of the published code: the first token of a tick is tested with a coin that the last
  # tick has used. Here on purpose, by a source that forgets the position.
  stale = simulated(0.9, 5, lambda key, position: Noise(key, 0 * position))
  assert abs(stale / pearl.rate(0.9, 5) - 1) > 0.05


def test_no_two_ticks_toss_the_same_coins():
  asked = []

  def source(key, position):
    asked.append(position)
    return Noise(key, position)

  tick = tick_of(*tables(0, 3), 3, source, Noise)

  def step(carry, _):
    carry, (_, count, _, post) = tick(carry)
    return carry, (asked[-1], count, post)

  play = jax.jit(lambda: jax.lax.scan(step, start(50, 3, 3), length=8)[1])
  position, count, post = jax.device_get(play())
  assert len(asked) == 1 and (position[0] == BEFORE).all()
  np.testing.assert_array_equal(np.diff(position, axis=0), count[:-1])
  assert count.min() == 1 and count.max() == 3 and post[1:].any(1).all()


def test_a_tick_by_hand():
  # The draft is refused where the target gives it nothing, accepted where it is certain.
  V, G = 4, 3
  sure = jnp.log(jax.nn.one_hot(jnp.arange(V), V))

  def told(*tokens):  # the target says these
    return jnp.stack([sure[t] for t in tokens])[None]

  def tick(state, target, fresh):
    state, tokens, count, rollback = jax.jit(pearl.tick)(
      state, told(*target), jnp.array([fresh]), told(*fresh)
    )
    return state, tokens[0, : int(count[0])].tolist(), int(rollback[0])

  state = pearl.start(request_keys(0, [7]), jnp.array([10]), G, V)
  state, tokens, rollback = tick(state, (2, 0, 0), (1, 1, 1))  # refused at once
  assert (tokens, rollback, bool(state.post[0])) == ([2], 3, False)
  state, tokens, rollback = tick(state, (3, 0, 0), (3, 1, 2))  # 3; 1 2 are pending
  assert (tokens, rollback, bool(state.post[0])) == ([3], 0, True)
  assert state.tokens.tolist() == [[1, 2]]
  state, tokens, rollback = tick(state, (1, 2, 0), (0, 3, 3))  # 1 2 0; 3 3 are pending
  assert (tokens, rollback, bool(state.post[0])) == ([1, 2, 0], 0, True)
  once, tokens, rollback = tick(state, (3, 1, 0), (0, 0, 0))  # the second 3 should be 1
  assert (tokens, rollback, bool(once.post[0])) == ([3, 1], 4, False)
  once, tokens, rollback = tick(state, (3, 3, 1), (0, 0, 0))  # the fresh token is refused
  assert (tokens, rollback, bool(once.post[0])) == ([3, 3, 1], 3, False)
  once, tokens, rollback = tick(state, (2, 3, 0), (0, 0, 0))  # the first pending one is
  assert (tokens, rollback, bool(once.post[0])) == ([2], 5, False)
  assert once.position.tolist() == [10 + 1 + 1 + 3 + 1]


def test_the_state_is_stable_and_rows_are_independent():
  B, G, V = 6, 3, 4
  rng = np.random.default_rng(0)

  def distributions():
    return jax.nn.log_softmax(jnp.asarray(2 * rng.normal(size=(B, G, V)), jnp.float32))

  tick = jax.jit(lambda *args: pearl.tick(*args))
  state = pearl.start(request_keys(0, np.arange(B)), jnp.arange(B, dtype=jnp.int32), G, V)
  few = slice(2, 4)
  some = jax.tree.map(lambda x: x[few], state)
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype), state)
  for _ in range(6):
    fresh = jnp.asarray(rng.integers(V, size=(B, G)), jnp.int32)
    seen = (distributions(), fresh, distributions())
    state, *got = tick(state, *seen)
    some, *alone = tick(some, *(x[few] for x in seen))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == shapes
    for a, b in zip(alone, got, strict=True):
      np.testing.assert_array_equal(a, b[few])
    np.testing.assert_array_equal(some.post, state.post[few])
  assert tick._cache_size() == 2  # of six rows and of two


@pytest.mark.parametrize(("alpha", "block"), [(1.1, 3), (-0.1, 3), (0.5, 0)])
def test_rates_that_cannot_be_are_refused(alpha, block):
  with pytest.raises(
    ValueError, match=f"`alpha` must be between 0 and 1 .*, got {alpha} and {block}"
  ):
    pearl.rate(alpha, block)
