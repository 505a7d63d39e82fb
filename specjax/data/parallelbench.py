"""The published questions of ParallelBench: the layouts of their files.

Kang et al. 2025 (arXiv 2510.04767). A file holds one task, named at its end, such as
`waiting_line_copy.jsonl`, `waiting_line/copy.jsonl` or `words_to_sentence_easy_n3.jsonl`. A line is
a record, or has it under `doc`:

    {"messages": [{"role": "user", "content": ..}, ..], "label": ..}

or, as in the older files and in those of the hub,

    {"input": {KEY: VALUE, .., "icl_examples": [..]}, "answer": .., "prompt": "text with {KEY}"}

where `input` and `answer` may be JSON texts, and the prompt of a file whose records have none
stands in `task_config.yaml` beside it. An example has an `input` and an `answer` of its own.

The label, or answer, is the answer as text or, where many are right, what is needed to tell, see
`data.parallelbench_score`.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from specjax import checks
from specjax.data import lists
from specjax.data.parallelbench_score import SENTENCE, SQUARE, SUDOKU, listed

KINDS = (*lists.TASKS, SQUARE, SUDOKU, *(f"{SENTENCE}_{x}" for x in ("easy", "medium", "hard")))
# Other models judge these: they are left out.
REWRITING = ("paraphrasing", "summarization", "chatgpt_paraphrases", "samsum")
_NAMED = re.compile(rf"({'|'.join(sorted(KINDS, key=len, reverse=True))})(_n?\d+)?")


class Record(NamedTuple):
  """A published question.

  Attributes:
    task: its name, one of KINDS or such a name with a size at its end.
    kind: that one of KINDS, which says how an answer is judged.
    messages: turns of `role` and `content`: an example with its answer, and the question.
    label: a tuple of names, the rows of a grid, or an object of what is needed to tell.
  """

  task: str
  kind: str
  messages: Sequence[Mapping[str, str]]
  label: Any


def _task(file: pathlib.Path) -> tuple[str, str]:
  """(task, kind) by the name of a file."""
  name = f"{file.parent.name}_{file.stem}"
  found = [m for m in _NAMED.finditer(name) if m.end() == len(name)]
  if not found:
    raise ValueError(f"the name of {file} ends with none of {', '.join(KINDS)}.")
  return found[0][0], found[0][1]


def _prompt(file: pathlib.Path) -> str | None:
  """The text of a file's questions by `task_config.yaml`, None where nothing is said there."""
  path = file.parent / "task_config.yaml"
  if not path.exists():
    return None
  try:
    raw = yaml.safe_load(checks.contents(path))
  except (yaml.YAMLError, RecursionError) as error:
    raise ValueError(f"{path} is not YAML: {error}.") from None
  tasks = raw if isinstance(raw, dict) else {}
  of_file = [v for k, v in tasks.items() if str(k).rpartition("/")[2] == file.stem]
  return of_file[0].get("prompt") if of_file and isinstance(of_file[0], dict) else None


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
    (task, kind), prompt = _task(file), _prompt(file)
    for number, line in enumerate(checks.contents(file).split(b"\n"), 1):
      if line.strip():
        where = f"{file}:{number}"
        messages, label = _turns(checks.parse_json(line, where), prompt, task, where)
        records.append(Record(task, kind, messages, _label(kind, label, where)))
  return records


def _turns(raw: Any, prompt: str | None, task: str, where: str) -> tuple[Any, Any]:
  """(messages, label) of a line in either form."""
  raw = raw.get("doc", raw) if isinstance(raw, dict) else raw
  if isinstance(raw, dict) and {"messages", "label"} <= raw.keys():
    checks.sequence(f"{where}: messages", raw["messages"], "a list of turns")
    return raw["messages"], raw["label"]
  if not isinstance(raw, dict) or not {"input", "answer"} <= raw.keys():
    raise ValueError(
      f"{where}: expected an object with `messages` and the `label` of {task}, or "
      "with `input` and `answer`."
    )
  text = raw.get("prompt") or prompt
  if text is None:
    raise ValueError(f"{where}: it lacks 'prompt', and no task_config.yaml gives that of {task}.")
  checks.text(f"{where}: prompt", text)
  given, messages = _value(raw["input"]), []
  if not isinstance(given, dict):
    checks.refuse(f"{where}: input", given, "an object")
  examples = given.get("icl_examples") or []
  for each in checks.sequence(f"{where}: icl_examples", examples, "a list of examples"):
    if not isinstance(each, dict) or not isinstance(each.get("input"), dict):
      checks.refuse(f"{where}: icl_examples", each, "an object with `input` and `answer`")
    said = each.get("answer")
    said = said.get("example") if isinstance(said, dict) else said
    checks.text(f"{where}: icl_examples: answer", said)
    messages += [
      {"role": "user", "content": _filled(text, each["input"], where)},
      {"role": "assistant", "content": said},
    ]
  return [*messages, {"role": "user", "content": _filled(text, given, where)}], raw["answer"]


def _filled(text: str, values: Mapping[str, Any], where: str) -> str:
  """The prompt with every {KEY} replaced, and its written-out line ends made line ends."""
  for key in re.findall(r"\{(\w+)\}", text):
    if key not in values:
      raise ValueError(f"{where}: input lacks {key!r}, which the prompt names.")
  return re.sub(r"\{(\w+)\}", lambda m: str(values[m[1]]), text).replace("\\n", "\n")


def _value(text: Any) -> Any:
  """What a JSON text says; anything else as it is."""
  try:
    return checks.parse_json(text, "value") if isinstance(text, str) else text
  except ValueError:
    return text


def _label(kind: str, raw: Any, where: str) -> Any:
  """The checked label of a kind."""
  name, found = f"{where}: label", _value(raw)
  if kind == SUDOKU:
    rows = tuple(found.split()) if isinstance(found, str) else ()
    if not rows or any(len(row) != len(rows) or not row.isdecimal() for row in rows):
      checks.refuse(name, raw, "n lines of n digits")
    return rows
  if isinstance(found, list) and kind in lists.TASKS:
    return tuple(checks.text(f"{name}[{i}]", x) for i, x in enumerate(found))
  if isinstance(found, str) and kind in lists.TASKS:
    # The published program reads such a list as leniently as an answer.
    return tuple(listed(found)) if "[" in found else checks.refuse(name, raw, "a list of names")
  key = "symbols" if kind == SQUARE else "words" if kind.startswith(SENTENCE) else "input"
  if not isinstance(found, dict):
    checks.refuse(name, raw, f"an object with {key}, the `label` of {kind}")
  return checks.fields_of(found, {key: tuple[str, ...], "word": str}, name, [key])
