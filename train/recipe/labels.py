"""What there is to learn from: counted before the first step, and refused where it is nothing.

Letters: R rows, T row length.
"""

from collections.abc import Callable, Sequence

import numpy as np

from specjax.data.packing import PackedRows, pack
from specjax.names.load import Model
from specjax.train.recipe.texts import Document

TRAIN, HELD_OUT = "train", "held_out"


def counted(part: str, labels: np.ndarray, note: str = "") -> np.ndarray:
  """Prints how many rows [R, ..] have a label, which is one that is True, and says which: bool[R].

  Raises:
    ValueError: none has one, so that nothing is trained or judged.
  """
  some = np.asarray(labels.any(axis=tuple(range(1, labels.ndim))))
  said = f"{part}: {len(some)} rows, {len(some) - some.sum()} of them without a label"
  if not some.any():
    purpose = "judge by" if part.startswith(HELD_OUT) else "train on"
    raise ValueError(f"{said}{note}: there is nothing to {purpose}.")
  print(f"{said}; {labels.sum()} labels{note}.")
  return some


def packed(
  part: str,
  documents: Sequence[Document],
  length: int,
  rows_of: Callable[[Sequence[Document], int], PackedRows] = pack,
  labels: Callable[[PackedRows], np.ndarray] = lambda rows: rows.mask,
) -> PackedRows:
  """Documents as rows of T tokens, and what it costs to cut them; see `counted`.

  Raises:
    ValueError: no row has a label.
  """
  rows = rows_of(documents, length)
  longer = sum(len(ids) > length for ids, _ in documents)
  lost = sum(sum(own[length:]) for _, own in documents)
  note = f"; {longer} of {len(documents)} texts are cut at length={length} and lose {lost} labels"
  counted(part, labels(rows), note if longer else "")
  return rows


def check_length(length: int, *models: Model) -> None:
  """Raises ValueError where rows are longer than the positions of a model that reads them."""
  for model in models:
    most = model.config.max_length
    if length > most:
      raise ValueError(
        f"`length` must be at most {most}, the positions of {model.name}, got {length}."
      )


def check_prompts(part: str, prompts: Sequence[Sequence[int]], length: int) -> None:
  """Raises ValueError where every answer would begin after the end of a row; none is written."""
  shortest = min(map(len, prompts))
  if shortest >= length:
    raise ValueError(
      f"`length` must be more than {shortest}, the tokens of the shortest of the {len(prompts)} "
      f"questions of {part}, got {length}: no answer would be read."
    )
