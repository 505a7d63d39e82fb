"""Draft models of another vocabulary: the law of what is written, and how tokens are spelled."""

import dataclasses
import functools
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data import bridge
from specjax.data.tokenizer import train_bpe, train_words
from specjax.decoding.decoder import Decoder
from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree
from specjax.drafters.models.by_text import Text, Words, by_text, codes, split
from specjax.models import transformer
from specjax.models.common_tokens import Bridge, common_tokens, reading
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.names.build import drafters
from specjax.names.build.drafter import build_drafter
from specjax.names.load import Model
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import TREES
from specjax.verifiers import block, greedy, recursive, target_only, token
from tests.decoding.cut import cut

EXACT = 1e-6
# Tokens that split differently: "ab" of the target is two of the draft model's, "ba" of the draft
# model's is two of the target's, and "c" only the target has.
OURS, THEIRS = ("a", "b", "ab", "c"), ("b", "ba", "a")
V, X = len(OURS), len(THEIRS)
PIECES = np.array([[2, 0], [0, 0], [2, 0], [2, 0]], np.int32)  # a; b; a b; c is read as a
COUNT = np.array([1, 1, 2, 1], np.int32)
PAIRS = np.array([0, 1], np.int32), np.array([2, 0], np.int32)


def bridged(lm, start=()) -> Bridge:
  rest = (PIECES, COUNT, np.asarray(start, np.int32), *PAIRS)
  return Bridge(lm, *map(jnp.asarray, rest))


def words_of(texts, most: int) -> Words:
  said = np.zeros((len(texts), most), np.uint8)
  for i, text in enumerate(texts):
    said[i, : len(text)] = list(text.encode())
  size = np.array([len(text) for text in texts], np.int32)
  code = np.asarray(codes(jnp.asarray(said)))[np.arange(len(texts)), size - 1]
  order = np.argsort(code)
  found = code[order], order.astype(np.int32), said[order], size[order]
  return Words(*map(jnp.asarray, found))


def text_of(lm, start=()) -> Text:
  said = np.array([[98, 0], [98, 97], [97, 0]], np.uint8)
  size = np.array([1, 2, 1], np.int32)
  return Text(bridged(lm, start), jnp.asarray(said), jnp.asarray(size), words_of(OURS, 2))


LM = table_model(X)
COMMON = common_tokens(LM, V)
METHODS = {
  "chain, token": (draft_model(COMMON, 3), token(), bridged, 1),
  "chain, token, 2 rounds": (draft_model(COMMON, 2), token(), bridged, 2),
  "chain, block": (draft_model(COMMON, 3), block(), bridged, 1),
  "chain, greedy": (draft_model(COMMON, 2), greedy(), bridged, 2),
  "tree, recursive": (
    draft_tree(COMMON, TREES["without_replacement"](((0,), (1,)))), recursive(), bridged, 1,
  ),
  "text, target_only": (by_text(LM, 3), target_only(), text_of, 1),
  "text, target_only, 2 rounds": (by_text(LM, 3), target_only(), text_of, 2),
  "text, recursive": (by_text(LM, 3), recursive(), text_of, 1),
  "text, greedy": (by_text(LM, 3), greedy(), text_of, 2),
}  # fmt: skip
REST = "chain, token, 2 rounds", "tree, recursive", "text, target_only, 2 rounds"
CELLS = [
  pytest.param(
    *METHODS[name], id=name, marks=pytest.mark.slow if name in REST else pytest.mark.full
  )
  for name in METHODS
]


@pytest.mark.parametrize(("drafter", "verifier", "params", "rounds"), CELLS)
def test_the_law_is_the_targets(drafter, verifier, params, rounds):
  method = pair(table_model(V), drafter, verifier)
  for seed, prompt, start in ((0, (2, 0), (1,)), (1, (3, 1), (0,)), (2, (0, 2), (2,))):
    cases = [(1.0, 0), (0.7, 3)] if verifier.name != "greedy" else [(0.0, 0)]
    lm = random_table(seed + 9, X)
    for temperature, top_k in cases:
      logits = np.asarray(random_table(seed, V)["logits"])
      case = Case(logits, prompt, 2, temperature, top_k)
      got = emitted_distribution(case, method, params(lm, start), rounds=rounds)
      assert total_variation(got, target_distribution(case)) < EXACT


@pytest.mark.slow
def test_a_fault_in_the_bridge_is_found():
  """A distribution that is not what was drawn from gives another law."""
  own = common_tokens(LM, V)
  drafter = draft_model(own, 2)

  def wrong(*given, **named):
    draft, state = drafter.propose(*given, **named)
    flat = jnp.where(jnp.isfinite(draft.log_probs), jnp.log(0.5), -jnp.inf)
    return draft._replace(log_probs=flat), state

  case = Case(np.asarray(random_table(0, V)["logits"]), (2, 0), 2)
  method = pair(table_model(V), drafter._replace(propose=wrong), token())
  got = emitted_distribution(case, method, bridged(random_table(9, X)))
  assert total_variation(got, target_distribution(case)) > 1e-3


