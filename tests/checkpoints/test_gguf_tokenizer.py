"""Tokenizers from a GGUF file's metadata, against trained ones, words and merges by definition."""

import itertools
import json
import pathlib

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import specjax
from specjax.checkpoints import gguf_tokenizer
from specjax.checkpoints.hub import MODELS
from specjax.data.jinja_chat import JinjaTemplate

TEXTS = [
  "", " ", "a", "The cat's on the mat, isn't it? DON'T!", "  two   spaces ", "1234567 and ¾ or ١٢",
  "line\n\n\nline\r\n\tx", "x=foo(1, 2);\n  y += 3\n", "naïve café e\u0301 “quoted”…", "字 日本語",
  "한국어", "👩\u200d🔬🇨🇭 ok", "<|im_start|>user\nHi<|im_end|>", "<tool> </tool>", "\u00a0\u2028x",
]  # fmt: skip


def metadata(**values):
  return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def trained(split) -> tokenizers.Tokenizer:
  """A tokenizer of the `tokenizers` library, trained on the texts."""
  inner = tokenizers.Tokenizer(models.BPE())
  inner.pre_tokenizer = split
  inner.decoder = decoders.ByteLevel()
  special = ["<|im_start|>", "<|im_end|>", "<tool>"]
  trainer = trainers.BpeTrainer(
    vocab_size=500, special_tokens=special, show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
  )  # fmt: skip
  inner.train_from_iterator(TEXTS * 3, trainer)
  return inner


WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITS = {
  "gpt-2": WORDS,
  "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS]),
}


@pytest.mark.parametrize("pre", SPLITS)
def test_ids_are_those_of_the_trained_tokenizer(pre):
  inner = trained(SPLITS[pre])
  model = json.loads(inner.to_str())["model"]
  tokens = sorted(model["vocab"], key=model["vocab"].get)
  merges = [" ".join(pair) for pair in model["merges"]]
  types = [4 if t == "<tool>" else 3 if t.startswith("<|im") else 1 for t in tokens]
  raw = metadata(model="gpt2", pre=pre, tokens=tokens, token_type=types, merges=merges)
  text = gguf_tokenizer.read(raw, len(tokens), "m.gguf")
  assert (text.start, text.stop, text.template) == ((), (tokens.index("<|im_end|>"),), None)
  for each in TEXTS:
    ids = inner.encode(each).ids
    assert text.tokenizer.encode(each) == ids
    unsaid = each.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert text.tokenizer.decode(ids) == unsaid


@pytest.mark.parametrize(
  ("pre", "text", "words"),
  [
    ("gpt-2", "It's 1234  x\n\ny", "It|'s| 1234| | x|\n|\n|y"),
    ("smollm", "in 1999 é", "in| |1|9|9|9| é"),
    ("llama-bpe", "IT'S 1234567 (foo)  x!\n\ny", "IT|'S| |123|456|7| (|foo|)| | x|!\n\n|y"),
    ("qwen2", "It's 123 e\u0301.\r\n", "It|'s| |1|2|3| é|.\r\n"),
    ("deepseek-r1-qwen", "x 12 e\u0301", "x| |1|2| e|\u0301"),
    ("deepseek-coder", "if x:\n  12 日本", "if| x|:|\n|  |1|2| |日本"),
    ("tekken", "HelloWorld ABCdef 12 a/b//\n", "Hello|World| ABCdef| |1|2| a|/b|//\n"),
    ("refact", "in 1999 é", "in| |1|9|9|9| é"),
    ("exaone4", "It's 1234", "It|'s| 1234"),
    ("glm4", "IT'S 1234567 x!\n\ny", "IT|'S| |123|456|7| x|!\n\n|y"),
    ("seed-coder", "x!\n y 12", "x|!|\n| y| |1|2"),
    ("gpt-4o", "HelloWorld's 1234 a/b//\n", "Hello|World's| |123|4| a|/b|//\n"),
    ("kimi-k2", "abc日本 it's 12!\n/", "abc|日本| it's| |12|!\n|/"),
    ("deepseek-v3", "f(x).y 1234日本か !a e\u0301\n", "f|(x|).|y| |123|4|日本か| !|a| e\u0301|\n"),
  ],
)
def test_words_of_each_family(pre, text, words):
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  raw = metadata(model="gpt2", pre=pre, tokens=alphabet, add_bos_token=False)
  inner = gguf_tokenizer.read(raw, 256, "m.gguf").tokenizer.inner
  if inner.normalizer is not None:
    text = inner.normalizer.normalize_str(text)
  pieces = [piece for piece, _ in inner.pre_tokenizer.pre_tokenize_str(text)]
  back = decoders.ByteLevel()
  assert "|".join(back.decode([piece]) for piece in pieces) == words


