"""Prompt lookup against a search in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Context
from specjax.drafters.prompt_lookup import prompt_lookup, suffix_match

S, LIMIT = 24, 3


def random_texts(count: int):
  rng = np.random.default_rng(0)
  tokens = rng.integers(3, size=(count, S)).astype(np.int32)
  return tokens, rng.integers(1, S + 1, size=count).astype(np.int32)


def matched(text: list[int], end: int, limit: int) -> int:
  """How many tokens up to `end` equal the last ones of the text."""
  n = 0
  while n < limit and n <= end and text[end - n] == text[len(text) - 1 - n]:
    n += 1
  return n


def test_suffix_match_equals_brute_force():
  tokens, length = random_texts(200)
  got = jax.jit(suffix_match, static_argnums=2)(tokens, length, LIMIT)
  for b, n in enumerate(length):
    text = tokens[b, :n].tolist()
    want = [matched(text, i, LIMIT) for i in range(n - 1)] + [0] * (S - n + 1)
    assert got[b].tolist() == want


def propose(tokens, length, **settings):
  drafter = prompt_lookup(**settings)
  context = Context(jnp.asarray(tokens), jnp.asarray(length))
  draft, state = drafter.propose((), (), (), context, None, None)
  assert state == ()
  return draft


@pytest.mark.parametrize(("longest", "shortest"), [(3, 1), (2, 2), (4, 3)])
def test_the_draft_is_what_came_after_the_best_match(longest, shortest):
  tokens, length = random_texts(200)
  draft = propose(tokens, length, depth=5, longest=longest, shortest=shortest)
  for b, n in enumerate(length):
    text = tokens[b, :n].tolist()
    best = max(range(n - 1), key=lambda i: (matched(text, i, longest), i), default=0)
    found = n > 1 and matched(text, best, longest) >= shortest
    assert draft.valid[b].tolist() == [True, *[found] * 5]
    assert draft.tokens[b, 0] == text[-1]
    if found:
      for i in range(best + 1, best + 6):
        text.append(text[i])  # what was drafted continues the text
      assert draft.tokens[b, 1:].tolist() == text[n:]


def test_a_loop_is_drafted_to_full_depth():
  tokens = np.zeros((1, S), np.int32)
  tokens[0, :7] = [9, 4, 5, 6, 4, 5, 6]
  draft = propose(tokens, np.array([7], np.int32), depth=7)
  assert draft.tokens[0].tolist() == [6, 4, 5, 6, 4, 5, 6, 4]
  assert draft.parent[0].tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("settings", [{"depth": 0}, {"shortest": 0}, {"shortest": 4, "longest": 3}])
def test_impossible_settings_are_an_error(settings):
  with pytest.raises(ValueError, match="expected depth >= 1 and 1 <= shortest <= longest"):
    prompt_lookup(**settings)
