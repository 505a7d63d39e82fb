r"""Sequoia's tree for a head: how often a child of each rank is accepted, and what follows.

    python benchmarks/sequoia.py --prompts gsm8k_test.jsonl

Measures on the first questions with trees of one level, whose children are drawn without
replacement; runs the dynamic program (`trees.sequoia`) for several sizes; takes the tree that
expects the most tokens per second on this machine; and decodes the next questions with it and,
beside it, with the tree of `widths` and the program's tree of the same size. Writes tree.json,
which `--tree` reads.
"""

import dataclasses
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import tyro

import specjax
from specjax.base import Drafter
from specjax.eval import bench, draft_cost, metrics, tune, verify_cost
from specjax.eval.environment import environment
from specjax.trees import WithoutReplacement, files
from specjax.trees.grow import as_tree
from specjax.trees.sequoia import sequoia
from specjax.trees.static import expected_length, k_config
from specjax.trees.structure import at


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured and compared.

  Attributes:
    prompts: JSONL of questions.
    model: the target.
    drafter: name of a head, or "draft_model[PATH]".
    temperature: of the distribution, above 0.
    width: children of the root while measuring, and ranks a tree may have.
    depth: of the tree at most.
    sizes: nodes of the trees to choose from.
    widths: of the tree to compare with, children per level.
    measured: questions for the rates.
    limit: questions to decode.
    max_new_tokens: per question.
    out: where tree.json and summary.json go.
  """

  prompts: str
  model: str = "gsm8k-7m"
  drafter: str = "eagle"
  temperature: float = 1.0
  width: int = 6
  depth: int = 5
  sizes: tuple[int, ...] = (4, 8, 12, 16, 24)
  widths: tuple[int, ...] = (2, 2, 2)
  measured: int = 8
  limit: int = 8
  max_new_tokens: int = 128
  out: str = "results/sequoia"


def counting(drafter: Drafter) -> Drafter:
  """The drafter of a tree of one level, its state beside counts i32[B, N] of accepted nodes."""

  def init(params, target_params, context, features, capacity):
    counts = jnp.zeros((context.length.shape[0], drafter.nodes), jnp.int32)
    return drafter.init(params, target_params, context, features, capacity), counts

  def propose(params, target_params, state, context, settings, noise):
    draft, own = drafter.propose(params, target_params, state[0], context, settings, noise)
    return draft, (own, state[1])

  def update(params, target_params, state, draft, evaluation, verdict, rows):
    last = at(verdict.path, verdict.count[:, None])
    hit = (last == jnp.arange(drafter.nodes)[None]) & (rows[:, None] > 0)
    own = drafter.update(params, target_params, state[0], draft, evaluation, verdict, rows)
    return own, state[1] + hit.astype(jnp.int32)

  return drafter._replace(init=init, propose=propose, update=update)


def sized(model, rates, config: Config, pair) -> tuple[list[tune.Candidate], list[float]]:
  """The program's trees of all sizes, and the measured seconds of a round with each."""
  table = np.tile(rates, (config.depth, 1))
  trees = [as_tree(sequoia(rates, nodes, config.depth)) for nodes in config.sizes]
  options = [tune.Candidate(f"tree {len(t) + 1}", t, expected_length(t, table)) for t in trees]
  pairs = [pair(t) for t in trees]
  passes = verify_cost.measure(
    model.target, model.params, config.max_new_tokens, nodes=[c.nodes for c in options]
  ).seconds
  drafts = draft_cost.measure(
    model.target, model.params, [d for d, _ in pairs], pairs[0][1], config.max_new_tokens
  )
  return options, np.add(passes, drafts).tolist()


def main(config: Config) -> None:
  model = specjax.load(config.model)
  total = config.measured + config.limit
  settings = bench.Config(prompts=config.prompts, limit=total, max_new_tokens=config.max_new_tokens)
  ids = [item.ids for item in bench.read_items(model, settings)]

  def pair(choices):
    return specjax.make_drafter(model, config.drafter, tree=WithoutReplacement(choices))

  def decoder(drafter, batch: int):
    return specjax.Decoder(model, drafter, "recursive", temperature=config.temperature, batch=batch)

  drafter, params = pair(k_config([config.width]))
  decode = decoder((counting(drafter), params), config.measured)
  budgets = [config.max_new_tokens] * config.measured
  request, state, _ = decode._start(ids[: config.measured], budgets, 0)
  state = decode._advance(request, state, config.max_new_tokens)
  counts = np.asarray(state.drafter[1]).sum(0)
  rates = counts[1:] / counts.sum()  # entry 0: rounds that accepted none

  table = np.tile(rates, (config.depth, 1))
  options, seconds = sized(model, rates, config, pair)
  best = tune.choose(options, seconds)
  even = k_config(config.widths)
  same = f"sequoia, {len(even) + 1} nodes"
  trees = {
    "fits the machine": best.tree, same: sequoia(rates, len(even) + 1, config.depth),
    "-".join(map(str, config.widths)): even,
  }  # fmt: skip
  figures = {}
  for name, choices in trees.items():
    results = decoder(pair(choices), config.limit)(ids[config.measured :], config.max_new_tokens)
    emitted, forwards = [r.emitted for r in results], [r.forwards for r in results]
    figures[name] = {
      "choices": choices, "nodes": len(choices) + 1,
      "expected": 1 + expected_length(choices, table),
      "tokens_per_forward": sum(emitted) / sum(forwards),
      "interval": metrics.bootstrap_interval(metrics.block_efficiency, emitted, forwards),
    }  # fmt: skip
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  about = {
    "model": config.model, "drafter": config.drafter, "temperature": config.temperature,
    "acceptance": rates.tolist(), "rounds": int(counts.sum()),
  }  # fmt: skip
  files.save(out / "tree.json", WithoutReplacement(best.tree), about)
  sizes = [
    {"nodes": c.nodes, "expected": 1 + c.accepted, "seconds": s,
     "tokens_per_second": tune.expected(c, s, 1)}
    for c, s in zip(options, seconds, strict=True)
  ]  # fmt: skip
  report = {
    "config": dataclasses.asdict(config), **environment(), **about, "sizes": sizes,
    "trees": figures,
  }  # fmt: skip
  (out / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
  print("accepted by rank:", " ".join(f"{r:.3f}" for r in rates), f"of {int(counts.sum())} rounds")
  for x in sizes:
    print(f"{x['nodes']} nodes: {x['expected']:.2f} tokens in {1e3 * x['seconds']:.2f} ms expected")
  print("| tree | nodes | expected | tokens / forward |\n|---|---|---|---|")
  for name, f in figures.items():
    low, high = f["interval"] or (float("nan"),) * 2
    print(f"| {name} | {f['nodes']} | {f['expected']:.2f} | {f['tokens_per_forward']:.2f} "
          f"[{low:.2f}, {high:.2f}] |")  # fmt: skip


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
