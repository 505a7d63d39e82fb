"""Text to ids and back, through the `tokenizers` library."""

import json
import pathlib
import re
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from specjax import checks, schema

END = "<|end|>"
MASK = "<|mask|>"


class Tokenizer:
  """A `tokenizers.Tokenizer` that never adds, cuts or pads tokens of its own accord.

  What a file says about batches (truncation, padding) and training (dropout of merges) is taken out
  of `inner`.
  """

  def __init__(self, inner: tokenizers.Tokenizer):
    inner.no_truncation()
    inner.no_padding()
    if getattr(inner.model, "dropout", None):
      inner.model.dropout = None
    self.inner = inner

  @classmethod
  def load(cls, path: str | pathlib.Path) -> "Tokenizer":
    """Reads a tokenizer.json; ValueError where the file is absent or damaged."""
    content = schema.contents(path)
    schema.parse(content, str(path))
    try:
      return cls(tokenizers.Tokenizer.from_buffer(content))
    except Exception as error:
      if type(error) not in (Exception, ValueError):  # the library raises no narrower class
        raise
      raise ValueError(f"{path} is no tokenizer.json: {error}.") from error

  def save(self, path: str | pathlib.Path) -> None:
    self.inner.save(str(path))

  @property
  def vocab_size(self) -> int:
    return self.inner.get_vocab_size()

  def id(self, token: str) -> int | None:
    """The id of a token by its text, None where there is none."""
    return self.inner.token_to_id(token)

  def encode(self, text: str) -> list[int]:
    """Ids of a text; ValueError where it is no text that UTF-8 can write."""
    return self.inner.encode(checks.text("text", text), add_special_tokens=False).ids

  def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of a text, and the characters start..end - 1 of it that each stands for."""
    encoding = self.inner.encode(checks.text("text", text), add_special_tokens=False)
    # Where the tokenizer trims offsets, white space has none: it ends where its span is.
    return encoding.ids, [(max(a - 1, 0) if a == b else a, b) for a, b in encoding.offsets]

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids; end markers and other special tokens are left out."""
    return self.inner.decode(list(ids), skip_special_tokens=True)

  def spoken_bytes(self, vocab_size: int) -> list[bytes]:
    """The bytes that each id adds in the middle of a text; special and unused ids add none.

    `vocab_size` is the model's, which may be larger than the tokenizer's.
    """
    byte_level = '"ByteLevel"' in json.dumps(json.loads(self.inner.to_str())["decoder"])
    special = {i for i, token in self.inner.get_added_tokens_decoder().items() if token.special}
    tokens = (None if i in special else self.inner.id_to_token(i) for i in range(vocab_size))
    spoken = _of_byte_level if byte_level else _of_sentence_piece
    return [b"" if token is None else spoken(token) for token in tokens]


# A byte-level token writes a printable byte as itself, and any other as a letter from 256 on.
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
_BYTE_OF = {chr(b): b for b in _PRINTED} | {chr(256 + i): b for i, b in enumerate(_HIDDEN)}


def _of_byte_level(token: str) -> bytes:
  if all(c in _BYTE_OF for c in token):
    return bytes(_BYTE_OF[c] for c in token)
  return token.encode()  # added as text


def _of_sentence_piece(token: str) -> bytes:
  if re.fullmatch("<0x[0-9A-F]{2}>", token):
    return bytes([int(token[3:5], 16)])
  return token.replace("\u2581", " ").encode()


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """A byte-level BPE tokenizer: it knows every text, splits digits, and has `<|end|>` as id 0."""
  inner = tokenizers.Tokenizer(models.BPE())
  digits = pre_tokenizers.Digits(individual_digits=True)
  inner.pre_tokenizer = pre_tokenizers.Sequence(
    [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
  )
  inner.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size, special_tokens=[END], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
  )  # fmt: skip
  inner.train_from_iterator(texts, trainer)
  return Tokenizer(inner)


def train_words(texts: Iterable[str]) -> Tokenizer:
  """A tokenizer whose tokens are the words that occur, in alphabetical order from id 3 on.

  The ids before them are `<|end|>`, `<|mask|>` and `<|unknown|>`, which stands for any other word.
  """
  words = sorted({word for text in texts for word in text.split()})
  unknown = "<|unknown|>"
  vocabulary = {word: i for i, word in enumerate((END, MASK, unknown, *words))}
  inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
  inner.add_special_tokens([END, MASK])
  inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  return Tokenizer(inner)
