"""The tasks of a local coder: speed beside how many answers pass their tests.

Tasks and judge are `eval.code_tasks`; they are decoded as the questions of Spec-Bench are, so that
a run that was killed goes on after its last whole question. An answer is judged once for all
methods that give it.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from specjax import checks
from specjax.data import spec_bench
from specjax.eval import code_tasks, report, specbench, specbench_report, table
from specjax.eval.bench import PLAIN
from specjax.eval.code_tasks import CATEGORIES, Task
from specjax.eval.interleaved import Runs
from specjax.eval.options import Bench
from specjax.eval.plots.categories import measured
from specjax.eval.specbench_report import OVERALL
from specjax.names.load import Model

FILE = "answers.jsonl"
FOOTNOTE = (
  "Passed: answers whose tests pass, of those that have tests; a summary and a chat have none. "
  "Speed-up is tokens per second over those of plain decoding, without prefill unless the column "
  "says so; intervals are 95 % intervals over tasks, or over batches of them. Differ: the tasks "
  "whose ids differ from those of plain decoding, as they may where a rule keeps only the "
  "distribution or is LOSSY. Largest margin: that of the two best logits where greedy ids first "
  "differ."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Bench):
  """What is measured, see `options.Bench`.

  Attributes:
    tasks: categories that are asked, of `code_tasks.CATEGORIES`; None is all.
  """

  max_new_tokens: int = 256
  tasks: tuple[str, ...] | None = None


def judged(asked: Iterable[Task], runs: Mapping[str, Runs]) -> Iterator[dict[str, Any]]:
  """For every answer that has tests: method, question, category, passed, and why not."""
  tasks = {task.number: task for task in asked}
  texts = {(a.question, a.text) for run in runs.values() for a in run.results}
  tested = sorted(x for x in texts if tasks[x[0]].tests)
  why = {
    (number, text): code_tasks.failure(tasks[number], text)
    for number, text in report.progress(tested, "running tests")
  }
  for label, run in runs.items():
    for a in run.results:
      if tasks[a.question].tests:
        said = why[a.question, a.text]
        yield {
          "method": label, "question": a.question, "category": a.category,
          "passed": not said, "why": said,
        }  # fmt: skip


def _shares(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
  """(passed, judged) of each method, overall and by category."""
  found: dict[str, dict[str, list[int]]] = {}
  for record in records:
    for key in (OVERALL, record["category"]):
      counts = found.setdefault(record["method"], {}).setdefault(key, [0, 0])
      counts[0] += record["passed"]
      counts[1] += 1
  return found


def _share(counts: list[int] | None) -> str:
  return f"{counts[0]} of {counts[1]}" if counts else ""


def rows(summary: Mapping[str, Any]) -> list[dict[str, object]]:
  """The table over all tasks, the most important columns first."""
  found = []
  for label, row in zip(summary["methods"], specbench_report.rows(summary), strict=True):
    passed = _share(summary["passed"].get(label, {}).get(OVERALL))
    keys = list(row)
    first = keys[: keys.index("differ")]
    found.append({k: row[k] for k in first} | {"passed": passed} | row)
  return found


def passed_by_category(summary: Mapping[str, Any]) -> table.Rows:
  """Answers that pass their tests, with a column for each category that has tests."""
  known = dict.fromkeys(c for shares in summary["passed"].values() for c in shares)
  return [
    {"method": specbench_report.name(label, m)}
    | {c: _share(summary["passed"].get(label, {}).get(c)) for c in known}
    for label, m in summary["methods"].items()
  ]


def text(summary: Mapping[str, Any]) -> str:
  """The report in Markdown."""
  parts = [specbench_report.caption(summary), table.markdown(rows(summary))]
  for heading, key in (
    ("Speed-up over plain decoding", "speed_up"),
    ("Tokens per pass", "tau"),
    ("Milliseconds per token", "ms_per_token"),
  ):
    shown = specbench_report.by_category(summary, key, interval=True)
    parts += [f"## {heading}", table.markdown(shown)]
  if summary["passed"]:
    parts += ["## Answers that pass their tests", table.markdown(passed_by_category(summary))]
  return "\n\n".join([*parts, FOOTNOTE])


def terminal(summary: Mapping[str, Any]) -> list[Table]:
  """What the command line shows: the figures over all tasks, and those by category."""
  by_method = specbench_report.by_category(summary, "tau", "speed_up")
  plain = summary["passed"].get(PLAIN, {})
  kinds = [
    {"category": name}
    | {str(row["method"]): row[name] for row in by_method if row["method"] != PLAIN}
    | {f"{PLAIN}: passed": _share(plain.get(category))}
    for category, name in zip(list(summary["questions"])[1:], list(by_method[0])[2:], strict=True)
  ]
  return [
    table.terminal(rows(summary), specbench_report.caption(summary), columns=6),
    table.terminal(kinds, "tokens per pass / speed-up, by category and its tasks"),
  ]


def choose(
  model: Model, tasks: Sequence[str] | None, max_new_tokens: int, limit: int | None
) -> tuple[list[Task], int]:
  """The tasks that are asked, taken evenly from the categories, and how many have no room.

  Raises:
    ValueError: a category is unknown or given twice, or no task fits the model.
  """
  chosen = CATEGORIES if tasks is None else tasks
  for name in chosen:
    checks.choice("tasks", name, CATEGORIES)
  if not chosen or len(set(chosen)) < len(chosen):
    checks.refuse("tasks", " ".join(chosen), "one or more categories, each once")
  known = [task for task in code_tasks.read() if task.category in chosen]
  fit = specbench.fitting(model, known, max_new_tokens)
  if not fit:
    raise ValueError(
      f"max_new_tokens={max_new_tokens}: no task leaves room for it in the "
      f"{model.config.max_length} positions of {model.name}."
    )
  return spec_bench.evenly(fit, limit, CATEGORIES), len(known) - len(fit)


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Measures, or goes on measuring, and writes the summary, results.jsonl, table.md
  and a plot.

  Raises:
    ValueError: a number is below 1, a category or a method is unknown or given twice, no task fits
      the model, `out` holds a run with other options, or the system has no POSIX limits.
  """
  report.check(config, "repeats", "max_new_tokens", "batch")
  if config.limit is not None:
    checks.whole("limit", config.limit, 1)
  chosen, no_room = choose(model, config.tasks, config.max_new_tokens, config.limit)
  left_out = {"left_out": no_room}
  directory, summary, runs = specbench.decode(model, config, chosen, out, left_out, FILE)
  records = list(judged(chosen, runs))
  summary["passed"] = _shares(records)
  report.save(directory, summary, text(summary), {"speedup": measured(summary)}, records)
  return summary
