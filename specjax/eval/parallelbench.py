"""What parallel decoding loses: operations on lists, answered by a masked diffusion model.

After ParallelBench (Kang et al. 2025, arXiv 2510.04767); the questions are ours, see `data.lists`,
or the published ones, see `data.parallelbench`. Every method answers the same questions. Accuracy
is of whole answers; passes are counted per question.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from specjax.data import lists, parallelbench
from specjax.decoding.batching import Result
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.model import Model
from specjax.eval.environment import environment
from specjax.eval.plots import COLOURS, MARKERS

SEED = 10_007  # of questions that no training draws


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured.

  Attributes:
    methods: policies with their decorations, such as "threshold-0.8/dual", see `decoding.spec`.
    published: file or directory of the published questions, in place of ours.
    tasks: of our questions, names of `lists.KNOWN`.
    lengths: of the lists.
    count: questions per task and length; of published ones, per task, the first.
    max_new_tokens: slots per question.
    batch: questions decoded together.
    temperature: 0 takes the likeliest token.
    seed: of the noise.
    repeats: times everything is decoded; the median of seconds counts.
  """

  methods: tuple[str, ...] = ("confidence", "threshold", "factor")
  published: str | None = None
  tasks: tuple[str, ...] = tuple(lists.TASKS)
  lengths: tuple[int, ...] = (3, 4, 5, 6)
  count: int = 10
  max_new_tokens: int = 16
  batch: int = 20
  temperature: float = 0.0
  seed: int = 0
  repeats: int = 1


def make_decoder(model: Model, name: str, config: Config) -> DiffusionDecoder:
  """The method of a name of `Config.methods`.

  Raises:
    ValueError: a name of none.
  """
  return DiffusionDecoder(
    model, name, temperature=config.temperature, seed=config.seed, batch=config.batch
  )


class Question(NamedTuple):
  """A question of the suite.

  Attributes:
    task: its name.
    messages: turns of `role` and `content`, the question the last.
    right: answer -> bool.
  """

  task: str
  messages: Sequence[Mapping[str, str]]
  right: Callable[[str], bool]

  @property
  def text(self) -> str:
    return self.messages[-1]["content"]


def questions(config: Config) -> list[Question]:
  """`count` of every task, and length where the questions are ours."""
  if config.published is None:
    total = len(config.tasks) * len(config.lengths) * config.count
    texts = [r["question"] for r in lists.records(SEED, total, config.lengths, config.tasks)]
    return [
      Question(lists.parse(text).task, [{"role": "user", "content": text}],
               functools.partial(lists.is_right, text))
      for text in texts
    ]  # fmt: skip
  asked: dict[str, list[Question]] = {}
  for record in parallelbench.read(config.published):
    of_task = asked.setdefault(record.task, [])
    right = functools.partial(parallelbench.is_right, record)
    of_task += [Question(record.task, record.messages, right)][: config.count - len(of_task)]
  return [question for of_task in asked.values() for question in of_task]


def said(model: Model, filled: Result) -> str:
  """The answer, without the stop token."""
  return model.decode([t for t in filled.tokens if t not in model.stop]).strip()


def figures(
  model: Model, config: Config, asked: Sequence[Question], runs: Sequence[list[Result]]
) -> dict[str, Any]:
  """The metrics of one method, ready for JSON.

  Args:
    runs: of each repeat, the results in the order of `asked`.
  """
  results = runs[0]
  right = np.array([q.right(said(model, f)) for q, f in zip(asked, results, strict=True)])
  forwards = np.array([f.forwards for f in results])
  wasted = np.array([f.filling.wasted for f in results])
  task = np.array([q.task for q in asked])
  # A batch's seconds are counted once.
  seconds = [sum(f.seconds for f in run[:: config.batch]) for run in runs]
  return {
    "accuracy": float(right.mean()),
    "forwards": float(forwards.mean()),
    "wasted": float(wasted.mean()),
    "seconds": float(np.median(seconds)),
    "tasks": {
      name: {
        "accuracy": float(right[task == name].mean()),
        "forwards": float(forwards[task == name].mean()),
      }
      for name in dict.fromkeys(q.task for q in asked)
    },
  }


