"""REST against a search in plain Python, and the datastore against sorted suffixes."""

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import Decoder
from specjax.base import Context
from specjax.cli import main
from specjax.data import datastore
from specjax.drafters.retrieval.rest import occurrences, rest

S = 12
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(3, size=n).tolist() for n in (40, 1, 25, 60, 9)] + [[0, 1, 2] * 12, [2] * 50]


def weights(texts):
  store = datastore.build(texts)
  return jnp.asarray(store.tokens), jnp.asarray(store.order)


def test_suffixes_are_in_order():
  store = datastore.build(TEXTS)
  tokens = store.tokens.tolist()
  assert tokens == [t for text in TEXTS for t in [*text, -1]]
  first = [tokens[i : i + datastore.COMPARED] for i in store.order]
  assert first == sorted(first) and sorted(store.order) == [*range(len(tokens))]


def test_occurrences_are_all_there_are():
  params, (tokens, order) = weights(TEXTS), datastore.build(TEXTS)
  query = RNG.integers(3, size=(300, 6)).astype(np.int32)
  count = RNG.integers(1, 7, size=300).astype(np.int32)
  first, end = jax.jit(occurrences)(params, query, count)
  empty = 0
  for q, n, low, high in zip(query.tolist(), count, first, end, strict=True):
    want = [i for i in order if tokens[i : i + n].tolist() == q[:n]]
    assert order[low:high].tolist() == want
    empty += not want
  assert 20 < empty < 280


def contexts(count: int):
  tokens = RNG.integers(3, size=(count, S)).astype(np.int32)
  return tokens, RNG.integers(1, S + 1, size=count).astype(np.int32)


def continuations(text: list[int], depth: int, longest: int, shortest: int) -> list[tuple]:
  """What followed the longest match, in every text, up to `depth` tokens."""
  for n in range(min(longest, len(text)), shortest - 1, -1):
    found = [
      tuple(store[i + n : i + n + depth])
      for store in TEXTS
      for i in range(len(store) - n + 1)
      if store[i : i + n] == text[-n:]
    ]
    if found:
      return found
  return []


@pytest.mark.parametrize(("longest", "shortest"), [(3, 1), (6, 2), (8, 4)])
def test_the_likeliest_prefixes_are_drafted(longest, shortest):
  tokens, length = contexts(150)
  nodes, depth, sizes = 9, 4, collections.Counter()
  drafter = rest(nodes, longest, shortest, depth)
  run = jax.jit(lambda c: drafter.propose(weights(TEXTS), (), (), c, None, None)[0])
  draft = run(Context(jnp.asarray(tokens), jnp.asarray(length)))
  for b, n in enumerate(length):
    text = tokens[b, :n].tolist()
    found = continuations(text, depth, longest, shortest)
    prefixes = collections.Counter(row[:d] for row in found for d in range(1, len(row) + 1))
    ways = {0: ()}
    for i in range(1, nodes):
      if draft.valid[b, i]:
        parent = int(draft.parent[b, i])
        ways[i] = (*ways[parent], int(draft.tokens[b, i]))
        assert draft.depth[b, i] == len(ways[i])
    got = [way for way in ways.values() if way]
    assert len(set(got)) == len(got) == min(nodes - 1, len(prefixes))
    sizes[len(got)] += 1
    assert draft.tokens[b, 0] == text[-1] and draft.valid[b, 0]
    if len(found) <= 32:  # all are read
      best = sorted(((c, -len(w)) for w, c in prefixes.items()), reverse=True)[: len(got)]
      assert sorted(((prefixes[w], -len(w)) for w in got), reverse=True) == best
    else:
      assert set(got) <= set(prefixes)
  assert len(sizes) > 2


@pytest.mark.slow
def test_nothing_is_found_across_two_texts():
  drafter, store = rest(4, 2, 2, 3), weights([[5, 6], [7, 8, 9]])
  for text, want in (([6, 7], []), ([5, 6], []), ([7, 8], [9])):
    context = Context(jnp.asarray([[*text, 0, 0]]), jnp.asarray([2]))
    draft = drafter.propose(store, (), (), context, None, None)[0]
    assert draft.tokens[0, 1:][draft.valid[0, 1:]].tolist() == want


