"""A datastore: the tokens of many texts and a suffix array, in which retrieval drafters search.

Letters: M tokens of all texts, a separator behind each text included.
"""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import checks
from specjax.data import sources

SEPARATOR = -1  # behind every text, so that nothing is found across two
COMPARED = 32  # tokens by which suffixes are ordered; a power of 2


class Datastore(NamedTuple):
  """Texts in the order of their suffixes; 8 bytes for a token.

  Attributes:
    tokens: i32[M], the texts one after the other, `SEPARATOR` behind each.
    order: i32[M], where the suffixes begin, sorted by their first `COMPARED` tokens.
  """

  tokens: np.ndarray
  order: np.ndarray


def ids(
  record: dict[str, Any], encode: Callable[[str | Sequence[int]], list[int]], field: str, index: int
) -> list[int]:
  """The ids of record `index`: those of an answer as training writes it, or of a text.

  Raises:
    ValueError: it is no answer and has no text in `field`, or `encode` refuses its ids.
  """
  if isinstance(record.get("answer"), list) and isinstance(record.get("prompt"), list):
    with sources.numbered(index):
      return encode([*record["prompt"], *record["answer"]])
  return encode(sources.text_of(record, field, index))


def build(texts: Iterable[Sequence[int]]) -> Datastore:
  """The datastore of texts, each a list of ids.

  Raises:
    ValueError: there is no token, or more than 2**31.
  """
  parts = [np.array([*text, SEPARATOR], np.int32) for text in texts]
  tokens = np.concatenate(parts or [np.zeros(0, np.int32)])
  if not (tokens != SEPARATOR).any():
    raise ValueError("texts have no token: a datastore needs one at least.")
  if len(tokens) >= 2**31:
    raise ValueError(f"texts have {len(tokens)} tokens: a datastore holds less than 2**31.")
  # Suffixes of equal rank agree in `width` tokens; two ranks make one of twice as many.
  rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
  width = 1
  while width < COMPARED:
    following = np.append(rank[width:] + 1, np.zeros(min(width, len(rank)), np.int64))
    rank = np.unique(rank * (len(rank) + 1) + following, return_inverse=True)[1].astype(np.int64)
    width *= 2
  return Datastore(tokens, np.argsort(rank, kind="stable").astype(np.int32))


def save(
  path: str | pathlib.Path, store: Datastore, vocab_size: int, tokens: str | None = None
) -> None:
  """Writes FILE.npz.

  Args:
    vocab_size, tokens: of the model whose ids these are; see `vocabulary.digest`.
  """
  np.savez(path, **store._asdict(), vocab_size=np.int32(vocab_size), words=np.str_(tokens or ""))


def load(path: str, vocab_size: int, tokens: str | None = None) -> Datastore:
  """Reads FILE.npz for a model; see `save` for the arguments.

  Raises:
    ValueError: there is no such file, it is no datastore, or one of another vocabulary.
  """
  what = f"datastore={checks.shown(path)}"
  if not pathlib.Path(path).is_file():
    raise ValueError(f"{what}: no such file; `specjax corpus` makes one.")
  try:
    with np.load(path) as file:
      held = {key: file[key] for key in ("tokens", "order", "vocab_size")}
      words = str(file["words"]) if "words" in file else ""  # files of old releases lack them
  except Exception as error:  # whatever numpy raises for a file of another kind
    raise ValueError(f"{what} is no datastore ({type(error).__name__}).") from error
  store = Datastore(held["tokens"], held["order"])
  M = len(store.tokens)
  sound = store.tokens.dtype == store.order.dtype == np.int32 and store.order.shape == (M,)
  if not sound or M == 0 or not (np.sort(store.order) == np.arange(M)).all():
    raise ValueError(f"{what} is no datastore: its order is none of its tokens.")
  if int(held["vocab_size"]) != vocab_size or store.tokens.max() >= vocab_size:
    raise ValueError(
      f"{what} has ids of a vocabulary of {int(held['vocab_size'])}, the model one of {vocab_size}."
    )
  if words and tokens and words != tokens:
    raise ValueError(
      f"{what} has ids of another tokenizer than the model's, whose tokens differ; "
      "`specjax corpus` makes one of its own."
    )
  return store
