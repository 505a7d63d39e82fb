"""History lookup against a list of earlier texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import Decoder
from specjax.base import Context
from specjax.data import datastore
from specjax.drafters.retrieval.history import append, empty, history

S, KEPT = 10, 40


def batches(count: int):
  """Texts of requests, four at a time, and their lengths."""
  rng = np.random.default_rng(0)
  for _ in range(count):
    yield rng.integers(3, size=(4, S)).astype(np.int32), rng.integers(1, S + 1, 4).astype(np.int32)


def kept_after(count: int) -> tuple[list[int], jax.Array]:
  """(the newest tokens as a list, the same on the device)."""
  texts, ring = [-1] * KEPT, empty(KEPT)
  for tokens, length in batches(count):
    ring = jax.jit(append)(ring, tokens, length)
    for row, n in zip(tokens, length, strict=True):
      texts += [-1, *row[:n].tolist()]
  return texts[-KEPT:], ring


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_newest_tokens_are_kept(count):
  texts, ring = kept_after(count)
  assert ring.tolist() == texts


def matched(texts: list[int], end: int, text: list[int], limit: int) -> int:
  n = 0
  while n < min(limit, len(text), end + 1) and texts[end - n] == text[-1 - n]:
    n += 1
  return n


@pytest.mark.parametrize(
  ("longest", "shortest", "per_match"), [(3, 1, 0), (6, 2, 1), (4, 3, 2), (2, 1, 3)]
)
def test_the_draft_is_what_came_after_the_best_match(longest, shortest, per_match):
  texts, ring = kept_after(5)
  drafter, lengths = history(6, longest, shortest, per_match, KEPT), set()
  propose = jax.jit(lambda ring, c: drafter.propose(ring, (), (), c, None, None)[0])
  for tokens, length in batches(20):
    draft = propose(ring, Context(jnp.asarray(tokens), jnp.asarray(length)))
    for b, n in enumerate(length):
      text = tokens[b, :n].tolist()
      best = max(range(KEPT), key=lambda i, text=text: (matched(texts, i, text, longest), i))
      sure = matched(texts, best, text, longest)
      many = 0 if sure < shortest else min(5, per_match * sure or 5)
      want = [*texts[best + 1 : best + 1 + many], -1]
      want = want[: want.index(-1)]  # not across two texts
      assert draft.tokens[b, 1:][draft.valid[b, 1:]].tolist() == want
      assert draft.tokens[b, 0] == text[-1] and draft.valid[b, 0]
      lengths.add(len(want))
  assert len(lengths) > 2


@pytest.mark.slow
def test_an_answer_is_drafted_when_it_is_asked_for_again():
  model, prompts = cut(), ["Q: Ann has 3 apples and buys 4.", "Q: Bob has 9 pears and eats 2."]
  decoder = Decoder(model, "prompt_lookup-4,longest=3,shortest=3|history-8", batch=2)
  first, again = decoder(prompts, 24), decoder(prompts, 24)
  assert [r.tokens for r in again] == [r.tokens for r in first]
  assert sum(r.passes for r in again) < sum(r.passes for r in first) / 2
  assert Decoder(
    model, "history-8,longest=8,shortest=2,per_match=2,kept=100"
  ).weights.drafter.shape == (100,)


@pytest.mark.slow
def test_answers_of_another_day_are_drafted(tmp_path):
  model, prompts = cut(), ["Q: Ann has 3 apples and buys 4.", "Q: Bob has 9 pears and eats 2."]
  first = Decoder(model, "history-8", batch=2)(prompts, 24)
  texts = [model.encode(prompt) + r.tokens for prompt, r in zip(prompts, first, strict=True)]
  datastore.save(file := tmp_path / "store.npz", datastore.build(texts), model.config.vocab_size)
  decoder = Decoder(model, f"history-8[{file}]", batch=2)
  kept = [*texts[0], -1, *texts[1], -1]
  assert decoder.weights.drafter.tolist()[-len(kept) :] == kept
  assert decoder.weights.drafter.shape == (2**15,) and decoder.weights.drafter[0] == -1
  again = decoder(prompts, 24)
  assert [r.tokens for r in again] == [r.tokens for r in first]
  assert sum(r.passes for r in again) < sum(r.passes for r in first) / 2
  short = Decoder(model, f"history-4,longest=2,shortest=2,per_match=1,kept=12[{file}]")
  assert short.weights.drafter.tolist() == kept[-12:]


@pytest.mark.parametrize(
  ("settings", "words"),
  [
    (
      {"nodes": 1},
      "`nodes` must be at least 2, `shortest` between 1 and.*got nodes=1, longest=8, "
      "shortest=2, per_match=2 and kept=3",
    ),
    (
      {"shortest": 9},
      "`shortest` between 1 and `longest`, `per_match` at least 0.*got nodes=8, longest=8, "
      "shortest=9, per_match=2 and kept=3",
    ),
    (
      {"kept": 15},
      r"`kept` at least nodes \+ longest, got nodes=8, longest=8, shortest=2, per_match=2 and "
      "kept=1",
    ),
    (
      {"kept": 2**30},
      r"`kept` must be less than 2\*\*31 / \(longest \+ 1\) tokens, got 1073741824\.",
    ),
  ],
)
def test_impossible_numbers_are_an_error(settings, words):
  with pytest.raises(ValueError, match=words):
    history(**settings)