BYTE_LEVEL = dict(
  model="gpt2", pre="llama-bpe", tokens=["a", "b", "c", "ab", "abc", "<s>", "</s>", "<e>"],
  token_type=[1, 1, 1, 1, 1, 3, 3, 3], merges=["a b"], bos_token_id=5, eos_token_id=6,
)  # fmt: skip


def test_special_tokens_and_the_template():
  raw = metadata(**BYTE_LEVEL, eot_token_id=7, eom_token_id=6)
  raw["tokenizer.chat_template"] = "{{ bos_token }}"
  text = gguf_tokenizer.read(raw, 10, "m.gguf")
  assert (text.start, text.stop) == ((5,), (6, 7))
  assert text.template == JinjaTemplate("{{ bos_token }}", "<s>", "</s>")
  assert text.tokenizer.encode("abc<e>ab") == [4, 7, 3]  # a word that is a token needs no merges
  assert text.tokenizer.inner.encode("c").ids == [5, 2]
  silent = gguf_tokenizer.read(raw | metadata(pre="gpt-2"), 10, "m.gguf")
  assert (silent.start, silent.tokenizer.encode("abc")) == ((), [3, 2])
  assert gguf_tokenizer.read(raw | metadata(add_bos_token=False), 10, "m.gguf").start == ()
  for absent in (metadata(model="no_vocab"), metadata(tokens=None)):
    assert gguf_tokenizer.read(raw | absent, 10, "m.gguf").tokenizer is None


CORPUS = "the cat and the dog that sat there the hat on the mat and then at the end"
BYTES = [f"<0x{i:02X}>" for i in range(256)]


@pytest.fixture(scope="module")
def pieces() -> list[str]:
  """Texts that occur more than once, longer ones first; then characters."""
  line = "\u2581" + CORPUS.replace(" ", "\u2581")
  found = {
    line[i : i + n]
    for n in (2, 3, 4)
    for i in range(len(line))
    if line[i:].count(line[i : i + n]) > 1
  }
  ordered = sorted(found, key=lambda x: (-len(x), x))
  order = np.random.default_rng(0).permutation(len(ordered))
  return [ordered[i] for i in order] + sorted(set(line + "é"))


def sentence_piece(pieces, **more):
  tokens = ["<unk>", "<s>", "</s>", *BYTES, "<tool>", *pieces]
  types = [2, 3, 3, *[6] * 256, 4, *[1] * len(pieces)]
  scores = [0.0] * 260 + [-float(i) for i in range(len(pieces))]
  raw = dict(model="llama", tokens=tokens, token_type=types, scores=scores)
  return metadata(**{**raw, "bos_token_id": 1, "eos_token_id": 2, **more})


