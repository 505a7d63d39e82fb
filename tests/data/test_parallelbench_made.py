"""Questions of ParallelBench's kinds that are made here: read back, judged and all different."""

import itertools
import json
import re

import pytest

from specjax.data import parallelbench_made
from specjax.data.parallelbench import read
from specjax.data.parallelbench_made import MAKERS, Config, main, records
from specjax.data.parallelbench_score import score


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  path = tmp_path_factory.mktemp("made") / "questions"
  main(Config(str(path), count=6, seed=3))
  return path


def test_every_example_is_to_the_letter(directory):
  """By the labels of the questions themselves: an example is a question's own where it has one."""
  made = read(directory)
  assert len(made) == 6 * len(MAKERS) and {r.task for r in made} <= {r.kind for r in made}
  for task in MAKERS:
    raw = [json.loads(line) for line in (directory / f"{task}.jsonl").read_text().splitlines()]
    for each, record in zip(raw, read(directory / f"{task}.jsonl"), strict=True):
      label = each["label"]
      own = label if isinstance(label, str) else label["example"]
      assert score(record.kind, record.label, own) == (True, True)
      said = each["messages"][1]["content"]
      if record.kind != "words_to_sentence_easy":  # any words may be in one sentence
        assert score(record.kind, record.label, said) == (False, False)
    texts = [turn["content"] for each in raw for turn in each["messages"][::2]]
    assert len(set(texts)) == 7  # six questions, and one example before them all


def test_the_answers_of_operations_with_a_place():
  """Said again in plain Python from the text of the question."""

  def names(text: str) -> list[str]:
    return re.findall(r'"([^"]+)"', text)

  for task in ("replace_index", "insert_index", "remove_index", "sort", "reverse", "copy"):
    for record in records(f"waiting_line_{task}", 8, seed=1):
      text = record["messages"][-1]["content"]
      line, what = text.split("\n\n")[1:]
      wanted, at = names(line), int((re.findall(r"\d+", what) or ["0"])[0])
      word = " ".join(what.split()[:2])
      if task == "replace_index":
        wanted[at - 1] = word
      elif task == "insert_index":
        wanted = [*wanted[:at], word, *wanted[at:]]
      elif task == "remove_index":
        del wanted[at - 1]
      elif task != "copy":
        wanted = sorted(wanted) if task == "sort" else wanted[::-1]
      assert names(record["label"]) == wanted


def solutions(puzzle: list[str]) -> list[list[str]]:
  """All ways to fill a sudoku of 4 by 4, row by row."""
  options = [
    ["".join(p) for p in itertools.permutations("1234")
     if all(g in ("_", x) for g, x in zip(row, p, strict=True))]
    for row in puzzle
  ]  # fmt: skip
  boxes = [[4 * r + c for r in (i, i + 1) for c in (j, j + 1)] for i in (0, 2) for j in (0, 2)]
  found = []
  for rows in itertools.product(*options):
    flat = "".join(rows)
    parts = [flat[c::4] for c in range(4)] + ["".join(flat[i] for i in box) for box in boxes]
    if all(len(set(part)) == 4 for part in parts):
      found.append(list(rows))
  return found


def test_a_sudoku_has_one_solution():
  for record in records("puzzles_sudoku_n4", 5, seed=2):
    puzzle = record["messages"][-1]["content"].split("\n")[-4:]
    assert "".join(puzzle).count("_") == 8
    assert solutions(puzzle) == [record["label"].split("\n")]


def test_there_are_288_sudokus():
  assert len(parallelbench_made._grids()) == 288


def test_seeds_decide(directory):
  task = "waiting_line_copy"
  assert records(task, 3, seed=1) == records(task, 3, seed=1) != records(task, 3, seed=2)


@pytest.mark.parametrize(
  ("arguments", "words"),
  [(("fold", 1),
   "`task` must be one of waiting_line_copy, waiting_line_sort.*got "
   r"'fold'\."), (("waiting_line_copy", 0),
   r"`count` must be between 1 and 10000, got 0\."),
   (("waiting_line_copy", 1, -1), r"`seed` must be between 0 and 4294967295, got -1\.")],
)  # fmt: skip
def test_what_is_not_made(arguments, words):
  with pytest.raises(ValueError, match=words):
    records(*arguments)


def test_files_are_not_written_over(directory):
  with pytest.raises(ValueError, match=r"`out` must be a directory without \.jsonl files, got"):
    main(Config(str(directory)))
