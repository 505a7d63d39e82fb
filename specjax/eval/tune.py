"""The tree that fits the machine: the one that expects the most tokens per second.

The idea is Sequoia's hardware-aware choice of a tree (Chen et al. 2024, arXiv 2402.12374) with a
head's own hit rates. In a round of v(N) + d seconds, v(N) of the target over N nodes and d of the
drafter, each row of a batch gains 1 + E tokens, E expected to be accepted. Both times are measured
on this device; E is `trees.static.expected_length` of held-out hit rates.

Left out: what a round spends on choosing tokens and on bookkeeping, about the same for every
candidate, and rows of a batch that end early. Decoding should therefore be a little slower than
expected; a machine busy with other things and prompts unlike the held-out text widen the gap.

Letters: B batch, N tree nodes, D depth, R ranks.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.checkpoints.heads import Loaded
from specjax.decoding import spec
from specjax.decoding.build.drafter import load_head
from specjax.decoding.decoder import Decoder
from specjax.decoding.model import Model
from specjax.drafters import HEADS, drafting, none
from specjax.eval import bench, draft_cost, interleaved, metrics, plots, verify_cost
from specjax.eval.environment import environment
from specjax.trees import files
from specjax.trees.grow import as_tree
from specjax.trees.static import best_first, expected_length

NODES = (4, 6, 8, 12, 16, 24, 32, 48, 64)
PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Config:
  """For what a tree is chosen, and on what the choice is checked.

  Attributes:
    drafter: name of a head, such as "medusa" or "medusa[PATH]".
    prompts: JSONL file or tfds:NAME:SPLIT; None for our own questions.
    limit: how many prompts; None for all.
    max_new_tokens: budget per prompt.
    batch: B, prompts decoded together.
    decode: how many candidates are decoded besides plain decoding, the most promising; None for
      all. The choice does not depend on it.
    repeats: times everything is decoded.
  """

  drafter: str
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
  batch: int = 1
  decode: int | None = None
  repeats: int = 3


class Candidate(NamedTuple):
  """A draft that could be made in every round.

  Attributes:
    name: "plain", "chain D" or "tree N".
    tree: rank paths; () for plain decoding.
    accepted: E, expected accepted tokens of a round.
  """

  name: str
  tree: tuple[tuple[int, ...], ...]
  accepted: float

  @property
  def nodes(self) -> int:
    return len(self.tree) + 1


def candidates(hit_rates: np.ndarray) -> list[Candidate]:
  """Plain decoding, chains of all depths, and best trees of NODES as far as the table reaches.

  Args:
    hit_rates: f[D, R], see `trees.static.best_first`.
  """
  best = hit_rates.argmax(1).tolist()
  whole = best_first(hit_rates, max(NODES))
  trees = {PLAIN: as_tree(())}
  for depth in range(1, len(best) + 1):
    trees[f"chain {depth}"] = as_tree([best[:d] for d in range(1, depth + 1)])
  for nodes in NODES:
    tree = as_tree(whole[: nodes - 1])
    if len(tree) + 1 == nodes and set(tree) not in map(set, trees.values()):
      trees[f"tree {nodes}"] = tree
  return [Candidate(k, t, expected_length(t, hit_rates)) for k, t in trees.items()]


def expected(candidate: Candidate, seconds: float, batch: int) -> float:
  """Tokens per second of all rows, a round taking `seconds`."""
  return metrics.tokens_per_second(batch * (1 + candidate.accepted), seconds)


def choose(options: Sequence[Candidate], seconds: Sequence[float], batch: int = 1) -> Candidate:
  """The candidate that expects the most tokens per second; of equals the first.

  Args:
    seconds: of a round of each.
    batch: B.
  """
  rates = [expected(c, s, batch) for c, s in zip(options, seconds, strict=True)]
  return options[int(np.argmax(rates))]


def _load(model: Model, config: Config) -> tuple[str, Loaded]:
  """(name, head with hit rates)."""
  part = spec.parse_one("drafter", config.drafter)
  if part.name not in HEADS or part.numbers:
    raise ValueError(f"drafter={config.drafter!r} has no tree to choose: accepted are "
                     f"{', '.join(HEADS)}, with [PATH] or not.")  # fmt: skip
  name, loaded = load_head(model, part)
  if loaded.hit_rates is None:
    raise ValueError(f"head={name!r} came without the hit rates by which trees are chosen: "
                     "specjax.train.heads measures and saves them.")  # fmt: skip
  return name, loaded


def _costs(
  model: Model, loaded: Loaded, options: Sequence[Candidate], context: int, batch: int
) -> tuple[list[float], list[float]]:
  """Measured seconds of each candidate's round: the target's, the drafter's."""
  drafters = [drafting.drafter(loaded.head, c.tree) for c in options if c.tree]
  sizes = sorted({c.nodes for c in options})
  cost = verify_cost.measure(model.target, model.params, context, batch=batch, nodes=sizes)
  passes = dict(zip(sizes, cost.seconds, strict=True))
  drafts = draft_cost.measure(
    model.target, model.params, drafters, loaded.params, context, batch=batch
  )
  # A drafter's own `evaluate` is part of what its draft costs.
  replaced = [False, *(d.evaluate is not None for d in drafters)]
  target = [0.0 if own else passes[c.nodes] for c, own in zip(options, replaced, strict=True)]
  return target, [0.0, *drafts]


