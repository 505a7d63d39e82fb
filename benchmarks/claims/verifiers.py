r"""Rules of acceptance and trees, side by side above temperature 0.

    python benchmarks/claims/verifiers.py --prompts gsm8k_test.jsonl

Every exact pair of tree and rule decodes the same questions; tokens per pass have 95 % intervals
over questions. "Reached" is how often a child of the root was accepted, over how often the best
possible rule would accept one. Cells are kept in cells.jsonl, so that the same command continues a
run that was stopped.
"""

import dataclasses
import json
import sys

import jax

import specjax
from specjax import command_line, fingerprint
from specjax.eval import metrics, optimal, prompts, report, table
from specjax.train.recipe.run import claim
from specjax.verifiers import VERIFIERS


@dataclasses.dataclass(frozen=True)
class Config(prompts.Questions):
  """What is compared."""

  # name of the head or draft model that fills every tree, such as "draft_model[PATH]"
  drafter: str = "eagle"
  # names of trees of about equal size; a number stands for the best tree of that size
  trees: tuple[str, ...] = (
    "8", "dynamic-8,depth=4,beam=3", "iid-1-1-1-1", "iid-2-2-1", "without_replacement-2-2-1",
    "mixed-2-2-1", "stochastic_beam-2,depth=4", "dyspec-9,depth=4,children=2",
  )  # fmt: skip
  # names of verifiers
  verifiers: tuple[str, ...] = ("target_only", "token", "block", "recursive", "traversal", "k_seq")
  temperatures: tuple[float, ...] = (0.8, 1.0)  # temperatures of the target
  rounds: int = 300  # number of rounds that are compared with the best possible rule
  out: str = "results/verifiers"


def pairs(model: specjax.Model, config: Config) -> list[tuple]:
  """(tree, drafter with weights, rule) of all exact pairs."""
  found = []
  for rule in config.verifiers:
    if rule not in VERIFIERS:
      raise ValueError(f"`verifiers` must be among {', '.join(VERIFIERS)}, got {rule!r}.")
  for tree in config.trees:
    named = (f"{config.drafter}-{tree}", None) if tree.isdigit() else (config.drafter, tree)
    drafter = specjax.make_drafter(model, named[0], tree=named[1])
    proposal = drafter[0].proposal
    found += [(tree, drafter, r) for r in config.verifiers if proposal in VERIFIERS[r]().accepts]
  return found


def measure(model: specjax.Model, config: Config, ids, tree: str, drafter, rule, temperature):
  """The figures of one pair at one temperature."""
  decode = specjax.Decoder(model, drafter, rule, temperature=temperature)
  results = decode(ids, config.max_new_tokens)
  cell = {
    "tree": tree, "nodes": drafter[0].nodes, "proposal": drafter[0].proposal, "rule": rule,
    "temperature": temperature, **metrics.tau(results), "reached": None,
  }  # fmt: skip
  if not tree.startswith("dyspec"):  # there the number of children depends on what was drawn
    cell |= optimal.measure(decode, ids, config.max_new_tokens, config.rounds)
  return cell


def rows(cells: list[dict]) -> list[dict[str, object]]:
  """The table: a row per pair, columns per temperature."""
  found: dict[tuple, dict[str, object]] = {}
  for cell in cells:
    same = {key: cell[key] for key in ("tree", "nodes", "rule")}
    row = found.setdefault(tuple(same.values()), same)
    at = f"T = {cell['temperature']:g}"
    row[f"tokens / pass, {at}"] = table.estimate(cell["tau"], cell["tau_interval"])
    row[f"reached, {at}"] = "" if cell["reached"] is None else f"{100 * cell['reached']:.0f} %"
  return list(found.values())


def main(config: Config) -> None:
  model = specjax.load(config.model, weights="float")
  ids = [item.ids for item in config.read(model)]
  turns = [(*pair, t) for pair in pairs(model, config) for t in config.temperatures]
  out = report.directory(config.out)
  weights = sorted({fingerprint.of_weights(drafter[1]) for _, drafter, *_ in turns})
  claim(out, config, ids, model.ingredients() | {"drafters.weights": weights})
  kept = out / "cells.jsonl"
  cells = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
  there = {(c["tree"], c["rule"], c["temperature"]) for c in cells}
  for tree, drafter, rule, temperature in report.progress(turns, "decoding"):
    if (tree, rule, temperature) in there:
      continue
    cells.append(measure(model, config, ids, tree, drafter, rule, temperature))
    with kept.open("a") as file:
      file.write(json.dumps(cells[-1]) + "\n")
    jax.clear_caches()  # a process may map 65530 pieces of memory
  report.publish(config, {"cells": cells}, table.markdown(rows(cells)))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
