"""Text to ids and back, through the `tokenizers` library."""

import pathlib
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

END = "<|end|>"


class Tokenizer:
  """A `tokenizers.Tokenizer` that never adds tokens of its own accord."""

  def __init__(self, inner: tokenizers.Tokenizer):
    self.inner = inner

  @classmethod
  def load(cls, path: str | pathlib.Path) -> "Tokenizer":
    """Reads a tokenizer.json; ValueError where it is damaged."""
    try:
      return cls(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises no narrower class
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
    return self.inner.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids; end markers and other special tokens are left out."""
    return self.inner.decode(list(ids), skip_special_tokens=True)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """A byte-level BPE tokenizer: no unknown text, digits one by one, `<|end|>` as id 0."""
  inner = tokenizers.Tokenizer(models.BPE())
  inner.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
  )
  inner.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[END],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  inner.train_from_iterator(texts, trainer)
  return Tokenizer(inner)
