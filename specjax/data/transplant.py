"""New tokens as mixtures of old ones, so that a model reads and says another vocabulary.

Letters: V old tokens, W new ones, M the most old tokens that spell a new one, K neighbours, G
places of a bag, E width.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax import checks
from specjax.data.bridge import Vocabulary, spelling

MOST_PIECES = 16  # M
LONGEST = 4  # bytes of an n-gram
PLACES = 1024  # G
_ROWS = 512  # new tokens that are compared with all old ones at a time


class Mixture(NamedTuple):
  """Old tokens and their shares of each new one; shares of 0 alone stand for the mean of all.

  Attributes:
    ids: i32[W, M + K], old tokens.
    share: f32[W, M + K], their shares, of sum 1 or all 0.
    shared: bool[W], whether a new token is an old one.
  """

  ids: np.ndarray
  share: np.ndarray
  shared: np.ndarray


def bags(texts: Sequence[bytes]) -> np.ndarray:
  """f32[n, G]: the n-grams of up to four bytes in each text, counted by hash, as unit vectors."""
  found = np.zeros((len(texts), PLACES), np.float32)
  for row, text in zip(found, texts, strict=True):
    for n in range(1, LONGEST + 1):
      for at in range(len(text) - n + 1):
        row[zlib.crc32(text[at : at + n]) % PLACES] += 1
  return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1)


def _softmax(x: np.ndarray) -> np.ndarray:
  x = np.exp(x - x.max(1, keepdims=True))
  return x / x.sum(1, keepdims=True)


def mixture(
  new: Vocabulary,
  old: Vocabulary,
  neighbours: int = 3,
  weight: float = 0.3,
  temperature: float = 0.3,
) -> Mixture:
  """What each new token is made of (TokenAdapt, Sharthak et al. 2025, arXiv 2505.09738).

  A token that says the bytes of an old one, or is a mark of the same name or use, is that one.
  Another that says something is, locally, the old tokens that spell it: their shares are a softmax
  of the mean of how alike they are to the token, itself a softmax, and of their part of its length.
  Globally it is its nearest old tokens, by a softmax of how alike they are. A token that says
  nothing is the mean of all rows. So tokens of several words are made like any other.

  The paper judges by an external model of text embeddings how alike two tokens are. Here it is the
  cosine between their bags of n-grams of bytes, so neighbours look alike and need not mean alike.

  Args:
    neighbours: K.
    weight: of the global part; 0 leaves it out.
    temperature: of both softmaxes over old tokens; a high one gives parts equal shares.
  """
  checks.whole("neighbours", neighbours, 1, old.size)
  found = spelling(new, old, MOST_PIECES)
  said, known = (x.tokenizer.spoken_bytes(x.size) for x in (new, old))
  length, whole = (np.asarray([*map(len, texts)], np.float32) for texts in (known, said))
  live = np.arange(MOST_PIECES) < found.count[:, None]
  marks = set(found.ours.tolist())
  spelled = enumerate(zip(said, found.pieces[:, 0], strict=True))
  same = np.asarray([w in marks or (x != b"" and x == known[i]) for w, (x, i) in spelled])
  share = np.zeros((new.size, MOST_PIECES + neighbours), np.float32)
  share[same, 0] = 1
  ids = np.pad(found.pieces, ((0, 0), (0, neighbours)))
  every, other = bags(known), np.flatnonzero(~same & (whole > 0))
  for at in range(0, len(other), _ROWS):
    rows = other[at : at + _ROWS]
    alike = bags([said[w] for w in rows]) @ every.T
    pieces, off = found.pieces[rows], np.where(live[rows], 0, -np.inf)
    near = np.argpartition(-alike, neighbours - 1, 1)[:, :neighbours]
    of_parts, of_near = (np.take_along_axis(alike, x, 1) for x in (pieces, near))
    long = length[pieces] / whole[rows, None]
    own = _softmax((_softmax(of_parts + off) + long) / 2 / temperature + off)
    ids[rows, MOST_PIECES:] = near
    share[rows, :MOST_PIECES] = (1 - weight) * own
    share[rows, MOST_PIECES:] = weight * _softmax(of_near / temperature)
  return Mixture(ids, share, same)


def mixed(own: Mixture, matrix: np.ndarray) -> np.ndarray:
  """The rows f32[W, E] of the new tokens, of the old ones' rows [V, E]."""
  matrix = np.asarray(matrix, np.float32)
  found = np.zeros((len(own.ids), matrix.shape[1]), np.float32)
  for ids, share in zip(own.ids.T, own.share.T, strict=True):
    found += share[:, None] * matrix[ids]
  return np.where(own.share.any(1, keepdims=True), found, matrix.mean(0))
