"""Every head that was trained, side by side: at one tree budget, and at the tree that suits it.

    python -m specjax.configs.bakeoff hydra --data gsm8k_train.jsonl     # and the others
    python benchmarks/bakeoff.py --prompts gsm8k_test.jsonl --limit 40

A head is measured three ways: the best static tree of `nodes` nodes from its held-out hit rates, a
dynamic tree of as many nodes, and the tree that `specjax tune` would choose on this machine. Each
decodes the same questions in interleaved with plain decoding, greedily; ids are compared.
"""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

import specjax
from specjax.checkpoints import formats
from specjax.decoding.decoder import Decoder
from specjax.drafters import drafting, none
from specjax.eval import bench, draft_cost, interleaved, tune, verify_cost
from specjax.eval.environment import environment
from specjax.trees.grow import Dynamic, as_tree
from specjax.trees.static import best_first

SAME, DYNAMIC, OWN = "same budget", "dynamic", "own best"


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared.

  Attributes:
    prompts: JSONL of questions that no head has seen.
    heads: directory with a run of each head.
    only: names of some of them; all by default.
    model: the target.
    nodes: of the budget that is the same for all.
    beam: of the dynamic tree.
    limit, max_new_tokens, repeats, batch: as in `specjax bench`.
    out: where the report goes.
  """

  prompts: str
  heads: str = "runs/bakeoff"
  only: tuple[str, ...] = ()
  model: str = "gsm8k-7m"
  nodes: int = 16
  beam: int = 4
  limit: int = 40
  max_new_tokens: int = 128
  repeats: int = 3
  batch: int = 1
  out: str = "results/bakeoff"


def trees(rates: np.ndarray, config: Config, seconds) -> dict[str, Any]:
  """A head's trees: the budget's best, a dynamic one, and what fits the machine.

  Args:
    seconds: of a round of each of `tune.candidates`.
  """
  options = [c for c in tune.candidates(rates) if c.nodes <= 2 * config.nodes]
  return {
    SAME: as_tree(best_first(rates, config.nodes)),
    DYNAMIC: Dynamic(config.nodes, min(len(rates), config.nodes - 1), config.beam),
    OWN: tune.choose(options, seconds(options), config.batch).tree,
  }


def row(name: str, f: dict[str, dict[str, Any]], about: dict[str, Any]) -> str:
  """A line of the table."""

  def speed(m: dict[str, Any]) -> str:
    low, high = m["speed_up_interval"]
    return f"{m['speed_up']:.2f} [{low:.2f}, {high:.2f}]"

  same, dynamic, own = f[SAME], f[DYNAMIC], f[OWN]
  low, high = same["tau_interval"]
  depths = " ".join(f".{round(100 * a):02d}" for a in same["acceptance_by_depth"] if a is not None)
  cells = (
    name, f"{about['parameters'] / 1e6:.2f}", f"{same['tau']:.2f} [{low:.2f}, {high:.2f}]",
    f"{dynamic['tau']:.2f}", depths, f"{100 * about['draft_share']:.0f} %", speed(same),
    f"{about['own']}: {own['tau']:.2f}", speed(own),
    str(sum(len(m["divergences"]) for m in f.values())),
  )  # fmt: skip
  return "| " + " | ".join(cells) + " |"


def picture(summary: dict[str, Any]) -> Figure:
  """Tokens per forward and speed-up of every head, best last, and acceptance by depth."""
  heads = sorted(summary["heads"], key=lambda k: summary["heads"][k]["figures"][SAME]["tau"])
  figure = Figure(figsize=(13, 1.5 + 0.34 * len(heads)), dpi=140, layout="constrained")
  bars, lines = figure.subplots(1, 2)
  place = np.arange(len(heads))
  for kind, shift, colour in ((SAME, 0.2, "#0072B2"), (OWN, -0.2, "#E69F00")):
    part = [summary["heads"][k]["figures"][kind] for k in heads]
    speed = [m["speed_up"] for m in part]
    spread = np.abs(np.transpose([m["speed_up_interval"] for m in part]) - np.asarray(speed)[None])
    label = f"{summary['config']['nodes']} nodes" if kind == SAME else "its own best tree"
    bars.barh(place + shift, speed, 0.38, color=colour, xerr=spread, ecolor="#222222", label=label)
    for y, m in zip(place + shift, part, strict=True):
      bars.text(0.03, y, f"τ {m['tau']:.2f}", va="center", fontsize=8, color="white")
  bars.axvline(1, color="#222222", linewidth=0.9, linestyle=(0, (4, 3)))
  bars.set_yticks(place, [k.replace("_", " ") for k in heads])
  bars.set_title("Speed over plain decoding; τ: tokens per forward", loc="left", fontsize=11)
  bars.legend(frameon=False, loc="lower right")
  colours = matplotlib_colours(len(heads))
  for k, colour in zip(reversed(heads), colours, strict=True):
    alpha = summary["heads"][k]["hit_rates"]
    lines.plot(range(1, len(alpha) + 1), alpha, "o-", color=colour, label=k.replace("_", " "))
  lines.set_xticks(range(1, 6))
  lines.set_ylim(0, 1)
  lines.set_xlabel("depth")
  lines.set_title("Best guess right, given the true text before it", loc="left", fontsize=11)
  lines.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
  for axes in (bars, lines):
    axes.spines[["top", "right"]].set_visible(False)
  return figure


def matplotlib_colours(count: int):
  """`count` colours from dark to light, told apart in grey too."""
  from matplotlib import colormaps

  return colormaps["viridis"](np.linspace(0, 0.9, count))


def main(config: Config) -> None:
  model = specjax.load(config.model)
  found = sorted(p.parent.name for p in pathlib.Path(config.heads).glob("*/model"))
  names = config.only or tuple(found)
  settings = bench.Config(
    prompts=config.prompts, limit=config.limit, max_new_tokens=config.max_new_tokens,
    batch=config.batch, repeats=config.repeats,
  )  # fmt: skip
  items = bench.read_items(model, settings)
  context = max(len(item.ids) for item in items) + config.max_new_tokens // 2
  cost = verify_cost.measure(
    model.target,
    model.params,
    context,
    batch=config.batch,
    nodes=(1, *range(2, 7), *(n for n in tune.NODES[2:] if n <= 2 * config.nodes)),
  )
  passes = dict(zip(cost.nodes, cost.seconds, strict=True))
  prompts, heads, plain = [item.ids for item in items], {}, {}
  for name in names:
    loaded = formats.load(f"{config.heads}/{name}/model", model.config)
    rates = np.asarray(loaded.hit_rates)
    shares: dict[str, float] = {}
    extra: dict[str, float] = {}

    def seconds(options, loaded=loaded, shares=shares, extra=extra):
      drafted = [drafting.drafter(loaded.head, c.tree) for c in options if c.tree]
      drafts = draft_cost.measure(
        model.target, model.params, drafted, loaded.params, context, batch=config.batch
      )
      times = []
      for c, d, drafter in zip(options, [0.0, *drafts], [None, *drafted], strict=True):
        replaced = drafter is not None and drafter.evaluate is not None
        times.append(d + (0.0 if replaced else passes[c.nodes]))
        extra[c.name] = d - passes[c.nodes] if replaced else d
        shares[c.name] = extra[c.name] / times[-1]
      return times

    chosen = trees(rates, config, seconds)
    labels = {c.tree: c.name for c in tune.candidates(rates)}
    heads[name] = {
      "parameters": bench.parameters(loaded.params["params"]),
      "hit_rates": rates[:, 0].tolist(),
      "draft_share": shares.get(f"tree {config.nodes}", float("nan")),
      "draft_seconds": extra,
      "own": labels[chosen[OWN]],
    }
    jax.clear_caches()  # a process may map 65530 pieces of memory
    decoders = {bench.PLAIN: Decoder(model, (none(), ()), batch=config.batch)}
    for kind, tree in chosen.items():
      drafter = (drafting.drafter(loaded.head, tree), loaded.params) if tree else (none(), ())
      decoders[kind] = Decoder(model, drafter, batch=config.batch)
    runs = interleaved.decode(decoders, prompts, settings.max_new_tokens, settings.repeats)
    figures = {k: bench.figures(x, runs[bench.PLAIN], items, settings) for k, x in runs.items()}
    plain[name] = figures.pop(bench.PLAIN)
    heads[name]["figures"] = figures
    jax.clear_caches()
  summary = {
    "config": dataclasses.asdict(config), "model": config.model, "prompts": len(items),
    **environment(), "plain": plain, "verify_cost": cost._asdict(), "heads": heads,
  }  # fmt: skip
  columns = (
    "head", "parameters, M", f"tokens / forward, {config.nodes} nodes", "dynamic tree",
    "acceptance by depth", "draft share of time", "speed-up", "own best tree: tokens / forward",
    "speed-up", "answers that differ",
  )  # fmt: skip
  order = sorted(heads, key=lambda k: heads[k]["figures"][SAME]["tau"])
  table = [
    "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns),
    *(row(k, heads[k]["figures"], heads[k]) for k in order),
  ]  # fmt: skip
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
  (out / "table.md").write_text("\n".join(table) + "\n")
  picture(summary).savefig(out / "bakeoff.png")
  print("\n".join(table))


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
