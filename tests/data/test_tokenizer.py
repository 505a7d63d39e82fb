"""Any text survives the tokenizer, and digits stand alone."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from specjax.data.tokenizer import END, Tokenizer, train_bpe, train_words


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


# --- Texts that go on from others

SPACE, BYTES = "\u2581", [f"<0x{i:02X}>" for i in range(256)]
TO_TEXT = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


def sentence_piece(decoder, bytes_too: bool = True, model=models.Unigram) -> Tokenizer:
  """Words after a space, letters, and bytes for all else, with `<s>` and `</s>`."""
  words = [SPACE + word for word in ("France", "is", "Paris", "the", "", "Rome")]
  pieces = ["<unk>", "<s>", "</s>", *(BYTES if bytes_too else ()), *words, *"FPRacdefhilnoprstw."]
  if model is models.Unigram:
    scored = [(piece, -len(pieces) / len(piece)) for piece in pieces]
    inner = tokenizers.Tokenizer(model(scored, unk_id=0, byte_fallback=bytes_too))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
  else:
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(model(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence(
      [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
  inner.decoder = decoder
  inner.add_special_tokens(["<s>", "</s>"])
  return Tokenizer(inner)


# name: (tokenizer, what it writes before the first word of a text)
SEAMS = {
  "metaspace": (sentence_piece(decoders.Metaspace(prepend_scheme="first"), False), ""),
  "strip": (sentence_piece(decoders.Sequence([*TO_TEXT, decoders.Strip(" ", 1, 0)])), ""),
  "no strip": (sentence_piece(decoders.Sequence(TO_TEXT)), " "),
  "bpe": (sentence_piece(decoders.Sequence([*TO_TEXT, decoders.Strip(" ", 1, 0)]),
                         model=models.BPE), ""),
  "byte level": (train_bpe(["France is Paris"], 270), ""),
  "words": (train_words(["France is Paris the Rome"]), ""),
}  # fmt: skip
TEXTS = ["France is Paris", "France is the Paris is Rome"]
RARE = ["France \u732b\u732b is \u00e9", "the  Paris \U0001f600.", "\u732b Paris"]
CASES = [(name, text) for name in SEAMS for text in TEXTS] + [
  (name, text) for name in ("strip", "no strip", "bpe", "byte level") for text in RARE
]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_prompt_and_its_answer_are_the_text(name, text):
  tokenizer, start = SEAMS[name]
  ids, text = tokenizer.encode(text), start + text
  assert tokenizer.decode(ids) == text == tokenizer.inner.decode(ids)
  for k in range(len(ids) + 1):
    prompt, answer = tokenizer.decode(ids[:k]), tokenizer.decode(ids[k:], ids[:k])
    assert prompt.rstrip("\ufffd") + answer == text
    stream = tokenizer.stream(ids[:k])
    pieces = [stream.add([i]) for i in ids[k:]]
    assert "".join(pieces) == answer and "\ufffd" not in answer and stream.end() == ""


@pytest.mark.parametrize("name", ["metaspace", "strip", "no strip", "bpe"])
def test_special_tokens_are_no_beginning_of_a_text(name):
  tokenizer, start = SEAMS[name]
  begin, end = tokenizer.id("<s>"), tokenizer.id("</s>")
  paris = [tokenizer.id(SPACE + "Paris")]
  assert tokenizer.decode(paris, [begin]) == start + "Paris"
  assert tokenizer.decode([end, *paris, end], [begin, *tokenizer.encode("France"), end]) == " Paris"


def test_bytes_that_are_no_character_stay_what_they_were():
  tokenizer, _ = SEAMS["strip"]
  cat = [tokenizer.id(f"<0x{byte:02X}>") for byte in "\u732b".encode()]
  (a,) = (tokenizer.id(x) for x in "a")
  for ids, text in (
    ([*cat, cat[0], a], "\u732b\ufffda"), ([*cat, *cat[:2]], "\u732b\ufffd"),
    ([cat[1], a, *cat], "\ufffda\u732b"),
  ):  # fmt: skip
    stream = tokenizer.stream()
    assert "".join([*(stream.add([i]) for i in ids), stream.end()]) == text == tokenizer.decode(ids)
  assert tokenizer.decode(cat[2:], [a, *cat[:2]]) == "\u732b"
  assert tokenizer.decode([a], [a, *cat[:2]]) == "a" and tokenizer.decode([], cat[:2]) == ""


def test_the_bytes_in_the_middle_of_a_text_are_those_that_a_stream_says():
  for tokenizer, _ in SEAMS.values():
    spoken = tokenizer.spoken_bytes(tokenizer.vocab_size + 2)
    for text in TEXTS:
      first, *ids = tokenizer.encode(text)
      said = b"".join(tokenizer.joint + spoken[i] for i in ids)
      assert said.decode() == tokenizer.decode(ids, [first])


def test_words_that_are_special_tokens():
  tokenizer, _ = SEAMS["strip"]
  names = ["</s>", "Paris", "User:", "<s>", "\u732b", "<0xE7>"]
  assert tokenizer.special_ids("stop", names) == [tokenizer.id("</s>"), tokenizer.id("<s>")]
  unknown = sentence_piece(decoders.Fuse(), False)
  unknown.inner.add_special_tokens(["<unk>"])
  assert unknown.special_ids("stop", ["\u732b"]) == []
  for word in ("</s>User:", "Paris</s>", "<s></s>"):
    with pytest.raises(ValueError, match=f"`stop` must be text without special.*got '{word}'"):
      tokenizer.special_ids("stop", ["Paris", word])
