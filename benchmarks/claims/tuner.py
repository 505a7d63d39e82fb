r"""What `specjax tune` chooses beside drafts whose sizes and trees are set by hand.

    python benchmarks/claims/tuner.py --prompts gsm8k_test.jsonl
    python benchmarks/claims/tuner.py --model smollm2-135m --prompts spec_bench.jsonl \
        --drafters eagle3 prompt_lookup "prompt_lookup-8,longest=8,shortest=2,per_match=2|eagle3-4"

At every temperature and batch size the tuner gets the drafters and the first questions. Its choice
then answers the other questions, in turns with plain decoding and with every draft by hand: those
that are named whole, and of the others those of several numbers of nodes; of heads also chains,
dynamic trees and, above temperature 0, drawn ones. "Of the best" is the choice's speed over that of
the fastest by hand; as this is the fastest of many measurements, chance is against the choice.
A run that was ended goes on with the next temperature or batch size.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax

import specjax
from specjax import checks, command_line, fingerprint
from specjax.cli.arguments import Weights
from specjax.data import resume
from specjax.decoding.decoder import Decoder
from specjax.eval import bench, interleaved, prompts, report, table, tune
from specjax.eval.options import Tune
from specjax.names import grammar
from specjax.names.build.drafters import is_head

PLAIN = "none"
SIZES = (4, 6, 8, 16)
SHAPES = (
  "static-1",
  "static-1-1",
  "static-1-1-1",
  "dynamic-8,depth=4,beam=4",
  "dynamic-16,depth=4,beam=4",
)
DRAWN = (
  "iid-1-1", "iid-1-1-1", "without_replacement-2-1-1", "stochastic_beam-2,depth=3",
  "dyspec-8,depth=4,children=3",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared.

  Attributes:
    drafters: what the tuner gets, see `specjax tune`.
    tuned_on: questions for the tuner, which above temperature 0 measures acceptance on 8 of them.
    limit: questions besides, at equal distances in the file.
    batches: batch sizes.
    temperatures: 0 is greedy.
    weights: how matrices lie in memory.
    repeats: times everything by hand is decoded; medians count.
  """

  drafters: tuple[str, ...] = ("eagle", "hidden_transfer", "prompt_lookup")
  tuned_on: int = 16
  limit: int | None = 16
  max_new_tokens: int = 64
  batches: tuple[int, ...] = (1, 8)
  temperatures: tuple[float, ...] = (0.0, 0.8)
  weights: Weights = "float"
  repeats: int = 2
  out: str = "results/tuner"


def by_hand(name: str, temperature: float) -> list[str]:
  """The drafts of a drafter that a user would try."""
  part = tune.unsized(name)
  if part is None:
    return [name]
  found = [part._replace(numbers=(n,)) for n in SIZES]
  if is_head(part.name):
    shapes = SHAPES + DRAWN if temperature else SHAPES
    found += [part._replace(decorations=(grammar.parse_one("tree", s),)) for s in shapes]
  return [grammar.show([p]) for p in found]


def cell(
  model: specjax.Model,
  items: Sequence[prompts.Item],
  batch: int,
  temperature: float,
  config: Config,
) -> dict[str, Any]:
  """The choice and what it was compared with, ready for JSON."""
  out = pathlib.Path(config.out) / f"batch-{batch}-temperature-{temperature:g}"
  out.mkdir(parents=True, exist_ok=True)
  own, others = items[: config.tuned_on], items[config.tuned_on :]
  file = out / "questions.jsonl"
  file.write_text("".join(json.dumps({"tokens": item.ids}) + "\n" for item in own))
  held_out = tune.MEASURED if temperature else 0
  settings = Tune(
    drafters=config.drafters,
    prompts=str(file),
    max_new_tokens=config.max_new_tokens,
    batch=batch,
    temperature=temperature,
    repeats=tune.repeats(len(own) - held_out, batch),
  )
  chosen = tune.run(model, settings, out)["chosen"]
  jax.clear_caches()  # a process may map 65530 pieces of memory
  tried = [draft for name in config.drafters for draft in by_hand(name, temperature)]
  names = dict.fromkeys([PLAIN, chosen, *tried])
  decoders = {n: Decoder(model, n, temperature=temperature, batch=batch) for n in names}
  ids = [item.ids for item in others]
  runs = interleaved.decode(decoders, ids, config.max_new_tokens, config.repeats)
  figures = {n: bench.figures(run, runs[PLAIN], others, settings) for n, run in runs.items()}
  best = max([PLAIN, *tried], key=lambda n: figures[n]["tokens_per_second"])
  ratio = bench.figures(runs[chosen], runs[best], others, settings)
  jax.clear_caches()
  return {
    "batch": batch, "temperature": temperature, "chosen": chosen, "best": best,
    "of_best": ratio["speed_up"], "of_best_interval": ratio["speed_up_interval"],
    "figures": figures,
  }  # fmt: skip


def row(cell: dict[str, Any]) -> dict[str, object]:
  """A line of the table."""
  chosen, best = (cell["figures"][cell[key]] for key in ("chosen", "best"))
  return {
    "temperature": cell["temperature"],
    "batch": cell["batch"],
    "chosen": f"`{cell['chosen']}`",
    "speed-up": f"{chosen['speed_up']:.2f}",
    "the best by hand": f"`{cell['best']}`",
    "its speed-up": f"{best['speed_up']:.2f}",
    "of the best": table.estimate(cell["of_best"], cell["of_best_interval"]),
    "tried by hand": len(cell["figures"]) - 1,
  }


def main(config: Config) -> None:
  report.check(config, "batches", "repeats")
  checks.whole("tuned_on", config.tuned_on, tune.MEASURED + 1)
  limit = checks.whole("limit", config.limit, 1)
  model = specjax.load(config.model, weights=config.weights)
  asked = dataclasses.replace(config, limit=config.tuned_on + limit).evenly(model)
  # Neighbours in a file are alike: those for the tuner lie between the others.
  step = max(1, len(asked) // config.tuned_on)
  own = set(range(0, step * config.tuned_on, step))
  items = [asked[i] for i in sorted(range(len(asked)), key=lambda i: (i not in own, i))]
  weights = set()
  for t in config.temperatures:
    for draft in [draft for name in config.drafters for draft in by_hand(name, t)]:
      made = Decoder(model, draft, temperature=t)  # it refuses what cannot be
      weights.add(fingerprint.of_weights(made.weights.drafter))
  out = report.directory(config.out)
  same = dataclasses.asdict(config) | model.ingredients()
  same["drafters.weights"] = sorted(weights)
  same["questions"] = fingerprint.digest(str(item.ids) for item in items)
  resume.claim(out, same, {"batches", "temperatures"})
  file = out / "cells.jsonl"
  known = {(x["batch"], x["temperature"]): x for x in resume.kept(file)}
  for batch in config.batches:
    for temperature in config.temperatures:
      if (batch, temperature) not in known:
        found = known[batch, temperature] = cell(model, items, batch, temperature, config)
        with file.open("a") as log:
          log.write(json.dumps(found) + "\n")
  cells = [known[b, t] for b in config.batches for t in config.temperatures]
  report.publish(config, {"cells": cells}, table.markdown([row(cell) for cell in cells]))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
