"""Text to ids and back, through the `tokenizers` library."""

import codecs
import functools
import itertools
import pathlib
import re
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from specjax import checks

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
    content = checks.contents(path)
    checks.parse_json(content, str(path))
    try:
      return cls(tokenizers.Tokenizer.from_buffer(content))
    except Exception as error:
      if type(error) not in (Exception, ValueError):  # the library raises no narrower class
        raise
      raise ValueError(f"{path} is no tokenizer.json: {error}.") from error

  def save(self, path: str | pathlib.Path) -> None:
    self.inner.save(str(path), pretty=False)

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

  def decode(self, ids: Iterable[int], after: Sequence[int] = ()) -> str:
    """The text that ids add to that of the ids `after`; special tokens are left out."""
    stream = self.stream(after)
    return stream.add(ids) + stream.end()

  def stream(self, after: Sequence[int] = ()) -> "DecodeStream":
    """The text of ids that come one by one after others."""
    return DecodeStream(self, after)

  def special_ids(self, name: str, words: Iterable[str]) -> list[int]:
    """The ids of those words, called `name`, that are special tokens and so are in no text.

    Raises:
      ValueError: a word holds a special token beside other text.
    """
    found = []
    for word in words:
      ids = self.encode(word)
      # What the tokenizer does not know is a special token, too, but not by its name.
      special = [i for i in ids if i in self._special and str(self.inner.id_to_token(i)) in word]
      if special and len(ids) > 1:
        checks.refuse(name, word, "text without special tokens, or one special token alone")
      found += special
    return found

  def spoken_bytes(self, vocab_size: int) -> list[bytes]:
    """The bytes that each id adds in the middle of a text; special and unused ids add none.

    `vocab_size` is the model's, which may be larger than the tokenizer's. `joint` is left out.
    """
    texts = ((i, self._text(i)) for i in range(min(vocab_size, self.vocab_size)))
    before = next((i for i, text in texts if text.strip() and "\ufffd" not in text), None)
    spoken = (self.spoken(i, before) or b"" for i in range(vocab_size))
    return [said.removeprefix(self.joint) for said in spoken]

  @property
  def joint(self) -> bytes:
    """What a text has between any two ids: a space for a tokenizer that says nothing of texts."""
    return b"" if self._decoder else b" "

  def spoken(self, i: int, before: int | None) -> bytes | None:
    """The bytes that an id adds after the id `before`, or as the first of a text.

    None for an id that is no text, such as a special token.
    """
    token = None if i in self._special else self.inner.id_to_token(i)
    if token is None:
      return None
    if b'"ByteLevel"' in self._decoder:
      return _of_byte_level(token)
    if b'"ByteFallback"' in self._decoder and re.fullmatch("<0x[0-9A-F]{2}>", token):
      return bytes([int(token[3:5], 16)])
    if before is None:
      return self._text(i).encode()
    return self._text(before, i)[len(self._text(before)) :].encode()

  def _text(self, *ids: int) -> str:
    return self.inner.decode(ids, skip_special_tokens=True)

  @functools.cached_property
  def _special(self) -> frozenset[int]:
    added = self.inner.get_added_tokens_decoder()
    return frozenset(i for i, token in added.items() if token.special)

  @functools.cached_property
  def _decoder(self) -> bytes:
    """The JSON of the library's decoder."""
    return b"" if self.inner.decoder is None else self.inner.decoder.__getstate__()


class DecodeStream:
  """The text of ids while they come: what `add` and at last `end` return is `Tokenizer.decode`.

  A character of which only the first bytes have come waits for the others. Where the ids before
  end with such a character, what completes it says the whole character.
  """

  def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()):
    self._tokenizer = tokenizer
    self._before: int | None = None
    self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    # A character has up to four bytes, so these ids hold the beginning of one that is not whole.
    spoken = (i for i in reversed(after) if tokenizer.spoken(i, None) is not None)
    self._unfinished = False
    self.add([*itertools.islice(spoken, 4)][::-1])
    self._unfinished = bool(self._utf8.getstate()[0])

  def add(self, ids: Iterable[int]) -> str:
    """What can be said now that these ids have come."""
    said = ""
    for i in ids:
      spoken = self._tokenizer.spoken(i, self._before)
      if spoken is not None:
        self._before, said = i, said + self._utf8.decode(spoken)
    return self._own(said)

  def end(self) -> str:
    """What is left to say when no more ids come."""
    return self._own(self._utf8.decode(b"", final=True))

  def _own(self, said: str) -> str:
    """A text without the sign for a character that the ids before left unfinished."""
    if said and self._unfinished:
      self._unfinished = False
      return said.removeprefix("\ufffd")
    return said


# A byte-level token writes a printable byte as itself, and any other as a letter from 256 on.
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
_BYTE_OF = {chr(b): b for b in _PRINTED} | {chr(256 + i): b for i, b in enumerate(_HIDDEN)}


def _of_byte_level(token: str) -> bytes:
  if all(c in _BYTE_OF for c in token):
    return bytes(_BYTE_OF[c] for c in token)
  return token.encode()  # added as text


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """A byte-level BPE tokenizer: it knows every text, splits digits, and has `<|end|>` as id 0."""
  inner = tokenizers.Tokenizer(models.BPE())
  digits = pre_tokenizers.Digits(individual_digits=True)
  inner.pre_tokenizer = pre_tokenizers.Sequence(
    [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
  )
  inner.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[END],
    show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
  )
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