@pytest.mark.slow
def test_ids_beyond_16_bits_are_kept(tmp_path):
  path = tmp_path / "store.npz"
  datastore.save(path, datastore.build([[70000, 1, 2**17]]), 2**18)
  store = datastore.load(str(path), 2**18)
  context = Context(jnp.asarray([[70000, 1]]), jnp.asarray([2]))
  draft = rest(3, 2, 1, 1).propose((*map(jnp.asarray, store),), (), (), context, None, None)[0]
  assert draft.tokens[0, 1] == 2**17 and draft.valid[0].tolist() == [True, True, False]


@pytest.mark.slow
def test_a_datastore_of_answers_drafts_them(tmp_path):
  model, prompt = cut(), "Q: Ann has 3 apples and buys 4.\nA:"
  plain = Decoder(model)([prompt], 24)[0]
  path = tmp_path / "store.npz"
  texts = [model.encode(prompt) + plain.tokens]
  datastore.save(path, datastore.build(texts), model.config.vocab_size)
  decoder = Decoder(model, f"rest-8[{path}]")
  got = decoder([prompt], 24)[0]
  assert got.tokens == plain.tokens and got.passes <= 6
  assert decoder.name == f"rest[{path}]"
  both = Decoder(model, f"prompt_lookup-8,longest=3,shortest=3|rest-4[{path}]")([prompt], 24)[0]
  assert both.tokens == plain.tokens and both.passes < plain.passes


def test_the_command_writes_texts_and_answers(tmp_path, capsys):
  data, out = tmp_path / "texts.jsonl", tmp_path / "store.npz"
  records = ({"text": "2 + 2 = 4"}, {"prompt": [5, 6], "answer": [7, 8]}, {"text": "no"})
  data.write_text("".join(json.dumps(record) + "\n" for record in records))
  assert main.main(["corpus", "--data", str(data), "--out", str(out), "--limit", "2"]) == 0
  model = cut()
  want = [*model.encode("2 + 2 = 4"), -1, 5, 6, 7, 8, -1]
  assert datastore.load(str(out), model.config.vocab_size).tokens.tolist() == want
  assert f"2 texts of {len(want) - 2} tokens" in capsys.readouterr().out
  assert main.main(["corpus", "--data", str(data), "--out", str(out), "--field", "x"]) == 2
  assert "record 1 has no text in field 'x'" in capsys.readouterr().err
  data.write_text(json.dumps({"prompt": [5, "six"], "answer": [7]}))
  assert main.main(["corpus", "--data", str(data), "--out", str(out)]) == 2
  assert (
    "`prompt[1]` must be a whole number between 0 and 4095, got 'six'."
  ) in capsys.readouterr().err


@pytest.mark.parametrize(
  ("write", "words"),
  [
    (lambda path: None, "no such file; `specjax corpus` makes one"),
    (lambda path: path.write_text("{}"), "is no datastore"),
    (lambda path: np.savez(path, tokens=np.zeros(3)), "is no datastore"),
    (lambda path: datastore.save(path, datastore.build([[1, 2]]), 7), "a vocabulary of 7, the"),
    (
      lambda path: datastore.save(path, datastore.build([[1]])._replace(order=np.zeros(2, "i")), 7),
      "its order is none of its tokens",
    ),
  ],
)
def test_what_is_no_datastore_is_refused(tmp_path, write, words):
  path = tmp_path / "store.npz"
  write(path)
  with pytest.raises(ValueError, match=words):
    Decoder(cut(), f"rest[{path}]")


def test_impossible_numbers_are_an_error():
  for bad in ({"nodes": 1}, {"shortest": 0}, {"shortest": 9}, {"longest": 17}, {"ahead": 0}):
    with pytest.raises(
      ValueError,
      match=r"`nodes` must be at least 2, `shortest` between 1 and .* `ahead` .*, got nodes=",
    ):
      rest(**bad)
  with pytest.raises(ValueError, match="a datastore needs one"):
    datastore.build([[]])
  with pytest.raises(ValueError, match=r"rest: it needs a datastore, rest\[FILE.npz\]"):
    Decoder(cut(), "rest")
