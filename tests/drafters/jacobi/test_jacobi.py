"""Jacobi decoding against lists in plain Python, round by round through the shipped loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import Decoder, speculate
from specjax.decoding.method import method as pair
from specjax.drafters import DRAFTERS, fallback, jacobi, prompt_lookup, speculative_jacobi, union
from specjax.drafters.jacobi.guesses import moved, repeated
from specjax.sampling import Settings, request_keys
from specjax.testing import fixed_draft, random_table, table_model
from specjax.verifiers import greedy, target_only, token

V, D, BUDGET = 7, 4, 20
TARGET, PARAMS = table_model(V), random_table(3, V)
BEST = np.asarray(PARAMS["logits"]).argmax(-1)
PROMPTS = [(1, 2, 3, 4, 5, 6), (2,), (5, 1, 5)]


def best(text) -> int:
  """The target's argmax after a text."""
  return int(BEST[text[-2] if len(text) > 1 else V, text[-1]])


def rounds(drafter, verifier, weights=(), prompts=PROMPTS, temperature: float = 0.0):
  """The states of the loop before and after every round."""
  B, T = len(prompts), max(map(len, prompts))
  tokens = np.zeros((B, T), np.int32)
  for b, prompt in enumerate(prompts):
    tokens[b, : len(prompt)] = prompt
  length = jnp.asarray([len(p) for p in prompts], jnp.int32)
  request = speculate.DecodeRequest(
    Settings(jnp.full(B, temperature), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B)),
    request_keys(1, range(B)), length + BUDGET, jnp.full(2, -1),
  )  # fmt: skip
  method = pair(TARGET, drafter, verifier)
  weights = speculate.Weights(PARAMS, weights)
  capacity = speculate.capacity_for(T, BUDGET, drafter.depth)
  state = speculate.compiled_start(method, weights, jnp.asarray(tokens), length, request, capacity)
  while True:
    yield jax.device_get(state)
    if bool(state.done.all()):
      return
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(1))


def text_of(state, b: int) -> list[int]:
  return state.context.tokens[b, : state.context.length[b]].tolist()


def again(text, count: int) -> list[int]:
  """The last `count` tokens once more."""
  some = list(text)[-count:]
  return [some[i % len(some)] for i in range(count)]


def improved(text, guesses) -> tuple[list[int], int, list[int]]:
  """(the argmax after the text and after every guess, tokens committed, the next guesses)."""
  said = [best([*text, *guesses[:j]]) for j in range(D + 1)]
  accepted = next((j for j in range(D) if guesses[j] != said[j]), D)
  rest = said[accepted + 1 :]
  return said, accepted + 1, (rest + [said[-1]] * D)[:D]


def test_every_guess_is_the_argmax_after_the_one_before():
  states = rounds(jacobi(D + 1), greedy())
  before, several = next(states), 0
  for b, prompt in enumerate(PROMPTS):
    assert before.drafter[b].tolist() == again(prompt, D)
  for after in states:
    for b in range(len(PROMPTS)):
      if before.done[b]:
        continue
      text, guesses = text_of(before, b), before.drafter[b].tolist()
      said, count, new = improved(text, guesses)
      shown = [*text, *guesses[: count - 1], said[count - 1]]
      assert text_of(after, b) == shown[: len(PROMPTS[b]) + BUDGET]
      if not after.done[b]:
        assert after.drafter[b].tolist() == new
        several += count > 1
    before = after
  assert several > 3


@pytest.mark.full
def test_at_temperature_0_speculative_jacobi_is_jacobi():
  pairs = zip(
    rounds(jacobi(D + 1), greedy()), rounds(speculative_jacobi(TARGET, D + 1), token()), strict=True
  )
  for plain, drawn in pairs:
    np.testing.assert_array_equal(plain.context.length, drawn.context.length)
    live = ~plain.done
    np.testing.assert_array_equal(drawn.drafter.logits.argmax(-1)[live], plain.drafter[live])