def run(model: Model, config: Config, out: str) -> dict[str, Any]:
  """Decodes everything; results.jsonl, summary.json, table.md and a plot go to `out`."""
  for name in ("count", "repeats", "batch"):
    if getattr(config, name) < 1:
      raise ValueError(f"{name}={getattr(config, name)}: accepted is 1 or more.")
  asked = questions(config)
  prompts = [model.chat(q.messages) for q in asked]
  made = (make_decoder(model, name, config) for name in config.methods)
  decoders = {decoder.name: decoder for decoder in made}
  directory = pathlib.Path(out)
  directory.mkdir(parents=True, exist_ok=True)
  runs: dict[str, list[list[Result]]] = {label: [] for label in decoders}
  for _ in range(config.repeats):  # in turns, so that a slow minute slows them all
    for label, decoder in decoders.items():
      runs[label].append(decoder(prompts, config.max_new_tokens))
  with (directory / "results.jsonl").open("w") as sink:
    for label, kept in runs.items():
      for question, filled in zip(asked, kept[0], strict=True):
        text = said(model, filled)
        line = {"method": label, "task": question.task, "question": question.text, "said": text,
                "right": question.right(text), "forwards": filled.forwards,
                "when": filled.filling.when}  # fmt: skip
        sink.write(json.dumps(line) + "\n")
  summary = {
    "config": dataclasses.asdict(config), "model": model.name, "prompts": len(asked),
    **environment(),
    "methods": {k: figures(model, config, asked, kept) for k, kept in runs.items()},
  }  # fmt: skip
  (directory / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
  (directory / "table.md").write_text("\n".join(table(summary)) + "\n")
  picture(summary).savefig(directory / "parallelbench.png")
  return summary


def _tasks(summary: dict[str, Any]) -> list[str]:
  return list(next(iter(summary["methods"].values()))["tasks"])


def table(summary: dict[str, Any]) -> list[str]:
  """Lines of Markdown: a method each, with accuracy in % and passes of every task."""
  tasks = _tasks(summary)
  lines = [
    "| method | all | passes | wasted | seconds | " + " | ".join(tasks) + " |",
    "|" + "---|" * (5 + len(tasks)),
  ]
  for label, m in summary["methods"].items():
    cells = [f"{100 * t['accuracy']:.0f} / {t['forwards']:.1f}" for t in m["tasks"].values()]
    head = (f"{100 * m['accuracy']:.1f}", f"{m['forwards']:.1f}", f"{m['wasted']:.1f}",
            f"{m['seconds']:.2f}")  # fmt: skip
    lines.append("| " + " | ".join([label, *head, *cells]) + " |")
  return lines


def picture(summary: dict[str, Any]) -> Figure:
  """Accuracy by passes per question, a panel per task."""
  tasks = _tasks(summary)
  columns = min(5, len(tasks))
  rows = -(-len(tasks) // columns)
  figure = Figure(figsize=(2.6 * columns, 2.5 * rows + 0.7), dpi=140, layout="constrained")
  grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
  for axes, task in zip(grid.flat, tasks, strict=False):
    for i, (label, m) in enumerate(summary["methods"].items()):
      point = m["tasks"][task]
      axes.plot(
        point["forwards"], 100 * point["accuracy"], MARKERS[i % len(MARKERS)],
        color=COLOURS[i % len(COLOURS)], label=label, markersize=7,
      )  # fmt: skip
    axes.set_title(task.replace("_", " "), loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xscale("log")
    axes.set_ylim(-5, 105)
  for axes in list(grid.flat)[len(tasks) :]:
    axes.set_visible(False)
  figure.supxlabel("passes per question", fontsize=10)
  figure.supylabel("right answers, %", fontsize=10)
  handles, labels = grid.flat[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
  return figure
