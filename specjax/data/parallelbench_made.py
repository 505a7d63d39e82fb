r"""Questions of ParallelBench's kinds, made from a seed, in the layout of its files.

    python -m specjax.data.parallelbench_made --out questions
    specjax bench --suite parallelbench --model MODEL --published questions --max-new-tokens 64

The kinds and their sizes are those of Kang et al. 2025 (arXiv 2510.04767): ten operations on a
line of 3 to 6 people, Latin squares and sudokus of 4 by 4, and sentences of 4 given words. Texts,
names and words are our own, so that figures are not comparable with the published ones. A question
follows an example with its answer, which is one of a task's questions that is not asked. A sudoku
has 8 empty cells and, other than theirs, one solution.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import string
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import checks, command_line
from specjax.data import lists
from specjax.data.parallelbench_score import SENTENCE, SQUARE, SUDOKU

_SURNAMES = "Arden Birch Colby Drake Elgin Frost Gower Heath Irwin Joyce Keane Lodge"
_WORDS = (
  "apple baker bread candle chair cloud coat cousin door engine farmer field fish fruit garden "
  "glass guitar hammer horse island jacket kettle ladder lamp letter market meadow mirror mouse "
  "neighbour orange paper pencil picture pillow plate pocket rabbit river road rope sailor school "
  "shelf shirt shovel soup spoon stone street sugar table teacher ticket tower train tree window"
)
_SYMBOLS = string.ascii_uppercase + string.digits
_EMPTY = 8  # cells of a sudoku

_LINE = "These people stand in line at a ticket office, the first one first:\n\n{line}\n\n{what}"
_ONLY = "Answer with nothing but the new list, in the same form."
_WHAT = {
  "copy": "Repeat the list without any change.",
  "sort": "Put the list in alphabetical order, by first name.",
  "reverse": "Turn the list round, so that the last one comes first.",
  "shuffle": "Put the list in any other order, but not in the one it has.",
  "replace_index": "{word} takes the place of number {index}.",
  "insert_index": "{word} joins the line right behind number {index}.",
  "remove_index": "Number {index} leaves the line.",
  "replace_random": "{word} takes the place of somebody; choose whose.",
  "insert_random": "{word} joins the line somewhere; choose where.",
  "remove_random": "Somebody leaves the line; choose who.",
}


class Made(NamedTuple):
  """A question's text, a right answer, and the label that tells which answers are right."""

  text: str
  answer: str
  label: Any


def _listed(items: Sequence[str]) -> str:
  return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def _line(rng: np.random.Generator, task: str) -> Made:
  """An operation on 3 to 6 names; the label is the answer where only one is right."""
  count = int(rng.integers(3, 7))
  first, last = (rng.choice(x, count + 1, replace=False) for x in (lists.NAMES, _SURNAMES.split()))
  *items, spare = [f"{a} {b}" for a, b in zip(first, last, strict=True)]
  kind = lists.TASKS[task]
  # `lists` inserts before a place; behind number i is before place i + 1.
  place = int(rng.integers(1, count + 1)) if kind.needs_index else 0
  word = spare if kind.needs_word else ""
  question = lists.Question(task, tuple(items), word, place + (task == "insert_index"))
  answer = _listed(kind.answer(rng, question))
  what = f"{_WHAT[task].format(word=word, index=place)} {_ONLY}"
  label: Any = answer
  if task == "shuffle" or task.endswith("_random"):
    label = {"input": items, "example": answer} | ({"word": word} if word else {})
  return Made(_LINE.format(line=_listed(items), what=what), answer, label)


def _square(rng: np.random.Generator) -> Made:
  symbols = tuple(str(x) for x in rng.choice(list(_SYMBOLS), 4, replace=False))
  cells = lists.PUZZLES["latin_square"].answer(rng, lists.Question("latin_square", symbols))
  answer = "\n".join(",".join(cells[i : i + 4]) for i in range(0, 16, 4))
  text = (
    f"Fill a square of 4 rows and 4 columns with the symbols {', '.join(symbols)}, so that every "
    "row and every column has each of them once. Answer with nothing but the rows, one to a line, "
    "a comma between the symbols."
  )
  return Made(text, answer, {"symbols": list(symbols), "example": answer})


