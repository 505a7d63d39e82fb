"""Any text survives the tokenizer, and digits stand alone."""

import numpy as np
import pytest

from specjax.data.tokenizer import END, Tokenizer, train_bpe


@pytest.fixture(scope="module")
def tokenizer():
  return train_bpe(["the cat sat on the mat, 1234 times in 1999 and 12 times in 12"] * 20, 300)


def random_texts(count: int):
  """Texts of code points from all planes, white space and controls included."""
  rng = np.random.default_rng(0)
  for _ in range(count):
    points = rng.choice([0x80, 0x800, 0x3000, 0x110000], rng.integers(1, 40))
    points = [int(rng.integers(p)) for p in points]
    yield "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)


def test_any_unicode_comes_back(tokenizer):
  for text in [*random_texts(300), " \n\t  x\u2028\u00a0\r\n", "e\u0301 \u00e9", "👩‍🔬🇨🇭"]:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single(tokenizer):
  ids = tokenizer.encode("1234 and 12, ١٢")
  digits = [tokenizer.decode([i]) for i in ids]
  assert [d.strip() for d in digits if any(c.isascii() and c.isdigit() for c in d)] == list(
    "123412"
  )
  vocabulary = tokenizer.inner.get_vocab()
  assert not [t for t in vocabulary if sum(c.isdigit() for c in t) > 1]


def test_end_marker_is_id_0_and_not_text(tokenizer):
  ids = tokenizer.encode("mat" + END)
  assert ids[-1] == tokenizer.id(END) == 0
  assert tokenizer.decode(ids) == "mat"
  assert tokenizer.id("<none>") is None


def test_training_is_deterministic_and_files_round_trip(tokenizer, tmp_path):
  again = train_bpe(["the cat sat on the mat, 1234 times in 1999 and 12 times in 12"] * 20, 300)
  assert again.inner.to_str() == tokenizer.inner.to_str()
  tokenizer.save(tmp_path / "t.json")
  loaded = Tokenizer.load(tmp_path / "t.json")
  assert loaded.inner.to_str() == tokenizer.inner.to_str()
  assert loaded.vocab_size == tokenizer.vocab_size > 257
