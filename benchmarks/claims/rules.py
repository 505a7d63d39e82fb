r"""Rules of acceptance and ways of building a tree, side by side above temperature 0.

    python benchmarks/rules.py --prompts gsm8k_test.jsonl

Every exact pair of builder and rule decodes the same questions; tokens per forward come with 95 %
intervals over questions. "Reached" is how often a child of the root was accepted, over how often
the best possible rule would have accepted one of these children. Cells are kept in cells.jsonl: the
same command again goes on where it was stopped.
"""

import dataclasses
import json
import pathlib

import jax
import tyro
from rich.console import Console
from rich.progress import track

import specjax
from specjax.eval import bench, metrics, optimal
from specjax.eval.environment import environment
from specjax.train.recipe.run import claim
from specjax.verifiers import VERIFIERS


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared.

  Attributes:
    prompts: JSONL of questions.
    model: the target.
    drafter: name of the head or the draft model that fills every tree, such as
      "draft_model[PATH]".
    trees: names of trees of about equal size. A number is the best tree of that size.
    rules: names.
    temperatures: of the distribution.
    limit: questions.
    max_new_tokens: per question.
    rounds: looked at for the best possible rule.
    out: where the report goes.
  """

  prompts: str
  model: str = "gsm8k-7m"
  drafter: str = "eagle"
  trees: tuple[str, ...] = (
    "8", "dynamic-8-4-3", "iid-1-1-1-1", "iid-2-2-1", "without_replacement-2-2-1", "mixed-2-2-1",
    "stochastic_beam-2-4", "dyspec-2-4-2",
  )  # fmt: skip
  rules: tuple[str, ...] = ("target_only", "token", "block", "recursive", "traversal", "k_seq")
  temperatures: tuple[float, ...] = (0.8, 1.0)
  limit: int = 40
  max_new_tokens: int = 128
  rounds: int = 300
  out: str = "results/rules"


def main(config: Config) -> None:
  model = specjax.load(config.model)
  settings = bench.Config(
    prompts=config.prompts, limit=config.limit, max_new_tokens=config.max_new_tokens
  )
  items = bench.read_items(model, settings)
  ids = [item.ids for item in items]
  cells = []
  for tree in config.trees:
    pair = (
      specjax.make_drafter(model, f"{config.drafter}-{tree}")
      if tree.isdigit()
      else specjax.make_drafter(model, config.drafter, tree=tree)
    )
    rules = [r for r in config.rules if pair[0].proposal in VERIFIERS[r]().accepts]
    cells += [(tree, pair, rule, t) for rule in rules for t in config.temperatures]
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  claim(out, config, [])
  kept = out / "cells.jsonl"
  rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
  there = {(r["tree"], r["rule"], r["temperature"]) for r in rows}
  for tree, pair, rule, temperature in track(cells, console=Console(stderr=True)):
    if (tree, rule, temperature) in there:
      continue
    decode = specjax.Decoder(model, pair, rule, temperature=temperature)
    results = decode(ids, config.max_new_tokens)
    emitted, forwards = [r.emitted for r in results], [r.forwards for r in results]
    shortfall = None
    if not tree.startswith("dyspec"):  # there the number of children depends on what was drawn
      shortfall = optimal.measure(decode, ids, config.max_new_tokens, config.rounds)
    rows.append({
      "tree": tree, "nodes": pair[0].nodes, "proposal": pair[0].proposal, "rule": rule,
      "temperature": temperature, "tokens_per_forward": sum(emitted) / sum(forwards),
      "interval": metrics.bootstrap_interval(metrics.block_efficiency, emitted, forwards),
      "accepted": shortfall and shortfall.accepted, "optimum": shortfall and shortfall.optimum,
      "reached": shortfall and shortfall.reached,
    })  # fmt: skip
    with kept.open("a") as file:
      file.write(json.dumps(rows[-1]) + "\n")
    jax.clear_caches()  # a process may map 65530 pieces of memory
  table = [
    "| tree | nodes | rule | " + " | ".join(
      f"tokens / forward, T = {t:g} | reached" for t in config.temperatures
    ) + " |",
    "|---|---|---|" + "---|---|" * len(config.temperatures),
  ]  # fmt: skip
  for first in (r for r in rows if r["temperature"] == config.temperatures[0]):
    line = [first["tree"], str(first["nodes"]), first["rule"]]
    for t in config.temperatures:
      r = next(x for x in rows if (x["tree"], x["rule"], x["temperature"])
               == (first["tree"], first["rule"], t))  # fmt: skip
      low, high = r["interval"] or (float("nan"),) * 2
      line.append(f"{r['tokens_per_forward']:.2f} [{low:.2f}, {high:.2f}]")
      line.append("" if r["reached"] is None else f"{100 * r['reached']:.0f} %")
    table.append("| " + " | ".join(line) + " |")
  report = {"config": dataclasses.asdict(config), **environment(), "cells": rows}
  (out / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
  (out / "table.md").write_text("\n".join(table) + "\n")
  print("\n".join(table))


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
