"""Any-subset decoding draws from the joint distribution, in few passes, rows apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax.diffusion import any_subset
from specjax.diffusion.any_subset import AnyOrder
from specjax.diffusion.base import Canvas
from specjax.sampling import DRAFT, RESIDUAL, Noise, Settings, request_keys
from specjax.testing import total_variation
from specjax.testing.enumerate import Script, _combinations, next_distribution, probability

V = 3
SUSPICIOUS = 1e-6


def model_of(log_probs_of) -> AnyOrder:
  """`log_probs_of`: (params, tokens, sees bool[B, L, L]) -> f32[B, L, V]."""

  def others(sees):
    return sees & ~jnp.eye(sees.shape[-1], dtype=bool)[None]

  def draft(params, tokens, known, rank):
    B, L = tokens.shape
    return log_probs_of(params, tokens, others(jnp.broadcast_to(known[:, None], (B, L, L))))

  def joint(params, tokens, known, rank):
    lower = rank[:, None, :] < rank[:, :, None]
    return log_probs_of(params, tokens, others(known[:, None] | lower))

  return AnyOrder(draft, joint)


def from_table(table, tokens, sees):
  """The table is f32[L, (V + 1) ** L, V]: a distribution of its own for whatever a slot may see."""
  L = tokens.shape[1]
  digits = jnp.where(sees, tokens[:, None] + 1, 0)
  seen = (digits * jnp.asarray((V + 1) ** np.arange(L), jnp.int32)[None, None]).sum(-1)
  return jax.nn.log_softmax(table[jnp.arange(L)[None], seen])


TABLE = model_of(from_table)


def random_table(seed: int, L: int):
  table = 1.5 * np.random.default_rng(seed).normal(size=(L, (V + 1) ** L, V))
  return jnp.asarray(table, jnp.float32)


def settings(B: int, temperature=1.0, top_p=1.0) -> Settings:
  one, zero = jnp.ones(B), jnp.zeros(B)
  return Settings(temperature * one, jnp.zeros(B, jnp.int32), top_p * one, zero)


def plain_distribution(table, tokens, slots, temperature=1.0, top_p=1.0) -> dict:
  """One slot after the other, `slots` in their order; without JAX and the loop."""
  table, L = np.asarray(table, np.float64), len(tokens)
  probs = {}

  def fill(text: dict, mass: float, rest):
    if not rest:
      probs[tuple(text[i] for i in range(L))] = mass
      return
    seen = sum((t + 1) * (V + 1) ** i for i, t in text.items())
    for token, p in enumerate(next_distribution(table[rest[0], seen], temperature, top_p=top_p)):
      if p:
        fill(text | {rest[0]: token}, mass * p, rest[1:])

  fill({i: t for i, t in enumerate(tokens) if i not in slots}, 1.0, list(slots))
  return probs


def canvas_of(tokens, slots, B: int):
  """(Canvas, order), the same in B rows."""
  order = np.zeros(len(tokens), np.int32)
  order[slots] = 10 * np.arange(len(slots))  # gaps do not matter
  masked = np.isin(np.arange(len(tokens)), slots)
  wide = (np.broadcast_to(x, (B, len(tokens))) for x in (np.asarray(tokens), masked, order))
  tokens, masked, order = map(jnp.asarray, wide)
  return Canvas(tokens.astype(jnp.int32), masked, jnp.full(B, tokens.shape[1])), order


@functools.partial(
  jax.jit,
  static_argnames=("model", "guesses", "rounds", "source"),
  compiler_options={"xla_backend_optimization_level": 0},
)
def play(model, table, request, state, rows, guesses, rounds, source):
  """All that can happen: row r of the batch is told the outcomes that are the digits of r."""
  script = source(rows)

  def every_round(unfinished, body, carry):
    for _ in range(rounds):
      carry = body(carry)
    return carry

  state = any_subset.advance(
    model, table, request, state, jnp.int32(rounds), guesses=guesses, while_loop=every_round,
    source=lambda key, position: script,
  )  # fmt: skip
  return state, script.record


def enumerated(case, table, model=TABLE, source=Script) -> dict:
  """The distribution of what `rounds` rounds write and plain decoding completes."""
  tokens, slots, guesses, rounds, setting = case

  def arguments(B: int):
    request = any_subset.AnySubsetRequest(settings(B, **setting), request_keys(0, np.zeros(B, int)))
    state = any_subset.start(*canvas_of(tokens, slots, B))
    return model, table, request, state, jnp.arange(B), guesses, rounds, source

  _, shapes = play.eval_shape(*arguments(1))
  state, record = jax.device_get(play(*arguments(_combinations(shapes))))
  weight = np.prod([probability(entry) for entry in record], axis=0)
  ends = np.concatenate([state.tokens, state.filled[:, None]], 1)[weight > 0]
  ends, group = np.unique(ends, axis=0, return_inverse=True)
  probs: dict = {}
  for (*text, filled), mass in zip(
    ends, np.bincount(group.ravel(), weight[weight > 0]), strict=True
  ):
    assert filled >= min(rounds * 2, len(slots))
    for whole, p in plain_distribution(
      table, [int(t) for t in text], slots[filled:], **setting
    ).items():
      probs[whole] = probs.get(whole, 0.0) + mass * p
  return probs


CASES = {  # tokens, slots in the order of filling, guesses, rounds, settings
  "one guess": ([0, 0, 2, 0], [2, 0, 3], 1, 2, {}),
  "two guesses, two rounds": ([0, 0, 0, 0], [2, 0, 3, 1], 2, 2, {}),
  "three guesses": ([0, 0, 0, 0], [1, 2, 0, 3], 3, 1, {}),
  "as many as slots": ([2, 0, 0, 0], [1, 2, 3], 3, 1, {}),
  "more than slots": ([0, 2, 1, 0], [3, 0], 3, 1, {}),
  "cold, cut": ([1, 0, 0, 0], [3, 1, 2], 3, 1, {"temperature": 0.7, "top_p": 0.8}),
}


@pytest.mark.full(but=["two guesses*", "as many*", "cold*", "more than*"])
@pytest.mark.parametrize("case", CASES)
def test_the_distribution_is_that_of_one_slot_after_the_other(case):
  tokens, slots, *_, setting = CASES[case]
  for seed in range(3):
    table = random_table(seed, len(tokens))
    want = plain_distribution(table, tokens, slots, **setting)
    assert total_variation(enumerated(CASES[case], table), want) < 1e-6


class HalfOfQ(Script):
  """Coins that fall True twice as often as p / q."""

  def accept(self, stream, p, q):
    return super().accept(stream, p, q / 2)


def accepted_blindly(params, tokens, known, rank):
  return TABLE.draft(params, tokens, known, rank)


def sees_higher_ranks(params, tokens, known, rank):
  return TABLE.joint(params, tokens, known, -rank)


def row_of_the_next_rank(params, tokens, known, rank):
  p = TABLE.joint(params, tokens, known, rank)
  following = jnp.argsort(rank, 1)[jnp.arange(len(rank))[:, None], jnp.minimum(rank + 1, 3)]
  return jnp.take_along_axis(p, following[..., None], 1)


@pytest.mark.parametrize(
  "flaw", [accepted_blindly, sees_higher_ranks, row_of_the_next_rank, HalfOfQ],
  ids=lambda x: x.__name__,
)  # fmt: skip
def test_flaws_are_seen(flaw):
  case, table = CASES["three guesses"], random_table(0, 4)
  model, source = (TABLE, flaw) if flaw is HalfOfQ else (TABLE._replace(joint=flaw), Script)
  got = enumerated(case, table, model, source)
  assert total_variation(got, plain_distribution(table, *case[:2])) > 1e-2


def p_value(source) -> float:
  """Of what the compiled loop with its real noise writes, in two rounds."""
  tokens, slots, B = [0, 0, 0, 0], [3, 0, 2, 1], 2**13
  table = random_table(0, 4)
  request = any_subset.AnySubsetRequest(settings(B), request_keys(1, np.arange(B)))
  state = any_subset.compiled_start(*canvas_of(tokens, slots, B))
  state = any_subset.compiled_advance(
    TABLE, table, request, state, jnp.int32(99), guesses=2, source=source
  )
  place = V ** np.arange(4)
  observed = np.bincount(np.asarray(state.tokens) @ place, minlength=V**4)
  expected = np.zeros(V**4)
  for text, p in plain_distribution(table, tokens, slots).items():
    expected[np.array(text) @ place] = B * p
  rare = expected < 5
  observed = np.append(observed[~rare], observed[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


@pytest.mark.slow
def test_the_compiled_loop_draws_from_the_distribution():
  assert p_value(Noise) > SUSPICIOUS


def the_same_in_every_round(key, position):
  return Noise(key, jnp.zeros_like(position))


class ResidualReusesTheDraft(Noise):
  def draw(self, stream, probs):
    return super().draw(DRAFT if stream == RESIDUAL else stream, probs)


@pytest.mark.slow
@pytest.mark.parametrize(
  "source", [the_same_in_every_round, ResidualReusesTheDraft], ids=lambda x: x.__name__
)
def test_shared_noise_is_seen(source):
  assert p_value(source) < SUSPICIOUS


L = 6
TOKENS = np.random.default_rng(3).integers(0, V, (3, L)).astype(np.int32)
MASKED = np.array([[0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1]], bool)
END = np.array([6, 5, 4], np.int32)
ORDER = np.array([[0, 3, 1, 5, 4, 2], [0, 0, 0, 0, 0, 0], [9, 7, 8, 1, 0, 0]], np.int32)
HOLES = MASKED & (np.arange(L) < END[:, None])


WIDE = random_table(1, L)
ALONE = jnp.broadcast_to(WIDE[:, :1], WIDE.shape)  # what a slot sees does not matter


def decode(rows, guesses=3, temperature=1.0, table=WIDE, order=ORDER, stop=None):
  rows = np.asarray(rows)
  canvas = Canvas(*(jnp.asarray(x[rows]) for x in (TOKENS, MASKED, END)))
  asked = settings(len(rows), temperature), request_keys(0, rows), stop
  request = any_subset.AnySubsetRequest(*asked)
  state = any_subset.compiled_start(canvas, jnp.asarray(order[rows]))
  return jax.device_get(
    any_subset.compiled_advance(TABLE, table, request, state, jnp.int32(99), guesses=guesses)
  )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_is_its_rows_and_leaves_what_was_given(temperature):
  together = decode(range(3), temperature=temperature)
  np.testing.assert_array_equal(together.filled, HOLES.sum(1))
  np.testing.assert_array_equal(together.tokens[~HOLES], TOKENS[~HOLES])
  for b in range(3):
    alone = decode([b], temperature=temperature)
    np.testing.assert_array_equal(alone.tokens[0], together.tokens[b])
    np.testing.assert_array_equal(alone.passes[0], together.passes[b])


def test_what_masked_slots_held_does_not_matter():
  canvas = Canvas(jnp.asarray(TOKENS), jnp.asarray(MASKED), jnp.asarray(END))
  other = canvas._replace(tokens=jnp.where(jnp.asarray(HOLES), 2 - canvas.tokens, canvas.tokens))
  a, b = (any_subset.start(x, jnp.asarray(ORDER)) for x in (canvas, other))
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("guesses", [1, 3, 8])
def test_there_are_no_more_passes_than_slots(guesses):
  for table in (WIDE, ALONE):
    passes, slots = decode(range(3), guesses, table=table).passes, HOLES.sum(1)
    assert (passes <= slots).all()
    if guesses == 1:
      np.testing.assert_array_equal(passes, slots)
    elif table is ALONE:  # every guess is right: k + 1 slots in two passes
      rounds, rest = divmod(slots, guesses + 1)
      np.testing.assert_array_equal(passes, 2 * rounds + np.minimum(rest, 2))


def test_greedy_tokens_are_those_of_plain_decoding():
  state = decode(range(3), temperature=0.0)
  for b in range(3):
    text = {i: int(t) for i, t in enumerate(TOKENS[b]) if i < END[b] and not HOLES[b, i]}
    for slot in sorted(np.flatnonzero(HOLES[b]), key=lambda i, b=b: (ORDER[b, i], i)):
      seen = sum((t + 1) * (V + 1) ** i for i, t in text.items())
      text[slot] = int(np.argmax(WIDE[slot, seen]))
    np.testing.assert_array_equal(state.tokens[b, : END[b]], [text[i] for i in range(END[b])])


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_text_ends_behind_the_first_end_that_is_filled(stop):
  from_left, ended = np.zeros_like(ORDER), 0
  for guesses in (1, 3):
    whole = decode(range(3), guesses, 0.0, order=from_left)
    cut = decode(range(3), guesses, 0.0, order=from_left, stop=jnp.array([stop, -1]))
    for b in range(3):
      found = np.flatnonzero((whole.tokens[b] == stop) & HOLES[b])
      end = found[0] + 1 if len(found) else END[b]
      assert cut.end[b] == end
      np.testing.assert_array_equal(cut.tokens[b, :end], whole.tokens[b, :end])
      assert cut.filled[b] == cut.total[b] == HOLES[b, :end].sum()
      assert cut.passes[b] <= whole.passes[b]
      ended += end < END[b]
  assert ended
