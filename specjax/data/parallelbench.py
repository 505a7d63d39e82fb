"""The published questions of ParallelBench: the layout of their files, and the right answers.

Kang et al. 2025 (arXiv 2510.04767). A file holds one task, named at its end, such as
`waiting_line_copy.jsonl` or `waiting_line/copy.jsonl`. A line is a record, or has it under `doc`:

    {"messages": [{"role": "user", "content": ..}, ..], "label": ..}

The messages are an example with its answer, and the question. The label is the answer as text or,
where many are right, what is needed to tell.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specjax import checks, schema
from specjax.data import lists

SQUARE, SUDOKU, SENTENCE = "latin_square_n4", "sudoku_n4", "words_to_sentence"
TASKS = (*lists.TASKS, SQUARE, SUDOKU, *(f"{SENTENCE}_{x}" for x in ("easy", "medium", "hard")))
REWRITING = ("paraphrasing", "summarization")  # other models judge these: they are left out


class Record(NamedTuple):
  """A published question: its name in TASKS, turns of `role` and `content`, and its label."""

  task: str
  messages: Sequence[Mapping[str, str]]
  label: Any


def _list(text: str) -> list[str] | None:
  """The last list of strings in a text, None if there is none."""
  start, end = text.rfind("["), text.rfind("]")
  try:
    found = schema.parse(text[start : end + 1], "answer") if 0 <= start < end else None
  except ValueError:
    return None
  return found if isinstance(found, list) and all(isinstance(x, str) for x in found) else None


def _task(file: pathlib.Path) -> str:
  name = f"{file.parent.name}_{file.stem}"
  found = [task for task in TASKS if name.endswith(task)]
  if not found:
    raise ValueError(f"the name of {file} ends with none of {', '.join(TASKS)}.")
  return max(found, key=len)


def read(path: str | pathlib.Path) -> list[Record]:
  """Records of a file, or of all .jsonl files under a directory but those of REWRITING.

  It raises ValueError for no such file, a file of no known task, or a line that is no record.
  """
  path = pathlib.Path(path)
  files = [path] if path.is_file() else sorted(path.rglob("*.jsonl"))
  files = [file for file in files if file == path or not file.stem.endswith(REWRITING)]
  if not files:
    raise ValueError(f"{path}: no .jsonl file there.")
  records = []
  for file in files:
    task = _task(file)
    for number, line in enumerate(schema.contents(file).split(b"\n"), 1):
      if line.strip():
        records.append(_record(task, schema.parse(line, f"{file}:{number}"), f"{file}:{number}"))
  return records


def _record(task: str, raw: Any, where: str) -> Record:
  raw = raw.get("doc", raw) if isinstance(raw, dict) else raw
  if not isinstance(raw, dict) or not {"messages", "label"} <= raw.keys():
    raise ValueError(f"{where}: expected an object with `messages` and the `label` of {task}.")
  checks.sequence(f"{where}: messages", raw["messages"], "a list of turns")
  label, name = raw["label"], f"{where}: label"
  if task == SUDOKU or (isinstance(label, str) and task in lists.TASKS):
    checks.text(name, label)
    if task != SUDOKU and _list(label) is None:
      checks.refuse(name, label, "a list of names")
    return Record(task, raw["messages"], label)
  key = "symbols" if task == SQUARE else "words" if task.startswith(SENTENCE) else "input"
  if not isinstance(label, dict):
    checks.refuse(name, label, f"an object with {key}, the `label` of {task}")
  held = schema.fields(label, {key: tuple[str, ...], "word": str}, name, [key])
  return Record(task, raw["messages"], held)


def is_right(record: Record, answer: str) -> bool:
  """Whether `answer` is right; a sentence is if every word is in it, whatever its grammar."""
  task, label = record.task, record.label
  if task == SQUARE:
    return lists.is_latin_square(label["symbols"], answer.strip().replace("\n", ",").split(","))
  if task == SUDOKU:
    return answer.strip() == label.strip()
  if task.startswith(SENTENCE):
    return all(word.lower() in answer.lower() for word in label["words"])
  said = _list(answer)
  if isinstance(label, str):
    return said is not None and said == _list(label)
  question = lists.Question(task, label["input"], label.get("word", ""))
  return said is not None and lists.TASKS[task].right(question, said)
