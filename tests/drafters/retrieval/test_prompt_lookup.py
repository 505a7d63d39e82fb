"""Prompt lookup against a search in plain Python."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Context
from specjax.drafters.retrieval.prompt_lookup import prompt_lookup, suffix_match

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


@pytest.mark.parametrize(
  ("longest", "shortest", "per_match", "branches"),
  [(3, 1, 0, 1), (2, 2, 0, 1), (4, 3, 0, 1), (3, 1, 1, 1), (4, 2, 2, 2), (3, 1, 0, 3)],
)
def test_the_draft_is_what_came_after_the_best_matches(longest, shortest, per_match, branches):
  tokens, length = random_texts(200)
  depth, drafted = 5, collections.Counter()
  draft = propose(
    tokens, length, nodes=depth + 1, longest=longest, shortest=shortest, per_match=per_match,
    branches=branches,
  )  # fmt: skip
  assert draft.tokens.shape == (200, 1 + branches * depth)
  for b, n in enumerate(length):
    text = tokens[b, :n].tolist()
    found = {i: matched(text, i, longest) for i in range(n - 1)}
    assert draft.tokens[b, 0] == text[-1] and draft.valid[b, 0]
    for branch in range(branches):
      nodes = slice(1 + branch * depth, 1 + (branch + 1) * depth)
      best = max(found, key=lambda i: (found[i], i), default=0)
      sure = found.get(best, 0)
      many = 0 if sure < shortest else min(depth, per_match * sure or depth)
      drafted[many] += 1
      assert draft.valid[b, nodes].tolist() == [i < many for i in range(depth)]
      assert draft.parent[b, nodes].tolist() == [0, *range(nodes.start, nodes.stop - 1)]
      assert draft.depth[b, nodes].tolist() == [1, 2, 3, 4, 5]
      longer = list(text)
      for i in range(best + 1, best + 1 + many):
        longer.append(longer[i])  # what was drafted continues the text
      assert draft.tokens[b, nodes][:many].tolist() == longer[n:]
      if many:
        found = {i: m for i, m in found.items() if text[i + 1] != text[best + 1]}
  assert len(drafted) > 1


def test_a_loop_is_drafted_to_full_depth():
  tokens = np.zeros((1, S), np.int32)
  tokens[0, :7] = [9, 4, 5, 6, 4, 5, 6]
  draft = propose(tokens, np.array([7], np.int32), nodes=8)
  assert draft.tokens[0].tolist() == [6, 4, 5, 6, 4, 5, 6, 4]
  assert draft.parent[0].tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("settings", [{"per_match": -1}, {"branches": 0}])
def test_impossible_numbers_are_an_error(settings):
  with pytest.raises(
    ValueError, match=r"`(per_match|branches)` must be at least [01].*, got (-1|0)"
  ):
    prompt_lookup(**settings)


@pytest.mark.parametrize("settings", [{"nodes": 1}, {"shortest": 0}, {"shortest": 4, "longest": 3}])
def test_impossible_settings_are_an_error(settings):
  with pytest.raises(
    ValueError,
    match="`nodes` must be at least 2 and `shortest` between 1 and `longest`, got nodes=",
  ):
    prompt_lookup(**settings)
