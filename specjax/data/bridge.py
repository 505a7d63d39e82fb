"""Two tokenizers side by side: how the tokens of one are spelled in those of the other.

Letters: V tokens of the target, X of the draft model, M the most that spell one, W a number of
tokens, L bytes of a token.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specjax.data.tokenizer import Tokenizer

MOST_PIECES = 4  # M: SmolLM2 spells 88 % of Qwen's tokens with as many, and those of most texts
MOST_BYTES = 16  # L


class Vocabulary(NamedTuple):
  """A tokenizer with the number of its model's tokens, and those that begin and end a text."""

  tokenizer: Tokenizer
  size: int
  start: tuple[int, ...]
  stop: tuple[int, ...]


class Spelling(NamedTuple):
  """See `models.common_tokens.Bridge`: i32[V, M], i32[V], i32[Z], i32[W] and i32[W]."""

  pieces: np.ndarray
  count: np.ndarray  # type: ignore[assignment]  # hides the tuple's method
  start: np.ndarray
  ours: np.ndarray
  theirs: np.ndarray


def _marks(ours: Vocabulary, theirs: Vocabulary) -> dict[int, int]:
  """The target's tokens that are no text, and the draft model's of the same name or use."""
  found = {}
  for i, token in ours.tokenizer.inner.get_added_tokens_decoder().items():
    same = theirs.tokenizer.id(token.content)
    if token.special and same is not None and i < ours.size and same < theirs.size:
      found[i] = same
  for one, other in ((ours.start, theirs.start), (ours.stop, theirs.stop)):
    if one and other:
      found.setdefault(one[0], other[0])
  return found


def longest_first(said: bytes, ids: Mapping[bytes, int]) -> list[int]:
  """The longest token each time of what is left of `said`; bytes without one are left out."""
  found, at, most = [], 0, max(map(len, ids), default=0)
  while at < len(said):
    size = next((n for n in range(min(most, len(said) - at), 0, -1) if said[at : at + n] in ids), 0)
    if size:
      found.append(ids[said[at : at + size]])
    at += size or 1
  return found


def _pieces(
  ours: Sequence[bytes], theirs: Sequence[bytes], tokenizer: Tokenizer
) -> list[list[int]]:
  """What spells each of the target's tokens: the draft model's split, where it says the same."""
  ids = {said: i for i, said in reversed([*enumerate(theirs)]) if said}
  texts = [said.decode(errors="replace") for said in ours]
  split = tokenizer.inner.encode_batch_fast(texts, add_special_tokens=False)
  own = (x.ids for x in split)
  return [
    found if b"".join(theirs[i] for i in found if i < len(theirs)) == said
    else longest_first(said, ids)
    for said, found in zip(ours, own, strict=True)
  ]  # fmt: skip


def spelling(ours: Vocabulary, theirs: Vocabulary, most: int = MOST_PIECES) -> Spelling:
  """How a draft model with the tokens `theirs` reads those of a target with `ours`.

  A token that `most` pieces do not spell is read as its last ones, and one that is no text, and of
  which the draft model has none of the same name or use, as a space.
  """
  marks = _marks(ours, theirs)
  said, known = (x.tokenizer.spoken_bytes(x.size) for x in (ours, theirs))
  pieces = _pieces(said, known, theirs.tokenizer)
  space = (longest_first(b" ", {x: i for i, x in enumerate(known) if x}) or [0])[0]
  table, count = np.zeros((ours.size, most), np.int32), np.ones(ours.size, np.int32)
  common: dict[int, int] = {}
  for i, found in enumerate(pieces):
    own = [marks[i]] if i in marks else found[-most:] or [space]
    table[i, : len(own)], count[i] = own, len(own)
    whole = i in marks or (len(found) == 1 and known[found[0]] == said[i])
    if whole:  # of several tokens that say the same the first is drafted
      common.setdefault(own[0], i)
  start = [] if ours.start and ours.start[0] in marks else [*theirs.start]
  pairs = np.asarray([*common.items()], np.int32).reshape(-1, 2)
  return Spelling(table, count, np.asarray(start, np.int32), pairs[:, 1], pairs[:, 0])


def said_by(vocabulary: Vocabulary, most: int = MOST_BYTES) -> tuple[np.ndarray, np.ndarray]:
  """(u8[V, L], i32[V]): the bytes that each token says, and how many; 0 where they are too many."""
  spoken = vocabulary.tokenizer.spoken_bytes(vocabulary.size)
  size = np.asarray([len(x) if len(x) <= most else 0 for x in spoken], np.int32)
  padded = b"".join(x[:most].ljust(most, b"\0") for x in spoken)
  said = np.frombuffer(padded, np.uint8).reshape(-1, most)
  return np.where(size[:, None] > 0, said, 0).astype(np.uint8), size
