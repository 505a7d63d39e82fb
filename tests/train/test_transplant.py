"""A model in another vocabulary: what its new tokens are made of, and how it drafts."""

import collections
import dataclasses
import functools
import json
import math

import numpy as np
import pytest
from sentences import says
from tokenizers import AddedToken

import specjax
from specjax import command_line
from specjax.checkpoints import hf
from specjax.data import transplant as mixing
from specjax.data.bridge import Vocabulary
from specjax.data.tokenizer import train_bpe
from specjax.names.build.drafter import build_drafter
from specjax.train import transplant
from tests.decoding.cut import cut

TEXTS = ["Ann has 12 apples and 3 pears.", "ananas and bananas", "pearls and pears and pens"]


@functools.cache
def words():
  """A tokenizer with a token of two words and a mark that others lack."""
  found = train_bpe(TEXTS * 2, 300)
  found.inner.add_tokens([AddedToken("bananas and", normalized=False)])
  found.inner.add_special_tokens(["<|other|>"])
  return found


def grams(text):
  found = (text[i : i + n] for n in (1, 2, 3, 4) for i in range(len(text) - n + 1))
  return collections.Counter(found)


def cosine(a, b):
  a, b = grams(a), grams(b)
  norms = [math.sqrt(sum(n * n for n in x.values())) for x in (a, b)]
  return sum(n * b[g] for g, n in a.items()) / math.prod(norms)


def softmax(x):
  x = np.exp(np.asarray(x))
  return x / x.sum()


def test_a_new_token_is_the_documented_mixture(monkeypatch):
  monkeypatch.setattr(mixing, "PLACES", 2**16)  # where hardly two n-grams meet
  old = train_bpe(["pens and pears are bananas"] * 2, 270)
  new, spoken = words(), [x.spoken_bytes(x.vocab_size) for x in (words(), old)]
  of = [Vocabulary(x, x.vocab_size, (), (0,)) for x in (new, old)]
  own = mixing.mixture(*of, 2, 0.4, 0.5)
  matrix = np.random.default_rng(0).normal(size=(old.vocab_size, 5)).astype(np.float32)
  found, kinds = mixing.mixed(own, matrix), collections.Counter()
  for w, text in enumerate(spoken[0]):
    if text in spoken[1]:  # the mark of an end says nothing in both
      if new.inner.id_to_token(w) == "<|other|>":
        kind, wanted = "mean", matrix.mean(0)
      else:
        kind, wanted = "shared", matrix[spoken[1].index(text)]
        assert (found[w] == wanted).all() and own.shared[w]
    else:
      parts = old.encode(text.decode())
      assert b"".join(spoken[1][i] for i in parts) == text
      alike = softmax([cosine(text, spoken[1][i]) for i in parts])
      long = np.array([len(spoken[1][i]) / len(text) for i in parts])
      wanted = 0.6 * softmax((alike + long) / 2 / 0.5) @ matrix[parts]
      near = own.ids[w, -2:]
      every = np.array([cosine(text, x) if x else 0 for x in spoken[1]])
      np.testing.assert_allclose(np.sort(every[near]), np.sort(every)[-2:], atol=1e-5)
      wanted = wanted + 0.4 * softmax(every[near] / 0.5) @ matrix[near]
      kind = "two words" if b"s a" in text else "mixed"
    kinds[kind] += 1
    np.testing.assert_allclose(found[w], wanted, atol=1e-5, err_msg=str(text))
  assert kinds["two words"] == kinds["mean"] == 1 and min(kinds["shared"], kinds["mixed"]) > 10
  # Without neighbours, at a high temperature, it is the mean of its parts.
  plain = mixing.mixed(mixing.mixture(*of, 1, 0, 1e6), matrix)
  w = new.id("bananas and")
  np.testing.assert_allclose(plain[w], matrix[old.encode("bananas and")].mean(0), atol=1e-4)


def save(path, tokenizer=None) -> str:
  """The first layer of the zoo's model with an LM head of its own, and with another tokenizer."""
  model, tokenizer = cut(), tokenizer or cut().tokenizer
  V, own = tokenizer.vocab_size, model.params["params"]
  config = dataclasses.replace(model.config, vocab_size=V, tied=False)
  rows = {name: own["embedding"][:V] for name in transplant.ROWS}
  params = {"params": {**own, **rows}}
  hf.save(path, config, params, tokenizer, template=model.template, dtype=np.float32)
  return str(path)


def move(model: str, to: str, out) -> tuple[str, dict]:
  argv = ["--model", model, "--to", to, "--out", str(out)]
  assert command_line.run(transplant.main, transplant.Config, argv=argv) == 0
  return f"{out}/model", json.loads((out / "report.json").read_text())["tokens"]


@pytest.mark.slow
def test_a_model_moved_there_and_back_drafts_without_a_bridge_and_changes_no_text(tmp_path, capsys):
  first = save(tmp_path / "first")
  there, counts = move(first, save(tmp_path / "other", words()), tmp_path / "there")
  assert sum(counts.values()) == words().vocab_size and counts["mixed"] > 0
  back, counts = move(there, "gsm8k-7m", tmp_path / "back")
  assert sum(counts.values()) == 4096 and counts["shared"] > 250
  before, moved, model = (specjax.load(x) for x in (first, back, "gsm8k-7m"))
  assert moved.stop == model.stop and moved.template == model.template
  same = [model.tokenizer.id(x) for x in words().inner.get_vocab() if model.tokenizer.id(x)]
  for rows in transplant.ROWS:
    one, two = (np.asarray(x.params["params"][rows]) for x in (before, moved))
    np.testing.assert_allclose(one[same], two[same], atol=2e-3)
    assert one.shape == two.shape and np.abs(one - two).max() > 0.1
  capsys.readouterr()
  name = f"draft_model-3[{back}]"
  assert build_drafter(model, name)[0] == name and "vocabulary" not in capsys.readouterr().err
  prompts = [model.chat(f"Ann has {i} apples and 3 pears. How many are there?") for i in range(4)]
  for temperature in (0.0, 1.0):
    options = {"batch": 4, "temperature": temperature}
    plain = specjax.Decoder(model, **options)(prompts, 24)
    drafted = specjax.Decoder(model, name, "target_only", **options)(prompts, 24)
    assert [r.tokens for r in drafted] == [r.tokens for r in plain]
    assert temperature or sum(r.passes for r in drafted) < sum(r.passes for r in plain)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ("--neighbours 0", "`neighbours` must be at least 1, got 0."),
    ("--neighbours 5000", "`neighbours` must be between 1 and 4096, got 5000."),
    ("--weight 2", "`weight` must be between 0 and 1, got 2.0."),
    ("--temperature 0", "`temperature` must be at least 0.001, got 0.0."),
    ("--model nowhere", "'nowhere' is no directory with a config.json"),
    ("--model lists-3m", "`model` must be a causal model with a tokenizer, got 'lists-3m'."),
    ("--to lists-3m", "`to` must be a causal model with a tokenizer, got 'lists-3m'."),
  ],
)
def test_what_cannot_be_moved_is_one_sentence(change, words, tmp_path, capsys):
  argv = ["--model", "gsm8k-7m", "--to", "gsm8k-7m", "--out", str(tmp_path), *change.split()]
  assert command_line.run(transplant.main, transplant.Config, argv=argv) == 2
  error = capsys.readouterr().err
  assert error.startswith("error: ") and error.count("\n") == 1 and says(error, words)