def _decode(
  model: Model, loaded: Loaded, options: Sequence[Candidate], items, settings: bench.Config
) -> dict[str, dict[str, Any]]:
  """Measured figures of each candidate, greedy, all on the same prompts."""
  drafters = [(drafting.drafter(loaded.head, c.tree), loaded.params) if c.tree else (none(), ())
              for c in options]  # fmt: skip
  decoders = {
    c.name: Decoder(model, drafter, batch=settings.batch)
    for c, drafter in zip(options, drafters, strict=True)
  }
  ids_of = [item.ids for item in items]
  runs = interleaved.decode(decoders, ids_of, settings.max_new_tokens, settings.repeats)
  ids = {k: [r.tokens for r in x.results] for k, x in runs.items()}
  figures = {}
  for name, x in runs.items():
    tokens = sum(r.emitted for r in x.results)
    seconds = float(np.median(x.seconds, 0).sum())
    figures[name] = {
      "measured": metrics.tokens_per_second(tokens, seconds),
      "measured_tau": metrics.block_efficiency(tokens, sum(r.forwards for r in x.results)),
      "differ": sum(a != b for a, b in zip(ids[name], ids[PLAIN], strict=True)),
    }
  return figures


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Chooses, decodes to check, and writes tree.json, summary.json and tune.png.

  Args:
    model: the target.
    config: for what.
    out: directory, made where it is absent.

  Returns:
    The summary: config, environment, figures of each candidate, which was chosen.

  Raises:
    ValueError: no such head, a head without hit rates, or a prompt that cannot be decoded.
  """
  name, loaded = _load(model, config)
  fields = dataclasses.asdict(config)
  drafter, decoded = fields.pop("drafter"), fields.pop("decode")
  if decoded is not None and decoded < 0:
    raise ValueError(f"decode={decoded}: accepted is 0 or more.")
  settings = bench.Config(drafters=(drafter,), **fields)
  items = bench.read_items(model, settings)
  Decoder(model, batch=config.batch)  # refuses what cannot be a batch
  out = pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)

  options = candidates(np.asarray(loaded.hit_rates))
  context = max(len(item.ids) for item in items) + config.max_new_tokens // 2
  target, draft = _costs(model, loaded, options, context, config.batch)
  rounds = np.add(target, draft).tolist()
  rates = {c.name: expected(c, s, config.batch) for c, s in zip(options, rounds, strict=True)}
  chosen = choose(options, rounds, config.batch)
  promising = sorted(options[1:], key=lambda c: -rates[c.name])[:decoded]
  measured = _decode(model, loaded, [options[0], *promising], items, settings)
  figures = {
    c.name: {
      "nodes": c.nodes, "depth": max(map(len, c.tree), default=0), "choices": c.tree,
      "target_seconds": v, "draft_seconds": d, "tau": 1 + c.accepted, "expected": rates[c.name],
      **measured.get(c.name, {}),
    }
    for c, v, d in zip(options, target, draft, strict=True)
  }  # fmt: skip
  summary = {
    "model": model.name, "parameters": bench.parameters(model.params), "drafter": drafter,
    "head": name, "config": dataclasses.asdict(settings), "prompts": len(items),
    "context": context, **environment(), "hit_rates": np.asarray(loaded.hit_rates).tolist(),
    "candidates": figures, "chosen": chosen.name,
  }  # fmt: skip
  (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
  files.save(out / "tree.json", chosen.tree, _about(summary))
  plots.tune(summary).savefig(out / "tune.png")
  return summary


def _about(summary: dict[str, Any]) -> dict[str, Any]:
  """For what the tree was chosen, and what it gave in tokens per second."""
  figures, machine = summary["candidates"], summary["machine"]
  chosen = figures[summary["chosen"]]
  return {
    **{k: summary[k] for k in ("drafter", "head", "model")},
    "batch": summary["config"]["batch"],
    "machine": {k: machine[k] for k in ("cpu", "cores", "device", "backend")},
    "expected": chosen["expected"],
    "measured": chosen.get("measured"),
    "plain": figures[PLAIN]["measured"],
  }
