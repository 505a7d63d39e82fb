"""Which answers to the questions of ParallelBench are right, and which are so to the letter.

Kang et al. 2025 (arXiv 2510.04767). The rules are those of the published program, its `score` and
`score_strict`: letters count as they are written, upper or lower case. It judges the grammar of a
sentence by another program, which is left out: here a sentence is right if every word is in it.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from specjax.data import lists

SQUARE, SUDOKU, SENTENCE = "latin_square_n4", "sudoku_n4", "words_to_sentence"


class Score(NamedTuple):
  """Whether an answer is right.

  Attributes:
    lenient: whatever stands around it, and however it is set out.
    strict: also in the form that was asked for.
  """

  lenient: bool
  strict: bool


def score(kind: str, label: Any, answer: str) -> Score:
  """The score of an answer to a question of a kind, by its label, see `parallelbench.Record`."""
  if kind == SUDOKU:
    lines = [line.strip() for line in answer.split("\n") if line.strip()]
    return Score(_grid(lines, len(label)) == list(label), lines == list(label))
  if kind == SQUARE:
    return Score(*[_is_square(label["symbols"], answer)] * 2)
  if kind.startswith(SENTENCE):
    return Score(*[all(word in answer for word in label["words"])] * 2)

  def right(said: Sequence[str] | None) -> bool:
    if said is None or isinstance(label, tuple):
      return said is not None and tuple(said) == label
    question = lists.Question(kind, label["input"], label.get("word", ""))
    return lists.TASKS[kind].right(question, said)

  return Score(right(listed(answer)), right(_quoted(answer)))


def _inside(text: str) -> tuple[str, bool]:
  """(what the last bracket encloses, whether it is opened and closed)."""
  _, opened, rest = text.rpartition("[")
  inside, closed, _ = rest.partition("]")
  return inside, bool(opened and closed)


def listed(text: str) -> list[str]:
  """The parts between commas in the last brackets of a text, without quotes and spaces."""
  return [part.strip('" ') for part in _inside(text)[0].split(",") if part.strip()]


def _quoted(text: str) -> list[str] | None:
  """The same if all is set out as `["a", "b"]`, else None."""
  inside, whole = _inside(text)
  parts = inside.split(", ")
  if not whole or not all(re.fullmatch('"[^"]*"', part) for part in parts):
    return None
  return [part[1:-1] for part in parts]


def _grid(lines: Sequence[str], n: int) -> list[str]:
  """The lines that have n digits, without what is between them."""
  found = ["".join(re.findall("[0-9]", line)) for line in lines]
  return [row for row in found if len(row) == n]


def _is_square(symbols: Sequence[str], text: str) -> bool:
  """Whether the first n lines that have all n symbols, and no others, make a Latin square.

  Other lines are skipped. As in the published program a line may repeat a symbol after the others:
  only as many columns count as the shortest line has.
  """
  wanted = set(symbols)
  lines = [[cell.strip() for cell in line.split(",")] for line in text.split("\n")]
  rows = [row for row in lines if set(row) == wanted][: len(wanted)]
  columns = zip(*rows, strict=False)
  return len(rows) == len(wanted) and all(set(column) == wanted for column in columns)
