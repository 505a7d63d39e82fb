"""Trees by frequency against tries of tuples and counts in plain Python."""

import collections
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import Decoder
from specjax.base import Context
from specjax.data import datastore
from specjax.drafters import suffix_decoding, trie
from specjax.drafters.retrieval import trie as module
from specjax.drafters.retrieval.history import append, empty

S, KEPT, NODES, AHEAD = 14, 60, 7, 4
RNG = np.random.default_rng(0)
ASKED = RNG.integers(3, size=(30, S)).astype(np.int32), RNG.integers(1, S + 1, 30)
EARLIER = RNG.integers(3, size=(5, S)).astype(np.int32)


def places(ring: list[int], text: list[int], longest: int) -> list[tuple[int, bool, tuple]]:
  """(length of the match, in the text itself, what followed), best places first, once each."""
  found = []
  for source, own in ((ring, False), (text[:-1], True)):
    for end in range(1, len(source) + 1):
      n = 0
      while n < min(longest, len(text), end) and source[end - 1 - n] == text[-1 - n]:
        n += 1
      after = (text if own else ring)[end : end + AHEAD]
      after = after[: after.index(-1)] if -1 in after else after
      found.append((n, own, tuple(after)))
  found = sorted(enumerate(found), key=lambda x: (x[1][0], x[0]), reverse=True)
  return [row for _, row in found]


def grown(rows: list[tuple[int, tuple]], most: int) -> tuple[list[tuple], Fraction]:
  """Best-first growth in a trie of counted texts: (prefixes, the sum of their shares)."""
  count, seen = collections.Counter(), {}
  for i, (times, row) in enumerate(rows):
    for d in range(1, len(row) + 1):
      count[row[:d]] += times
      seen.setdefault(row[:d], i)
  chosen, total = [()], sum(times for times, _ in rows)
  while len(chosen) <= most:
    edge = [x for x in count if x[:-1] in chosen and x not in chosen]
    if not edge:
      break
    chosen.append(min(edge, key=lambda x: (-count[x], len(x), seen[x])))
  return chosen[1:], sum((Fraction(count[x], total) for x in chosen[1:]), Fraction(0))


def of_trie(rows: list, longest: int, shortest: int, own: int):
  best = rows[0][0]
  if best < shortest:
    return [], Fraction(0)
  same = [(own if in_text else 1, row) for n, in_text, row in rows if n == best]
  return grown(same, NODES - 1)


def of_suffixes(rows: list, longest: int, shortest: int, alpha: int):
  best = [], Fraction(0)
  for n in range(longest, shortest - 1, -1):
    for own in (True, False):
      alike = [(1, row) for m, in_text, row in rows if m >= n and in_text == own]
      if alike:
        found = grown(alike, min(alpha * n, NODES - 1))
        best = max(best, found, key=lambda x: x[1])
  return best


@pytest.mark.parametrize("count", [6, 99], ids=["six places", "all places"])
@pytest.mark.parametrize(
  ("build", "oracle", "numbers"),
  [
    (trie, of_trie, (2, 1, 1)),
    (trie, of_trie, (4, 2, 3)),
    (suffix_decoding, of_suffixes, (5, 1, 1)),
    (suffix_decoding, of_suffixes, (4, 2, 3)),
  ],
)
def test_the_tree_is_grown_by_counts(build, oracle, numbers, count, monkeypatch):
  monkeypatch.setattr(module, "PLACES", count)
  monkeypatch.setattr(module, "AHEAD", AHEAD)
  build.cache_clear()
  (tokens, length), sizes, forks = ASKED, set(), 0
  ring = append(empty(KEPT), jnp.asarray(EARLIER), jnp.array([14, 3, 9, 14, 7]))
  drafter = build(NODES, *numbers, kept=KEPT)

  @jax.jit
  def run(ring, context):
    draft, _ = drafter.propose(ring, (), (), context, None, None)
    return draft, drafter.expects(ring, context, draft)

  draft, expected = run(ring, Context(jnp.asarray(tokens), jnp.asarray(length, jnp.int32)))
  for b, n in enumerate(length):
    text = tokens[b, :n].tolist()
    want, total = oracle(places(ring.tolist(), text, numbers[0])[:count], *numbers)
    ways = {0: ()}
    for i in range(1, NODES):
      if draft.valid[b, i]:
        ways[i] = (*ways[int(draft.parent[b, i])], int(draft.tokens[b, i]))
        assert draft.depth[b, i] == len(ways[i])
    got = [*ways.values()][1:]
    assert sorted(got) == sorted(want)
    assert expected[b] == pytest.approx(float(total), abs=1e-5)
    assert draft.tokens[b, 0] == text[-1] and draft.valid[b, 0]
    sizes.add(len(got))
    forks += len({way[:-1] for way in got}) < len(got)
  assert len(sizes) > 1 and forks > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trie", "suffix_decoding"])
def test_an_answer_is_drafted_when_it_is_asked_for_again(name, tmp_path):
  model, prompts = cut(), ["Q: Ann has 3 apples and buys 4.", "Q: Bob has 9 pears and eats 2."]
  decoder = Decoder(model, f"{name}-8", batch=2)
  assert decoder.weights.drafter.shape == (2**15,)
  plain, first, again = Decoder(model, batch=2)(prompts, 24), *(decoder(prompts, 24) for _ in "ab")
  texts = [model.encode(prompt) + r.tokens for prompt, r in zip(prompts, first, strict=True)]
  datastore.save(file := tmp_path / "store.npz", datastore.build(texts), model.config.vocab_size)
  another_day = Decoder(model, f"{name}-8[{file}]", batch=2)(prompts, 24)
  for results in (first, again, another_day):
    assert [r.tokens for r in results] == [r.tokens for r in plain]
  for results in (again, another_day):
    assert sum(r.passes for r in results) < sum(r.passes for r in first) / 1.5


@pytest.mark.parametrize(
  ("build", "settings", "words"),
  [
    (trie, {"nodes": 1}, "`nodes` must be at least 2.*got nodes=1, longest=2"),
    (trie, {"own": 0}, "`own` between 1 and 1000.*kept=32768 and own=0"),
    (suffix_decoding, {"shortest": 9}, "`shortest` between 1 and `longest`.*shortest=9"),
    (suffix_decoding, {"longest": 65}, "`longest` at most 64.*longest=65"),
    (trie, {"kept": 0}, r"`kept` between 1 and 2\*\*24.*kept=0"),
    (suffix_decoding, {"per_match": 0}, "`per_match` between 1 and 1000.*per_match=0"),
  ],
)
def test_impossible_numbers_are_an_error(build, settings, words):
  with pytest.raises(ValueError, match=words):
    build(**settings)
