"""Trigram tables by counting, and the paths that ADED drafts by exhaustive search."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax.base import Context
from specjax.data import datastore, trigrams
from specjax.decoding.decoder import Decoder
from specjax.drafters.retrieval.aded import ADDED, MOST, aded

V, B, S = 6, 12, 40
RNG = np.random.default_rng(0)
TEXTS = [RNG.choice(V, size=30, p=[0.4, 0.2, 0.15, 0.15, 0.07, 0.03]).tolist() for _ in range(3)]


def counted(texts):
  """{(a, b): {c: times}}."""
  table = collections.defaultdict(collections.Counter)
  for text in texts:
    for a, b, c in zip(text, text[1:], text[2:], strict=False):
      table[a, b][c] += 1
  return table


def table_of(texts):
  tokens = np.concatenate([[*text, datastore.SEPARATOR] for text in texts]).astype(np.int32)
  return trigrams.count(tokens, V)


def test_a_table_holds_the_most_frequent_followers():
  wide = [RNG.integers(40, size=3000).tolist()]
  for texts, size in ((TEXTS, V), (wide, 40)):
    tokens = np.concatenate([[*text, datastore.SEPARATOR] for text in texts]).astype(np.int32)
    table, found = trigrams.count(tokens, size), 0
    for (a, b), times in counted(texts).items():
      rows = range(table.start[a], table.start[a + 1])
      (row,) = [i for i in rows if table.second[i] == b]
      want = sorted(times.items(), key=lambda x: (-x[1], x[0]))[: trigrams.FOLLOWERS]
      got = [x for x in table.following[row].tolist() if x >= 0]
      assert got == [c for c, _ in want]
      shares = [n / sum(times.values()) for _, n in want]
      np.testing.assert_allclose(table.share[row, : len(got)], shares, rtol=1e-6)
      found += 1
    assert found == len(table.second) == table.start[-1]


def law(corpus, text, pair, gain):
  """{token: probability} after a pair."""
  own = counted([text])[pair]
  known = corpus[pair]
  listed = sorted(known, key=lambda c: (-known[c], c))[: trigrams.FOLLOWERS]
  triples = enumerate(zip(text, text[1:], text[2:], strict=False))
  places = {c: i for i, (a, b, c) in triples if (a, b) == pair}
  late = sorted((c for c in places if c not in listed), key=lambda c: -places[c])
  total = {c: known[c] / sum(known.values()) + min(gain * own[c], MOST) for c in listed}
  total |= {c: min(gain * own[c], MOST) for c in late[:ADDED]}
  mass = sum(total.values())
  return {c: x / mass for c, x in total.items()} if mass else {}


@pytest.mark.slow
@pytest.mark.full(but=["0.3-0.5"])
@pytest.mark.parametrize(("gain", "least"), [(0.0, 0.0), (0.3, 0.5)])
def test_the_likeliest_paths_are_drafted(gain, least):
  corpus, nodes, depth = counted(TEXTS), 8, 3
  rng = np.random.default_rng(2)
  length = rng.integers(1, S, size=B).astype(np.int32)
  tokens = rng.integers(V, size=(B, S)).astype(np.int32)
  drafter = aded(nodes, V**depth, depth, gain, least)  # no path leaves the beam
  params = jax.tree.map(jnp.asarray, table_of(TEXTS))
  context = Context(jnp.asarray(tokens), jnp.asarray(length))
  draft = jax.jit(lambda c: drafter.propose(params, (), (), c, None, None)[0])(context)
  drafted = silent = 0
  for b, n in enumerate(length):
    text = tokens[b, :n].tolist()
    paths = {(): 1.0}
    for d in range(depth):
      for way in [w for w in paths if len(w) == d]:
        pair = tuple([*text, *way][-2:])
        for c, p in law(corpus, text, pair, gain).items() if len(pair) == 2 else ():
          paths[*way, c] = paths[way] * p
    if max((p for way, p in paths.items() if len(way) == 1), default=0.0) < least:
      silent += 1
      paths = {(): 1.0}
    values = sorted((p for way, p in paths.items() if way and p > 0), reverse=True)[: nodes - 1]
    ways = {0: ()}
    for i in range(1, nodes):
      if draft.valid[b, i]:
        ways[i] = (*ways[int(draft.parent[b, i])], int(draft.tokens[b, i]))
        assert draft.depth[b, i] == len(ways[i])
    got = [way for way in ways.values() if way]
    assert len(set(got)) == len(got) == len(values)
    np.testing.assert_allclose(sorted((paths[w] for w in got), reverse=True), values, rtol=1e-5)
    drafted += len(got)
  assert drafted > 3 * B and (silent > 0) == (least > 0)


@pytest.mark.full
def test_a_corpus_of_answers_drafts_them(tmp_path):
  model, prompt = cut(), "Q: Ann has 3 apples and buys 4.\nA:"
  plain = Decoder(model)([prompt], 24)[0]
  path = tmp_path / "store.npz"
  texts = [model.encode(prompt) + plain.tokens]
  datastore.save(path, datastore.build(texts), model.config.vocab_size)
  decoder = Decoder(model, f"aded-8[{path}]")
  got = decoder([prompt], 24)[0]
  assert got.tokens == plain.tokens and got.passes <= 10 and decoder.name == f"aded-8[{path}]"


def test_impossible_numbers_are_an_error():
  for bad in ({"nodes": 1}, {"beam": 0}, {"gain": -1.0}, {"least": 1.1}, {"nodes": 99, "ahead": 1}):
    with pytest.raises(
      ValueError,
      match=r"`nodes` must be between 2 and .*, `beam` and `ahead` at least 1, .*, got nodes=",
    ):
      aded(**bad)