@functools.cache
def _grids() -> np.ndarray:
  """All 288 solved sudokus of 4 by 4, i64[288, 4, 4]."""
  rows = [np.array(row) for row in itertools.permutations(range(1, 5))]

  def fits(grid: list[np.ndarray]) -> bool:
    new, above = grid[-1], grid[:-1]
    if any((new == row).any() for row in above):
      return False
    pairs = [(grid[-2], new)] if len(grid) % 2 == 0 else []
    return all(len({*a[:2], *b[:2]}) == 4 for a, b in pairs)

  grids: list[list[np.ndarray]] = [[]]
  for _ in range(4):
    grids = [grid for old in grids for row in rows if fits(grid := [*old, row])]
  return np.array(grids)


def _sudoku(rng: np.random.Generator) -> Made:
  grids = _grids()
  while True:
    grid = grids[rng.integers(len(grids))]
    shown = ~np.isin(np.arange(16), rng.choice(16, _EMPTY, replace=False)).reshape(4, 4)
    if ((grids == grid) | ~shown).all((1, 2)).sum() == 1:
      break
  puzzle = np.where(shown, grid.astype(str), "_")
  answer = "\n".join("".join(map(str, row)) for row in grid)
  given = "\n".join("".join(row) for row in puzzle)
  text = (
    "Here is a small sudoku: every row, every column and every quarter has the digits 1 to 4 once. "
    f"Put a digit for each _ and answer with nothing but the four lines.\n\n{given}"
  )
  return Made(text, answer, answer)


def _sentence(rng: np.random.Generator) -> Made:
  words = [str(word) for word in rng.choice(_WORDS.split(), 4, replace=False)]
  text = f"Write one sensible sentence that has the words {', '.join(words)} in it."
  told = "Beside the {} I saw the {}, the {} and the {}.".format(*words)
  return Made(text, told, {"words": words, "example": told})


MAKERS: dict[str, Callable[[np.random.Generator], Made]] = {
  **{f"waiting_line_{task}": functools.partial(_line, task=task) for task in lists.TASKS},
  f"puzzles_{SQUARE}": _square,
  f"puzzles_{SUDOKU}": _sudoku,
  f"text_writing_{SENTENCE}_easy": _sentence,
}


def records(task: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
  """`count` different records of a task in MAKERS, each with `messages` and `label`.

  It raises ValueError for an unknown task, and a number that is not accepted.
  """
  checks.choice("task", task, MAKERS)
  checks.whole("count", count, 1, 10_000)
  checks.whole("seed", seed, 0, checks.SEED)
  rng = np.random.default_rng((seed, list(MAKERS).index(task)))
  made: dict[str, Made] = {}
  while len(made) <= count:
    one = MAKERS[task](rng)
    made.setdefault(one.text, one)
  example, *asked = made.values()
  return [
    {
      "messages": [
        {"role": "user", "content": example.text},
        {"role": "assistant", "content": example.answer},
        {"role": "user", "content": one.text},
      ],
      "label": one.label,
    }
    for one in asked
  ]


@dataclasses.dataclass(frozen=True)
class Config:
  """What is written."""

  out: str  # directory of the files, one for each task
  count: int = 100  # number of questions of each task
  seed: int = 0  # seed of the questions


def main(config: Config) -> None:
  """Writes a file for each task; ValueError where there are such files already."""
  out = pathlib.Path(checks.directory("out", config.out))
  if next(out.rglob("*.jsonl"), None) is not None:
    checks.refuse("out", config.out, "a directory without .jsonl files")
  out.mkdir(parents=True, exist_ok=True)
  for task in MAKERS:
    lines = [json.dumps(record) + "\n" for record in records(task, config.count, config.seed)]
    (out / f"{task}.jsonl").write_text("".join(lines))
  print(f"wrote {out}: {len(MAKERS)} tasks of {config.count} questions")


if __name__ == "__main__":
  prog = "python -m specjax.data.parallelbench_made"
  sys.exit(command_line.run(main, Config, __doc__, prog=prog))
