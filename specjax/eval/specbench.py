"""Spec-Bench: every method answers the same conversations in turns with plain decoding.

The questions are those of Xia et al. 2024 (arXiv 2401.07851), see `data.spec_bench`. A question of
MT-Bench has two turns, and each method reads its own first answer before the second. Every answer
is written to FILE at once, and a run that was killed goes on after its last whole question.
"""

import bisect
import collections
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specjax import checks
from specjax.data import resume, spec_bench
from specjax.data.spec_bench import Asked, Q
from specjax.decoding.decoder import Decoder
from specjax.decoding.texts import cut
from specjax.eval import interleaved, metrics, report
from specjax.eval.bench import PLAIN, make_decoders
from specjax.eval.divergence import divergences
from specjax.eval.interleaved import Runs
from specjax.eval.options import Bench as Config
from specjax.eval.parallelbench import said
from specjax.eval.plots import categories
from specjax.eval.specbench_report import OVERALL, PUBLISHED, PUBLISHED_ON, text
from specjax.models.weights import count_parameters
from specjax.names.load import Model

FILE = "specbench.jsonl"


@dataclasses.dataclass(frozen=True)
class Answer:
  """One answer, a line of FILE.

  Attributes:
    method: name of the drafter.
    repeat, batch: number of the repeat, and of the batch in it.
    question, category: see `data.spec_bench.Question`.
    turn: 0, or 1 for the second of two.
    prompt: the ids that were read, with the earlier turns and answers.
    tokens, text: the answer, its stop token included; its text without it.
    passes: passes of the target, prefill excluded.
    seconds, prefill_seconds: of the whole batch.
  """

  method: str
  repeat: int
  batch: int
  question: int
  category: str
  turn: int
  prompt: list[int]
  tokens: list[int]
  text: str
  passes: int
  seconds: float
  prefill_seconds: float


def fitting(model: Model, questions: Sequence[Q], max_new_tokens: int) -> list[Q]:
  """The questions whose turns and answers of `max_new_tokens` each have room in the model."""

  def positions(question: Asked) -> int:
    return sum(len(model.chat(turn)) + max_new_tokens for turn in question.turns)

  return [q for q in questions if positions(q) <= model.config.max_length]


def batched(questions: Sequence[Q], size: int) -> list[list[Q]]:
  """Batches of one category and one number of turns."""
  alike = itertools.groupby(questions, lambda q: (q.category, len(q.turns)))
  groups = [list(group) for _, group in alike]
  return [group[i : i + size] for group in groups for i in range(0, len(group), size)]


def answers(
  decoder: Decoder, batch: Sequence[Asked], max_new_tokens: int, first: int
) -> Iterator[dict[str, Any]]:
  """Each turn's answers to a batch, in which question `first` of the run comes first.

  The noise belongs to the question and to the position in the text, so that the second answer draws
  other tokens than the first.
  """
  model = decoder.model
  spoken: list[list[dict[str, str]]] = [[] for _ in batch]
  for turn in range(len(batch[0].turns)):
    for messages, question in zip(spoken, batch, strict=True):
      messages.append({"role": "user", "content": question.turns[turn]})
    prompts = [model.chat(messages) for messages in spoken]
    budgets = [min(max_new_tokens, model.config.max_length - len(ids)) for ids in prompts]
    results = decoder(prompts, budgets, first=first)
    for question, messages, ids, r in zip(batch, spoken, prompts, results, strict=True):
      answer = cut(said(model, r), decoder.stop_words).strip()
      messages.append({"role": "assistant", "content": answer})
      yield {
        "question": question.number,
        "category": question.category,
        "turn": turn,
        "prompt": ids,
        "tokens": r.tokens,
        "text": answer,
        "passes": r.passes,
        "seconds": r.seconds,
        "prefill_seconds": r.prefill_seconds,
      }


def measure(
  decoders: Mapping[str, Decoder],
  batches: Sequence[Sequence[Asked]],
  config: Config,
  file: pathlib.Path,
) -> list[Answer]:
  """All answers, of which those that the file has not yet are decoded and added to it."""
  sizes = [len(decoders) * sum(len(q.turns) for q in batch) for batch in batches]
  ends = [0, *itertools.accumulate(sizes * config.repeats)]
  firsts = [0, *itertools.accumulate(map(len, batches))]
  # What all methods did with a batch stays together, so that their times belong together.
  done = bisect.bisect_right(ends, resume.count_lines(file)) - 1
  resume.keep_lines(file, ends[done])
  with file.open("a") as sink:
    for r, i, name in interleaved.turns(list(decoders), len(batches), config.repeats, done):
      for found in answers(decoders[name], batches[i], config.max_new_tokens, firsts[i]):
        sink.write(json.dumps({"method": name, "repeat": r, "batch": i, **found}) + "\n")
        sink.flush()
  return [Answer(**json.loads(line)) for line in file.read_text().splitlines()]


def collect(decoder: Decoder, answered: Sequence[Answer], repeats: int) -> Runs:
  """What one method did; the seconds of a batch are those of all its turns."""
  shape = (repeats, 1 + max(a.batch for a in answered))
  run = Runs(decoder, [a for a in answered if not a.repeat], np.zeros(shape), np.zeros(shape))
  for (r, i, _), group in itertools.groupby(answered, lambda a: (a.repeat, a.batch, a.turn)):
    first = next(group)  # the rows of a batch share their time
    run.seconds[r, i] += first.seconds
    run.prefill[r, i] += first.prefill_seconds
  before = {(a.question, a.turn): a.tokens for a in run.results}
  run.unstable = len(
    {(a.repeat, a.batch) for a in answered if a.tokens != before[a.question, a.turn]}
  )
  return run


