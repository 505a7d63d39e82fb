"""What parallel decoding loses: operations on lists, answered by a masked diffusion model.

The suite follows ParallelBench (Kang et al. 2025, arXiv 2510.04767). The questions are ours, see
`data.lists`, or those of files in the published layout, see `data.parallelbench`. An answer is
right only as a whole. Accuracy is the published program's `score`; its `score_strict` stands beside
it, which for ours is the same.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.data import lists, parallelbench, parallelbench_score, resume
from specjax.data.parallelbench_score import Score
from specjax.decoding.batching import Result, read
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.eval import interleaved, metrics, report, table
from specjax.eval.interleaved import Runs
from specjax.eval.plots import denoising
from specjax.names.load import Model

SEED = 10_007  # of the questions; no training uses it


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured.

  Attributes:
    methods: policies with their decorations, such as "threshold-0.8/dual", see `names.grammar`.
    published: file or directory of questions in the published layout, in place of ours.
    tasks: kinds of our questions, names of `lists.KNOWN`.
    lengths: how long the lists are.
    count: questions per task and length; of published ones, per task, the first.
    max_new_tokens: slots per question.
    batch: questions decoded together.
    temperature: 0 takes the likeliest token.
    seed: seed of the sampling noise.
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
  """The decoder of a name in `Config.methods`."""
  return DiffusionDecoder(
    model, name, temperature=config.temperature, seed=config.seed, batch=config.batch
  )


class Question(NamedTuple):
  """A question of the suite.

  Attributes:
    task: its name.
    messages: turns of `role` and `content`.
    score: answer -> whether it is right, and whether it is so to the letter.
  """

  task: str
  messages: Sequence[Mapping[str, str]]
  score: Callable[[str], Score]

  @property
  def text(self) -> str:
    return self.messages[-1]["content"]

  def right(self, answer: str) -> bool:
    return self.score(answer).lenient


def _own(question: str, answer: str) -> Score:
  return Score(*[lists.is_right(question, answer)] * 2)


def questions(config: Config) -> list[Question]:
  """`count` questions of every task, and of every length where they are ours."""
  if config.published is None:
    total = len(config.tasks) * len(config.lengths) * config.count
    texts = [r["question"] for r in lists.records(SEED, total, config.lengths, config.tasks)]
    return [
      Question(
        lists.parse(text).task, [{"role": "user", "content": text}], functools.partial(_own, text)
      )
      for text in texts
    ]
  asked: dict[str, list[Question]] = {}
  for record in parallelbench.read(config.published):
    of_task = asked.setdefault(record.task, [])
    judge = functools.partial(parallelbench_score.score, record.kind, record.label)
    of_task += [Question(record.task, record.messages, judge)][: config.count - len(of_task)]
  return [question for of_task in asked.values() for question in of_task]


def said(model: Model, filled: Result) -> str:
  """The answer, without the stop token."""
  return model.decode([t for t in filled.tokens if t not in model.stop]).strip()


def figures(model: Model, asked: Sequence[Question], run: Runs) -> dict[str, Any]:
  """The metrics of one method, ready for JSON."""
  results = run.results
  scores = [q.score(said(model, f)) for q, f in zip(asked, results, strict=True)]
  right, strict = np.array(scores, float).reshape(-1, 2).T
  passes = np.array([f.passes for f in results], float)
  task = np.array([q.task for q in asked])
  return {
    "accuracy": float(right.mean()),
    "accuracy_interval": metrics.bootstrap_interval(np.divide, right, np.ones(len(right))),
    "accuracy_strict": float(strict.mean()),
    "passes": float(passes.mean()),
    "passes_interval": metrics.bootstrap_interval(np.divide, passes, np.ones(len(right))),
    "wasted": float(np.mean([f.filling.wasted for f in results])),
    "seconds": float(np.median(run.seconds, 0).sum()),
    "unstable_batches": run.unstable,
    "tasks": {
      name: {key: float(x[task == name].mean())
             for key, x in (("accuracy", right), ("accuracy_strict", strict),
                            ("passes", passes))}
      for name in dict.fromkeys(q.task for q in asked)
    },
  }  # fmt: skip


def _records(model: Model, asked: Sequence[Question], run: Runs) -> Iterator[dict[str, Any]]:
  """What a method answered to each question."""
  for question, filled in zip(asked, run.results, strict=True):
    text = said(model, filled)
    right, strict = question.score(text)
    yield {
      "task": question.task,
      "question": question.text,
      "said": text,
      "right": right,
      "right_strict": strict,
      "passes": filled.passes,
      "when": filled.filling.when,
    }


def rows(summary: Mapping[str, Any]) -> list[dict[str, object]]:
  """The table of a summary: accuracy in % and passes, overall and of every task.

  Of published questions the strict accuracy stands beside it.
  """
  both = summary["config"]["published"] is not None
  return [
    {
      "method": label,
      "right": f"{100 * m['accuracy']:.1f}",
      **({"strict": f"{100 * m['accuracy_strict']:.1f}"} if both else {}),
      "passes": f"{m['passes']:.1f}",
      "wasted": f"{m['wasted']:.1f}",
      "seconds": f"{m['seconds']:.2f}",
      **{k: f"{100 * t['accuracy']:.0f} / {t['passes']:.1f}" for k, t in m["tasks"].items()},
    }
    for label, m in summary["methods"].items()
  ]


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Measures, and writes the summary with results.jsonl, table.md and a plot.

  Raises:
    ValueError: a number is below 1, a task or method is unknown, or a method is given twice.
  """
  report.check(config, "count", "repeats", "batch")
  asked = questions(config)
  made = (make_decoder(model, name, config) for name in config.methods)
  decoders = {decoder.name: decoder for decoder in made}
  if len(decoders) < max(len(config.methods), 1):
    raise ValueError(
      f"`methods` must be one or more names, each once, got {' '.join(config.methods)!r}."
    )
  ids, _ = read(model, [model.chat(q.messages) for q in asked], config.max_new_tokens)
  directory = report.directory(out)
  parts = [x.parts for x in decoders.values()]
  with resume.unfinished(directory, interleaved.ingredients(model, config, ids, parts)) as place:
    runs = interleaved.decode(
      decoders, ids, config.max_new_tokens, config.repeats, place / "batches.jsonl"
    )
    summary = report.summary(
      config,
      {
        "model": model.label,
        "prompts": len(asked),
        "methods": {label: figures(model, asked, x) for label, x in runs.items()},
      },
    )
    curves = {
      task: {
        k: ([m["tasks"][task]["passes"]], [m["tasks"][task]["accuracy"]])
        for k, m in summary["methods"].items()
      }
      for task in dict.fromkeys(q.task for q in asked)
    }
    picture = denoising.accuracy(curves, f"{model.name}, {len(asked)} questions")
    text, plots = table.markdown(rows(summary)), {"parallelbench": picture}
    records = ({"method": k} | x for k, run in runs.items() for x in _records(model, asked, run))
    report.save(directory, summary, text, plots, records)
  return summary