def by_definition(pieces, text: str, prefix: bool) -> list[int]:
  """SentencePiece: join the adjacent pair with the highest score until none is left."""
  if not text:
    return []
  parts = list((prefix * " " + text).replace(" ", "\u2581"))
  while True:
    joint = [a + b for a, b in itertools.pairwise(parts)]
    pairs = [(pieces.index(x), i) for i, x in enumerate(joint) if x in pieces]
    if not pairs:
      break
    _, i = min(pairs)
    parts[i : i + 2] = ["".join(parts[i : i + 2])]
  ids: list[int] = []
  for part in parts:
    ids += [260 + pieces.index(part)] if part in pieces else [3 + b for b in part.encode()]
  return ids


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_is_as_defined(prefix, pieces):
  text = gguf_tokenizer.read(sentence_piece(pieces, add_space_prefix=prefix), 700, "m.gguf")
  assert (text.start, text.stop) == ((1,), (2,))
  drawn = np.random.default_rng(1)
  letters = list("thecatdogsn   é字\n0")
  texts = ["".join(drawn.choice(letters, drawn.integers(1, 50))) for _ in range(60)]
  for each in [CORPUS, "", " ", "  the  ", "\t字 the cat", *texts]:
    ids = text.tokenizer.encode(each)
    assert ids == by_definition(pieces, each, prefix)
    assert text.tokenizer.decode([1, *ids, 2]) == each
  # A text goes on after a special token, which is one id, as after the beginning.
  first, rest = (by_definition(pieces, each, prefix) for each in ("the", "cat"))
  assert text.tokenizer.encode("the</s>cat<tool>") == [*first, 2, *rest, 259]


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (dict(model="bert"), r"ggml\.model` must be one of gpt2, llama, gemma4, got 'bert'\."),
    (dict(model=None), r"ggml\.model` must be one of gpt2, llama, gemma4, got None\."),
    (dict(pre="latin"), r"`tokenizer\.ggml\.pre` must be one of gpt-2, olmo.*got 'latin'\."),
    (dict(pre=None), r"`tokenizer\.ggml\.pre` must be one of gpt-2, olmo.*got None\."),
    (dict(tokens=["a", "b", "c", "ab", "ab", "x", "y", "z"]), "has 8 texts, of which 7 differ"),
    (dict(tokens=["a"]), r"token_type has 8 values for 1 tokens"),
    (dict(tokens="abc"), r"`tokenizer\.ggml\.tokens` must be a list, got 'abc'\."),
    (dict(tokens=[1, 2]), r"`tokenizer\.ggml\.tokens\[0\]` must be text, got 1\."),
    (
      dict(merges=["a b", "ab"]),
      r"`tokenizer\.ggml\.merges\[1\]` must be two tokens that make a.*got 'ab'\.",
    ),
    (
      dict(merges=["a x"]),
      r"`tokenizer\.ggml\.merges\[0\]` must be two tokens that make a.*got 'a x'\.",
    ),
    (
      dict(merges=["b c"]),
      r"`tokenizer\.ggml\.merges\[0\]` must be two tokens that make a.*got 'b c'\.",
    ),
    (dict(bos_token_id=8), "begins with bos_token_id=8, which tokenizer.ggml.tokens lacks"),
    (dict(bos_token_id=None), "begins with bos_token_id=None"),
    (dict(bos_token_id=-1), r"`tokenizer\.ggml\.bos_token_id` must be between 0 and 8, got -1\."),
    (dict(eos_token_id=9), r"`tokenizer\.ggml\.eos_token_id` must be between 0 and 8, got 9\."),
    (dict(add_bos_token=1), r"`tokenizer\.ggml\.add_bos_token` must be true or false, got 1\."),
    (dict(model="llama"), r"m\.gguf lacks 'tokenizer\.ggml\.scores'"),
    (dict(model="llama", scores=[1.0]), r"scores has 1 values for 8 tokens"),
  ],
)
def test_what_cannot_be_read_is_named(change, words):
  with pytest.raises(ValueError, match=words):
    gguf_tokenizer.read(metadata(**(BYTE_LEVEL | change)), 9, "m.gguf")


def test_a_template_that_is_no_jinja_is_named():
  raw = metadata(**BYTE_LEVEL) | {"tokenizer.chat_template": "{{ 1 +"}
  with pytest.raises(ValueError, match=r"^m\.gguf: the chat template has an error in line 1"):
    gguf_tokenizer.read(raw, 9, "m.gguf")