def totals(run: Runs) -> np.ndarray:
  """f64[4, batches]: tokens, passes, seconds, and seconds with the prefill."""
  found = np.zeros((4, run.seconds.shape[1]))
  for a in run.results:
    found[:2, a.batch] += len(a.tokens), a.passes
  found[2], found[3] = np.median(run.seconds, 0), np.median(run.seconds + run.prefill, 0)
  return found


def figures(mine: np.ndarray, plain: np.ndarray) -> dict[str, Any]:
  """The metrics of one method on some batches, from the columns of `totals`, ready for JSON."""
  tokens, passes, seconds, whole = mine
  paired = (tokens, seconds, plain[0], plain[2])
  with_prefill = (tokens, whole, plain[0], plain[3])
  return {
    "tau": float(metrics.block_efficiency(tokens.sum(), passes.sum())),
    "tau_interval": metrics.bootstrap_interval(metrics.block_efficiency, tokens, passes),
    "speed_up": float(metrics.speed_up(*(x.sum() for x in paired))),
    "speed_up_interval": metrics.bootstrap_interval(metrics.speed_up, *paired),
    "speed_up_with_prefill": float(metrics.speed_up(*(x.sum() for x in with_prefill))),
    "ms_per_token": float(1e3 * seconds.sum() / tokens.sum()),
    "tokens": int(tokens.sum()), "passes": int(passes.sum()), "seconds": float(seconds.sum()),
  }  # fmt: skip


def mismatches(run: Runs, plain: Runs, greedy: bool) -> list[dict[str, Any]]:
  """The answers that differ from plain decoding's to the same prompt; see `divergences`."""
  pairs = [(a, b) for a, b in zip(run.results, plain.results, strict=True) if a.prompt == b.prompt]
  mine, reference = zip(*pairs, strict=True)
  prompts = [a.prompt for a in mine]
  found = []
  for d in divergences(run.decoder.model, prompts, mine, reference, greedy):
    a = mine[d.pop("prompt")]
    found.append({"question": a.question, "category": a.category, "turn": a.turn, **d})
  return found


def summed(run: Runs, plain: Runs, config: Config) -> dict[str, Any]:
  """The figures of one method, overall and by category, with its mismatches."""
  verifier = run.decoder.method.verifier
  kinds = {a.batch: a.category for a in run.results}
  category = np.array([kinds[i] for i in range(len(kinds))])
  mine, other = totals(run), totals(plain)
  chosen = {OVERALL: slice(None)} | {c: category == c for c in dict.fromkeys(kinds.values())}
  return {
    "verifier": verifier.name, "exactness": verifier.exactness, "lossy": run.lossy,
    "nodes": run.decoder.method.drafter.nodes,
    "must_equal_plain": (
      not run.lossy and (config.temperature == 0 or verifier.name == "target_only")
    ),
    "unstable_batches": run.unstable,
    "figures": {c: figures(mine[:, x], other[:, x]) for c, x in chosen.items()},
    "divergences": mismatches(run, plain, config.temperature == 0),
  }  # fmt: skip


def decode(
  model: Model,
  config: Config,
  asked: Sequence[Asked],
  out: str | pathlib.Path,
  found: Mapping[str, Any],
  file: str = FILE,
) -> tuple[pathlib.Path, dict[str, Any], dict[str, Runs]]:
  """The directory, the summary with the figures of every method, and what each of them did.

  Args:
    asked: sorted by category.
    found: further fields of the summary.
    file: of the answers, in the directory.

  Raises:
    ValueError: a method is unknown or given twice, or `out` holds a run with other options.
  """
  decoders = make_decoders(model, config)
  directory = report.directory(out)
  about = report.summary(
    config,
    {
      "model": model.label,
      "network": dataclasses.asdict(model.config),
      "parameters": count_parameters(model.params),
      "prompts": len(asked),
      **found,
    },
  )
  weights = [x.weights.drafter for x in decoders.values()]
  resume.claim(directory, interleaved.ingredients(model, config, asked, weights), free=("prompts",))
  batches = batched(asked, config.batch)
  answered = measure(decoders, batches, config, directory / file)
  runs = {
    k: collect(d, [a for a in answered if a.method == k], config.repeats)
    for k, d in decoders.items()
  }
  summary = about | {
    "questions": {OVERALL: len(asked), **collections.Counter(q.category for q in asked)},
    "methods": {k: summed(x, runs[PLAIN], config) for k, x in runs.items()},
  }
  return directory, summary, runs


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Measures, or goes on measuring, and writes the summary with table.md and two plots.

  Raises:
    ValueError: a number is below 1, there are no questions or none that fit the model, a method is
      unknown or given twice, or `out` holds a run with other options.
  """
  report.check(config, "repeats", "max_new_tokens", "batch")
  if config.limit is not None:
    checks.whole("limit", config.limit, 1)
  known = spec_bench.read(config.prompts)
  config = dataclasses.replace(config, prompts=config.prompts or str(spec_bench.LOCAL))
  fit = fitting(model, known, config.max_new_tokens)
  if not fit:
    raise ValueError(
      f"max_new_tokens={config.max_new_tokens}: no question of {config.prompts} "
      f"leaves room for it in the {model.config.max_length} positions of "
      f"{model.name}."
    )
  asked = spec_bench.evenly(fit, config.limit)
  directory, summary, _ = decode(model, config, asked, out, {"left_out": len(known) - len(fit)})
  summary["published"] = {"on": PUBLISHED_ON, "figures": PUBLISHED}
  plots = {"speedup": categories.speed_up(summary), "tokens": categories.tau(summary)}
  report.save(directory, summary, text(summary), plots)
  return summary