@pytest.mark.full(but=["union"])
@pytest.mark.parametrize("joined", ["union", "fallback"])
def test_guesses_are_found_among_those_of_others(joined):
  """A union numbers its nodes anew and merges equal ones; of a choice one source drafts alone."""
  own = jacobi(D + 1)
  if joined == "union":
    drafter = union(fixed_draft([[0], [1], [0, 0]], [1, 2, 3]), own)
  else:
    drafter = fallback(prompt_lookup(4, 2, 2), own)
  of = (lambda state: state.drafter[1]) if joined == "union" else lambda s: s.drafter.sources[1]
  states = rounds(drafter, greedy(), ((), ()))
  before, seen, kept = next(states), 0, 0
  for after in states:
    for b in np.flatnonzero(~after.done):
      text, guesses = text_of(before, b), of(before)[b].tolist()
      count = len(text_of(after, b)) - len(text)
      said = improved(text, guesses)[0]
      new = (said + [said[-1]] * 2 * D)[count:][:D]
      old = (guesses + [guesses[-1]] * 2 * D)[count:][:D]
      got = of(after)[b].tolist()
      # A choice may have evaluated a part of them.
      parts = [(said[: k + 1] + guesses[k + 1 :] + [guesses[-1]] * 2 * D) for k in range(D)]
      assert got == new or (joined == "fallback" and any(p[count:][:D] == got for p in parts))
      seen, kept = seen + (got == new), kept + (got == old != new)
    before = after
  assert seen > 3


def test_first_guesses_and_how_they_move():
  text = jnp.asarray([[4, 5, 6, 0], [3, 0, 0, 0]])
  context = speculate.Context(text, jnp.asarray([3, 1]))
  assert repeated(context, 2).tolist() == [[5, 6], [3, 3]]
  assert repeated(context, 5).tolist() == [[4, 5, 6, 4, 5], [3, 3, 3, 3, 3]]
  rows = jnp.asarray([[1, 2, 3]] * 4)
  assert moved(rows, jnp.asarray([0, 1, 2, 9]), 3).tolist() == [
    [1, 2, 3], [2, 3, 3], [3, 3, 3], [3, 3, 3],
  ]  # fmt: skip


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("jacobi-1", "`drafter` must have between 2 and 4096 nodes.*, got 'jacobi-1'"),
    ("speculative_jacobi-1", "must have between 2 and 4096 nodes.*, got 'speculative_jacobi-1'"),
    ("jacobi-8-2", "jacobi takes nodes=8"),
    (
      "lookahead-1,window=7,guesses=7",
      "level=1, window=7, guesses=7: lookahead takes a level of 2 or more",
    ),
    ("lookahead-5,window=0,guesses=7", "a window of 1 or more"),
    ("lookahead-5,window=7,guesses=0", "1 to 1024 guesses"),
    (
      "lookahead-5,window=200,guesses=200",
      r"`\(window \+ guesses\) \(level - 1\)`, the nodes of lookahead, must be at most 1024, "
      r"got 1600\.",
    ),
    ("lookahead-5,window=7,guesses=7,seeded=2", r"`seeded` must be 0 or 1, got 2\."),
    ("speculative_jacobi-4+prompt_lookup", "proposal 'coupled'"),
  ],
)
def test_impossible_numbers_are_an_error(name, words):
  with pytest.raises(ValueError, match=words):
    Decoder(cut(), name)


def test_a_depth_below_1_is_an_error():
  for name, given in (("jacobi", ()), ("speculative_jacobi", (TARGET,))):
    with pytest.raises(
      ValueError, match=f"`nodes` must be at least 2, so that {name} drafts a token, got 1"
    ):
      DRAFTERS[name](*given, nodes=1)


@pytest.mark.full
@pytest.mark.parametrize(
  "name",
  ["jacobi-5", "lookahead-3,window=3,guesses=2", "lookahead-3,window=3,guesses=2,seeded=0",
   "speculative_jacobi-4", "jacobi-4+prompt_lookup-4",
   "prompt_lookup-4,longest=3,shortest=2|lookahead-3,window=3,guesses=2",
   "lookahead-3,window=3,guesses=2+prompt_lookup-3"],
)  # fmt: skip
def test_names_decode_losslessly(name):
  model = cut()
  prompts = [model.chat(q) for q in ("Ada has 3 apples and buys 4. How many?", "What is 2 + 2?")]
  for temperature in (0.0, 0.8):
    rule = "greedy" if temperature == 0 else "target_only"
    plain, drafted = (
      Decoder(model, n, rule, batch=2, temperature=temperature)(prompts, 16) for n in ("none", name)
    )
    assert [r.tokens for r in drafted] == [r.tokens for r in plain]


@pytest.mark.full
def test_target_only_gives_the_tokens_of_plain_sampling():
  *_, plain = rounds(prompt_lookup(2), target_only(), temperature=0.9)
  *_, got = rounds(jacobi(D + 1), target_only(), temperature=0.9)
  for b in range(len(PROMPTS)):
    assert text_of(got, b) == text_of(plain, b)
