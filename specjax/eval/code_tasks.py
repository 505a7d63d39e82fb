"""What a local coder is asked: our own tasks, with tests where an answer can be judged.

The texts lie in `code_tasks/`, a file for each category: blocks begin with a line "===", parts of a
block with "--- NAME". The first part is what is asked; `file` is a file to be edited; `tests` are
Python statements that see the answer's names, or the parsed object `answer`; `solution` is an
answer that passes; `change` makes such an answer of `file`, lines "old => new" with "⏎" for a new
line.
"""

import json
import pathlib
import re
from typing import NamedTuple

from specjax.eval import code_sandbox

_TEXTS = pathlib.Path(__file__).with_name("code_tasks")
CATEGORIES = ("describe", "edit", "summarise", "json", "chat")
_ASK = {
  "describe": "Write this in Python: {asked}\nAnswer with the code alone.",
  "edit": "{asked} Answer with the whole file and nothing else.\n\n```python\n{file}\n```",
  "summarise": "Summarise this text in two sentences.\n\n{asked}",
  "json": "{asked}\nAnswer with one JSON object and nothing else.",
  "chat": "{asked}",
}
_FENCED = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)


class Task(NamedTuple):
  """A question of one turn; the first three are those of `spec_bench.Question`.

  Attributes:
    number: among all tasks, from 1.
    category: one of CATEGORIES.
    turns: what is asked.
    tests: of the answer; "" where none can judge it.
    solution: a text that passes the tests, "" where there are none.
  """

  number: int
  category: str
  turns: tuple[str, ...]
  tests: str
  solution: str


def _changed(file: str, change: str) -> str:
  for line in change.splitlines():
    old, new = line.replace("⏎", "\n").split(" => ", 1)
    file = (file + "\n").replace(old, new).rstrip("\n")
  return file


def _task(number: int, category: str, block: str) -> Task:
  names = ["asked", *re.findall(r"^--- (\w+)$", block, re.MULTILINE)]
  parts = [part.strip("\n") for part in re.split(r"^--- \w+$", block, flags=re.MULTILINE)]
  found = dict(zip(names, parts, strict=True))
  asked = _ASK[category].format_map(found)
  solution = found.get("solution", "")
  if "change" in found:
    solution = _changed(found["file"], found["change"])
  return Task(number, category, (asked,), found.get("tests", ""), solution)


def read() -> list[Task]:
  """All tasks, sorted by category."""
  blocks = [
    (category, block)
    for category in CATEGORIES
    for block in re.split(
      r"^===\n", (_TEXTS / f"{category}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
  ]
  return [_task(i, *each) for i, each in enumerate(blocks, 1)]


def _answered(text: str) -> str:
  """The first block of code of an answer, which may be cut off; the whole answer has none."""
  block = _FENCED.search(text)
  return block[1] if block else text


def failure(task: Task, text: str, seconds: float = code_sandbox.SECONDS) -> str:
  """ "" where an answer passes the tests of its task, else one line that says why not."""
  answer = _answered(text)
  if task.category == "json":
    try:
      parsed = json.loads(answer)
    except ValueError as error:
      return f"no JSON: {error}"
    answer = f"import json\nanswer = json.loads({json.dumps(parsed)!r})"
  return code_sandbox.failure(f"{answer}\n\n{task.tests}", seconds)