@pytest.mark.parametrize(
  ("tokens", "keys", "ends"),
  [
    (["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"], {"eos_token_id": 1}, [1, 2, 3]),
    (["<|end_of_text|>", "<|eot_id|>"], {"eos_token_id": 2, "eot_token_id": 0}, [2, 0, 1]),
    (["<x>", "<y>"], {"eos_token_id": 2}, [2]),
    (["<end_of_turn>", "_<EOT>", "[EOT]"], {}, [1, 2, 3]),
    (["<\uff5cend\u2581of\u2581sentence\uff5c>"], {}, [1]),
    (["<\uff5cend\u2581of\u2581sentence\uff5c>"], {"eot_token_id": 0}, [0]),
    (["<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"], {}, [1, 2, 3, 4]),
    (["<x>", "<|fim_pad|>"], {"fim_pad_token_id": 1}, [1]),
    (["<|end|>", "<|return|>"], {}, [1, 2]),
    (["<|end|>", "<|return|>", "<|call|>"], {"eos_token_id": 2}, [2, 3]),
    (["<|end|>", "<|calls|>", "<|flush|>"], {}, [2, 3]),
    (["</s>", "<|tool_response>"], {}, [2]),
  ],
)
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_a_text_ends_where_llama_cpp_ends_it(tokens, keys, ends, kind):
  raw = metadata(model="gpt2", pre="gpt-2", tokens=["a", *tokens], token_type=[1] + [kind] * len(
    tokens), **keys)  # fmt: skip
  text = gguf_tokenizer.read(raw, 9, "m.gguf")
  assert list(text.stop) == ends
  for end in set(ends) - set(keys.values()):  # markers, whatever type the file gives them
    assert text.tokenizer.encode("a" + tokens[end - 1]) == [0, end]
    assert text.tokenizer.decode([0, end]) == "a"


SMOLLM2 = {
  "Hello, we can use": [19556, 28, 392, 416, 722],
  "The capital of France is": [504, 3575, 282, 4649, 314],
  "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
  "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
  "  multiple   spaces": [216, 2701, 256, 5600],
}


@pytest.mark.full
def test_the_published_file():
  name = "smollm2-135m"
  home = pathlib.Path.home() / ".cache" / "specjax" / "models" / f"{name}.gguf"
  if not home.is_file():
    pytest.skip(f"{home} is absent: specjax info --model {name} fetches it")
  assert name in MODELS
  model = specjax.load(str(home))
  assert (model.config.layers, model.config.width, model.start) == (30, 576, ())
  assert model.stop == (2, 0, 4)  # as llama.cpp prints them for this file
  for text, ids in SMOLLM2.items():
    assert model.encode(text) == ids
    assert model.decode(ids) == text
  question = model.encode("The capital of France is")
  (answer,) = specjax.Decoder(model)([question], 2)
  assert answer.text.startswith(" Paris")


@pytest.mark.parametrize(
  ("text", "parts"),
  [
    (" ab ab", ["▁ab", "▁ab"]),
    ("ab\n\n\nab", ["ab", "\n\n", "\n", "ab"]),
    ("aé", ["a", "<0xC3>", "<0xA9>"]),
    ("b<bos>a", ["b", "<bos>", "a"]),
  ],
)
def test_gemma_4_joins_letters_of_a_line(text, parts):
  own = ["<unk>", "<bos>", "▁", "a", "b", "\n", "▁a", "ab", "▁ab", "\n\n", "a\n", "ab"]
  tokens = [*own, *(f"<0x{i:02X}>" for i in range(256))]
  types = [2, 3, *[1] * (len(own) - 2), *[6] * 256]
  merges = ["▁ a", "a b", "▁a b", "a \n", "\n \n"]
  raw = metadata(model="gemma4", tokens=tokens, token_type=types, merges=merges, bos_token_id=1)
  found = gguf_tokenizer.read(raw, len(tokens), "m.gguf")
  ids = found.tokenizer.inner.encode(text, add_special_tokens=False).ids
  assert [tokens[i] for i in ids] == parts
  assert found.start == (1,)
  assert found.tokenizer.inner.decode(ids) == text.replace("<bos>", "")