@pytest.mark.slow
def test_what_it_reads_is_the_spelled_text():
  """Prompts, nodes of trees and accepted paths, beside the model alone over the same pieces."""
  config = Config(vocab_size=11, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, mlp_width=8)
  lm, V, M, most = target(config), 9, 3, 40
  rng = np.random.default_rng(0)
  weights = jax.tree.map(lambda x: 9 * x, transformer.init(config, jax.random.key(0)))
  pieces = rng.integers(config.vocab_size, size=(V, M)).astype(np.int32)
  count = np.array([1, 2, 3, 1, 2, 1, 1, 3, 1], np.int32)
  some = np.zeros(1, np.int32)
  params = Bridge(weights, *map(jnp.asarray, (pieces, count, [7, 8], some, some)))

  @jax.jit
  def whole(text):
    return lm.head(weights, lm.prefill(weights, text, jnp.array([most]), most)[1].hidden)[0]

  def alone(tokens):
    text = [7, 8, *itertools.chain(*(pieces[t, : count[t]] for t in tokens))]
    return whole(jnp.asarray([text + [0] * (most - len(text))]))[len(text) - 1]

  own = reading(lm)
  tokens, length = jnp.asarray([[1, 2, 0, 4], [7, 3, 0, 0]]), np.array([4, 2])
  cache, features = jax.jit(own.prefill, static_argnums=3)(params, tokens, jnp.asarray(length), 12)
  said = own.head(params, features.hidden)
  for b, n in enumerate(length):
    for i in range(n):
      np.testing.assert_allclose(said[b, i], alone(tokens[b, : i + 1].tolist()), atol=1e-5)
  # A tree of 3 > 5 > (third > 6, 0), of which the third node has three pieces, or all have one.
  mask = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0],
                   [1, 1, 0, 0, 1]], bool)  # fmt: skip
  depth, run = jnp.asarray([[0, 1, 2, 3, 2]] * 2), jax.jit(own.evaluate)
  for third in (2, 6):
    nodes = np.array([[3, 5, third, 6, 0]] * 2, np.int32)
    found = run(params, cache, jnp.asarray(nodes), depth, jnp.asarray([mask] * 2))
    for b, n in enumerate(length):
      for i in range(5):
        text = [*tokens[b, : n - 1].tolist(), *nodes[b][mask[i]].tolist()]
        np.testing.assert_allclose(found.logits[b, i], alone(text), atol=1e-5)
    kept = own.commit(cache, found.kv, jnp.asarray([[0, 1, 2]] * 2), jnp.array([3, 2]))
    after = run(params, kept, jnp.asarray([[4]] * 2), depth[:, :1], jnp.ones((2, 1, 1), bool))
    for b, rows in enumerate((3, 2)):
      text = [*tokens[b, : length[b] - 1].tolist(), *nodes[b, :rows].tolist(), 4]
      np.testing.assert_allclose(after.logits[b, 0], alone(text), atol=1e-5)


def fewest(text: str, words) -> list[str] | None:
  """By trying every split: the fewest words, of equally few the shortest first."""
  every = [
    [text[a:b] for a, b in itertools.pairwise((0, *cuts, len(text)))]
    for n in range(len(text))
    for cuts in itertools.combinations(range(1, len(text)), n)
  ]
  whole = [x for x in every if set(x) <= set(words)]
  return min(whole, key=lambda x: (len(x), [len(w) for w in x]), default=None)


@pytest.mark.slow
def test_texts_are_split_into_the_fewest_tokens():
  words = ("a", "b", "ab", "ba", "aab", " ", "  ", "   ", " a", "    ")
  table = words_of(words, 4)
  rng, texts = np.random.default_rng(0), ["    a", "c", "ac", ""]
  texts += ["".join(rng.choice([*"ab "], size=n)) for n in (1, 2, 3, 5, 7, 8, 8, 8)]
  size = np.array([len(x) for x in texts], np.int32)
  padded = np.array([list(x.encode().ljust(8, b"a")) for x in texts], np.uint8)
  got = np.asarray(split(table, jnp.asarray(padded), jnp.asarray(size), 8))
  for row, text in zip(got, texts, strict=True):
    want = fewest(text, words) if text else []
    assert [words[i] for i in row if i >= 0] == (want or [])
  assert [words[i] for i in got[0] if i >= 0] == ["   ", " a"]


