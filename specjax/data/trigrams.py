"""Trigram tables: of each pair of tokens in some texts, the tokens that follow it most often.

Letters: M tokens of all texts, P pairs of tokens that some token follows, C followers of a pair, V
vocabulary.
"""

from typing import NamedTuple

import numpy as np

FOLLOWERS = 12  # C, as published


class Trigrams(NamedTuple):
  """What follows pairs of tokens; 4 (V + 1) + 100 P bytes.

  Attributes:
    start: i32[V + 1]; the pairs that begin with token a have the rows start[a] to start[a + 1].
    second: i32[P], the other token of each pair, ascending for each first one.
    following: i32[P, C], the most frequent first, -1 where there are fewer.
    share: f32[P, C], of all that followed the pair.
  """

  start: np.ndarray
  second: np.ndarray
  following: np.ndarray
  share: np.ndarray


def count(tokens: np.ndarray, vocab_size: int) -> Trigrams:
  """The table of texts, tokens i32[M] with a negative one between two texts.

  Of followers that are equally frequent, those with lower ids come first.
  """
  triples = np.stack([tokens[:-2], tokens[1:-1], tokens[2:]], 1).astype(np.int64)
  triples = triples[(triples >= 0).all(1)]
  codes, times = np.unique(
    (triples[:, 0] * vocab_size + triples[:, 1]) * vocab_size + triples[:, 2], return_counts=True
  )
  pairs, third = np.divmod(codes, vocab_size)
  order = np.lexsort((third, -times, pairs))
  pairs, third, times = pairs[order], third[order], times[order]
  unique, first, pair = np.unique(pairs, return_index=True, return_inverse=True)
  rank = np.arange(len(pairs)) - first[pair]
  total = np.bincount(pair, weights=times, minlength=len(unique))
  following = np.full((len(unique), FOLLOWERS), -1, np.int32)
  share = np.zeros((len(unique), FOLLOWERS), np.float32)
  kept = rank < FOLLOWERS
  following[pair[kept], rank[kept]] = third[kept]
  share[pair[kept], rank[kept]] = times[kept] / total[pair[kept]]
  a, b = np.divmod(unique, vocab_size)
  start = np.searchsorted(a, np.arange(vocab_size + 1)).astype(np.int32)
  return Trigrams(start, b.astype(np.int32), following, share)
