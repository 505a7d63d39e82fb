"""The published questions of ParallelBench: its layout, and what is right.

Kang et al. 2025 (arXiv 2510.04767). A file holds one task, named at its end, such as
`waiting_line_copy.jsonl` or `waiting_line/copy.jsonl`. A line is a record, or has it under `doc`:

    {"messages": [{"role": "user", "content": ..}, ..], "label": ..}

The messages are an example with its answer, and the question. The label is the answer as text or,
where many are right, what is needed to tell.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specjax.data import lists

SQUARE, SUDOKU, SENTENCE = "latin_square_n4", "sudoku_n4", "words_to_sentence"
TASKS = (*lists.TASKS, SQUARE, SUDOKU, *(f"{SENTENCE}_{x}" for x in ("easy", "medium", "hard")))
REWRITING = ("paraphrasing", "summarization")  # judged by other models: not here


class Record(NamedTuple):
  """A published question.

  Attributes:
    task: its name in TASKS.
    messages: turns of `role` and `content`.
    label: see the top of this file.
  """

  task: str
  messages: Sequence[Mapping[str, str]]
  label: Any


def _list(text: str) -> list[str] | None:
  """The last list of strings in a text, None if there is none."""
  start, end = text.rfind("["), text.rfind("]")
  try:
    found = json.loads(text[start : end + 1]) if 0 <= start < end else None
  except json.JSONDecodeError:
    return None
  return found if isinstance(found, list) and all(isinstance(x, str) for x in found) else None


def _task(file: pathlib.Path) -> str:
  name = f"{file.parent.name}_{file.stem}"
  found = [task for task in TASKS if name.endswith(task)]
  if not found:
    raise ValueError(f"{file}: its name ends with none of {', '.join(TASKS)}.")
  return max(found, key=len)


def read(path: str | pathlib.Path) -> list[Record]:
  """Records of a file, or of all .jsonl files under a directory but those of rewriting.

  Raises:
    ValueError: no such file, a file of no known task, or a line that is no record.
  """
  path = pathlib.Path(path)
  files = [path] if path.is_file() else sorted(path.rglob("*.jsonl"))
  files = [file for file in files if file == path or not file.stem.endswith(REWRITING)]
  if not files:
    raise ValueError(f"{path}: no .jsonl file there.")
  records = []
  for file in files:
    task = _task(file)
    for number, line in enumerate(file.read_text().splitlines(), 1):
      if not line.strip():
        continue
      try:
        raw = json.loads(line)
        raw = raw.get("doc", raw)
        record = Record(task, raw["messages"], raw["label"])
        is_right(record, "")  # refuses a label that it cannot read
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}:{number}: expected `messages` and the `label` of {task}, "
                         f"not {line:.60}.") from error  # fmt: skip
      records.append(record)
  return records


def is_right(record: Record, answer: str) -> bool:
  """Whether `answer` is right; of sentences only whether every word is in it, not their grammar."""
  task, label = record.task, record.label
  if task == SQUARE:
    return lists.is_latin_square(label["symbols"], answer.strip().replace("\n", ",").split(","))
  if task == SUDOKU:
    return answer.strip() == label.strip()
  if task.startswith(SENTENCE):
    return all(word.lower() in answer.lower() for word in label["words"])
  said = _list(answer)
  if isinstance(label, str):
    wanted = _list(label)
    if wanted is None:
      raise ValueError(f"label={label!r:.60}: expected a list of names.")
    return said == wanted
  question = lists.Question(task, tuple(label["input"]), label.get("word") or "")
  return said is not None and lists.TASKS[task].right(question, said)
