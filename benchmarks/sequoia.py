r"""Sequoia's tree for a head: how often a child of each rank is accepted, and what follows.

    python benchmarks/sequoia.py --prompts gsm8k_test.jsonl

Measures on the first questions with trees of one level, whose children are drawn without
replacement; runs the dynamic program (`trees.sequoia`); and decodes the next questions with its
tree and, beside it, with the tree of the same size whose nodes all have the same number of
children. Writes tree.json, which `--tree` reads.
"""

import dataclasses
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import tyro

import specjax
from specjax.base import Drafter
from specjax.eval import bench, metrics
from specjax.eval.environment import environment
from specjax.trees import files
from specjax.trees.drawn import Drawn
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
    drafter: the head, or "draft_model".
    head: where the head is; by default the zoo's.
    draft_model: LM of the `draft_model` drafter.
    temperature: of the law, above 0.
    width: children of the root while measuring, and ranks a tree may have.
    depth: of the tree at most.
    widths: the other tree, children per level; its size is that of both.
    measured: questions for the rates.
    limit: questions to decode.
    max_new_tokens: per question.
    out: where tree.json and summary.json go.
  """

  prompts: str
  model: str = "gsm8k-7m"
  drafter: str = "eagle"
  head: str | None = None
  draft_model: str | None = None
  temperature: float = 1.0
  width: int = 6
  depth: int = 5
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


def main(config: Config) -> None:
  model = specjax.load(config.model)
  total = config.measured + config.limit
  settings = bench.Config(prompts=config.prompts, limit=total, max_new_tokens=config.max_new_tokens)
  ids = [item.ids for item in bench.read_items(model, settings)]

  def pair(choices):
    return specjax.make_drafter(
      model, config.drafter, head=config.head, draft_model=config.draft_model,
      tree=Drawn(as_tree(choices), "distinct"),
    )  # fmt: skip

  def decoder(drafter, batch: int):
    return specjax.Decoder(model, drafter, "recursive", temperature=config.temperature, batch=batch)

  drafter, params = pair(k_config([config.width]))
  decode = decoder((counting(drafter), params), config.measured)
  budgets = [config.max_new_tokens] * config.measured
  request, state, _ = decode._start(ids[: config.measured], budgets, 0)
  state = decode._advance(request, state, config.max_new_tokens)
  counts = np.asarray(state.drafter[1]).sum(0)
  rates = counts[1:] / counts.sum()  # entry 0: rounds that accepted none

  even = k_config(config.widths)
  trees = {"sequoia": sequoia(rates, len(even) + 1, config.depth), "even": even}
  table = np.tile(rates, (config.depth, 1))
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
  files.save(out / "tree.json", Drawn(as_tree(trees["sequoia"]), "distinct"), about)
  report = {"config": dataclasses.asdict(config), **environment(), **about, "trees": figures}
  (out / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
  print("accepted by rank:", " ".join(f"{r:.3f}" for r in rates), f"of {int(counts.sum())} rounds")
  print("| tree | nodes | expected | tokens / forward |\n|---|---|---|---|")
  for name, f in figures.items():
    low, high = f["interval"] or (float("nan"),) * 2
    print(f"| {name} | {f['nodes']} | {f['expected']:.2f} | {f['tokens_per_forward']:.2f} "
          f"[{low:.2f}, {high:.2f}] |")  # fmt: skip


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
