"""Packing of documents of many lengths into rows of one length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax import checks


class PackedRows(NamedTuple):
  """Training rows.

  Attributes:
    tokens: i32[R, T].
    position: i32[R, T], from 0 within each document.
    segment: i32[R, T], the number of the document in its row; -1 is padding.
    mask: bool[R, T], True where the model is trained to predict this token.
  """

  tokens: np.ndarray
  position: np.ndarray
  segment: np.ndarray
  mask: np.ndarray


def pack(
  documents: Sequence[tuple[list[int], list[bool]]], length: int, *, first: bool = False
) -> PackedRows:
  """Packs documents (ids, mask) first-fit, the longest first, into rows of `length` T.

  Documents are cut to T. A document's first token, which nothing precedes, is trained with `first`
  alone. Empty documents are left out; ValueError where no other is left, or for a length below 1.
  """
  checks.whole("length", length, 1)
  documents = [d for d in documents if d[0]]
  if not documents:
    raise ValueError("documents is empty: nothing to pack.")
  order = sorted(range(len(documents)), key=lambda i: -len(documents[i][0]))
  rows: list[list[int]] = []
  space: list[int] = []
  first_open = 0
  for i in order:
    size = min(len(documents[i][0]), length)
    while first_open < len(rows) and space[first_open] == 0:
      first_open += 1
    for r in range(first_open, len(rows)):
      if space[r] >= size:
        break
    else:
      r = len(rows)
      rows.append([])
      space.append(length)
    rows[r].append(i)
    space[r] -= size
  shape = (len(rows), length)
  packed = PackedRows(
    np.zeros(shape, np.int32),
    np.zeros(shape, np.int32),
    np.full(shape, -1, np.int32),
    np.zeros(shape, bool),
  )
  for r, members in enumerate(rows):
    start = 0
    for s, i in enumerate(members):
      ids, mask = (x[:length] for x in documents[i])
      span = slice(start, start + len(ids))
      packed.tokens[r, span] = ids
      packed.position[r, span] = np.arange(len(ids))
      packed.segment[r, span] = s
      packed.mask[r, span] = mask
      packed.mask[r, start] &= first
      start += len(ids)
  return packed
