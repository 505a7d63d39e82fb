"""Bigram tables: which token follows which, as log-probabilities over a draft vocabulary.

Letters: V vocabulary, W draft vocabulary.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from specjax import checks


def bigram(
  texts: Iterable[Sequence[int] | np.ndarray],
  vocab_size: int,
  vocabulary: np.ndarray | None = None,
  prior: float = 1.0,
) -> np.ndarray:
  """f32[W, W]: entry i, j is the log-probability that token j follows token i, all finite.

  The distribution after u is (count(u, v) + prior * p(v)) / (count(u) + prior): where there are
  many counts they decide, where there are few the unigram distribution p does. p has one count of
  every token added. All counts are among the W tokens: a pair with a token outside is skipped. The
  table is dense and takes 4 W ** 2 bytes; the counting needs memory for the text beside it.

  Args:
    texts: ids of each text; nothing follows a text's last token.
    vocabulary: i32[W], the ids of a reduced vocabulary; None is all V.
    prior: how many counts the unigram distribution is worth, more than 0.

  Raises:
    ValueError: prior is not positive, or a text or the vocabulary has an id outside 0..V - 1.
  """
  checks.number("prior", prior, above=0, note="at 0 unseen pairs would be impossible")
  ids = np.arange(vocab_size) if vocabulary is None else np.asarray(vocabulary)
  if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
    raise ValueError(f"vocabulary has an id outside 0 to {vocab_size - 1}.")
  W = len(ids)
  place = np.full(vocab_size, -1, np.int64)
  place[ids] = np.arange(W)
  single = np.ones(W)
  pairs = [np.zeros(0, np.int64)]
  for text in texts:
    text = np.asarray(text, np.int64)
    if text.size and not 0 <= text.min() <= text.max() < vocab_size:
      raise ValueError(f"texts has an id outside 0 to {vocab_size - 1}.")
    inside = place[text]
    single += np.bincount(inside[inside >= 0], minlength=W)
    both = (inside[:-1] >= 0) & (inside[1:] >= 0)
    pairs.append(inside[:-1][both] * W + inside[1:][both])
  seen, counts = np.unique(np.concatenate(pairs), return_counts=True)
  first, second = np.divmod(seen, W)
  table = np.tile((prior * single / single.sum()).astype(np.float32), (W, 1))
  table[first, second] += counts.astype(np.float32)
  after = np.bincount(first, weights=counts, minlength=W) + prior
  table /= after[:, None].astype(np.float32)
  return np.log(table, out=table)