def test_tokens_are_spelled_by_tokens_that_say_the_same():
  texts = [pathlib.Path(__file__).read_text(), "Ünïcödé and \u4e2d\u6587, 1234\n" * 9]
  ours, theirs = train_bpe(texts, 420), train_bpe(texts[:1], 300)
  # A mark of one's own keeps ids apart.
  of = [bridge.Vocabulary(x, x.vocab_size, (), (0,)) for x in (ours, theirs)]
  found = bridge.spelling(*of)
  said, known = (x.tokenizer.spoken_bytes(x.size) for x in of)
  assert len(found.ours) == len(set(found.ours)) == len(set(found.theirs))
  assert dict(zip(found.ours.tolist(), found.theirs.tolist(), strict=True))[0] == 0  # the end
  whole = 0
  for i, text in enumerate(said[1:], 1):
    pieces = b"".join(known[j] for j in found.pieces[i, : found.count[i]])
    assert text.endswith(pieces)
    whole += pieces == text
  assert whole > 0.95 * len(said)
  common = {said[i] for i in found.ours if i}
  assert common == {x for x in known if x} & {x for x in said if x}


def test_a_tokenizer_of_words_has_few_tokens_in_common():
  ours, theirs = train_bpe(["two and three", "two"], 280), train_words(["two and b"])
  of = [bridge.Vocabulary(x, x.vocab_size, (), ()) for x in (ours, theirs)]
  found = bridge.spelling(*of)
  assert (found.count >= 1).all() and len(found.ours) < 10


@functools.cache
def other() -> Model:
  """The first layer of the zoo's model over tokens of another tokenizer."""
  model = cut()
  words = train_bpe([pathlib.Path(__file__).read_text(), "Ann has 12 apples and 3 pears."], 500)
  fields = {x.name: getattr(model, x.name) for x in dataclasses.fields(model)}
  config = dataclasses.replace(model.config, vocab_size=500)
  params = jax.tree.map(lambda x: x[:500] if x.shape[0] == 4096 else x, model.params)
  changed = {"name": "other", "config": config, "params": params, "tokenizer": words}
  return Model(**(fields | changed))


PROMPTS = [f"Q: Ann has {i} apples" + "\n    and 12 pears." * (i % 3) for i in range(24)]


@pytest.mark.slow
@pytest.mark.full(but=["common_tokens"])
@pytest.mark.parametrize("more", ["common_tokens", "by_text"])
def test_texts_are_those_of_plain_decoding(more, monkeypatch):
  model = cut()
  monkeypatch.setattr(drafters, "load_quick", lambda name, *rest, **named: other())
  for temperature in (0.0, 0.8):
    options = {"temperature": temperature, "verifier": "target_only", "seed": 1}
    plain = Decoder(model, "none", **options)
    ids = [model.encode(x) for x in PROMPTS]
    decoder = Decoder(model, f"draft_model-4[other]/{more}", **options)
    assert decoder.name == f"draft_model-4[other]/{more}"
    found = decoder(ids, 8)
    assert [x.tokens for x in found] == [x.tokens for x in plain(ids, 8)]
    assert temperature or sum(x.passes for x in found) < 24 * 8  # it guesses something


def test_a_bridge_is_chosen_where_one_is_needed(monkeypatch, capsys):
  model = cut()
  monkeypatch.setattr(drafters, "load_quick", lambda name, *rest, **named: other())
  name, drafter, _ = build_drafter(model, "draft_model-4[other]")
  said = capsys.readouterr().err
  assert name == "draft_model-4[other]/common_tokens" and drafter.proposal == "chain"
  assert "other has another vocabulary than gsm8k-7m: it drafts the tokens that both have" in said
  name, drafter, _ = build_drafter(model, "draft_model-4[other]/by_text")
  assert name == "draft_model-4[other]/by_text" and drafter.proposal == "deterministic"
  assert not capsys.readouterr().err
  name, _, _ = build_drafter(model, f"draft_model-4[{model.name}]")
  assert name == f"draft_model-4[{model.name}]" and not capsys.readouterr().err
  # Few tokens in common.
  few = dataclasses.replace(other(), tokenizer=train_words(["two and b"]))
  monkeypatch.setattr(drafters, "load_quick", lambda name, *rest, **named: few)
  build_drafter(model, "draft_model-4[other]/common_tokens")
  assert "tokens, which is few: it may draft badly." in capsys.readouterr().err


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("draft_model[other]/by_text/static-2-1", "by_text drafts one chain of one model"),
    ("draft_model[other]/by_text/constant-2", "by_text drafts one chain of one model"),
    ("draft_model[other]/trimmed-9[x.jsonl]", "trimmed must be left out for a model with another"),
    ("draft_model[other]/by_text/common_tokens", "`bridge` must be given once, and by_text is one"),
    ("draft_model[other]/by_text-3", "by_text takes no number"),
  ],
)
def test_what_a_bridge_cannot_have_is_refused(name, words, monkeypatch):
  monkeypatch.setattr(drafters, "load_quick", lambda name, *rest, **named: other())
  with pytest.raises(ValueError, match=words):
    build_drafter(cut(), name)
