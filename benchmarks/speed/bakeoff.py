"""Every trained head, side by side: at one tree budget, and at the best tree of each.

    python -m specjax.configs.bakeoff hydra --data gsm8k_train.jsonl     # and the others
    python benchmarks/speed/bakeoff.py --prompts gsm8k_test.jsonl --limit 40

No head may have seen the questions. A head is measured with the best static tree of `nodes` nodes
by its held-out hit rates (and half as many pseudo rows again, where it has them), with a dynamic
tree of as many nodes, and with the tree that promises most on this machine. All decode the same
questions greedily, in turns with plain decoding, and ids are compared. A run that was ended goes on
with the next head, and one that is started again with more heads adds them.
"""

import dataclasses
import json
import pathlib
import sys
from typing import Any

import jax
import numpy as np
import optax

import specjax
from specjax import command_line, fingerprint
from specjax.checkpoints import formats
from specjax.data import resume
from specjax.decoding.decoder import Decoder
from specjax.eval import bench, choice, fillers, interleaved, prompts, report, table
from specjax.eval.options import Tune
from specjax.eval.plots import speed
from specjax.heads import drafting
from specjax.heads.parallel import Frames
from specjax.heads.pseudo_rows import PseudoRows
from specjax.names import grammar
from specjax.names.grammar import Part
from specjax.trees import Static

SAME, DYNAMIC, OWN = "same budget", "dynamic", "own best"


@dataclasses.dataclass(frozen=True)
class Config(prompts.Questions):
  """What is compared."""

  heads: str = "runs/bakeoff"  # directory with a run of each head
  only: tuple[str, ...] = ()  # names of the heads that take part; by default all
  nodes: int = 16  # number of nodes of the trees of equal size
  beam: int = 4  # beam of the dynamic tree
  repeats: int = 3  # times everything is decoded; medians count
  batch: int = 1  # questions decoded together
  out: str = "results/bakeoff"


def measure(model: specjax.Model, name: str, path: str, items, config: Config) -> dict:
  """The figures of one head and of plain decoding beside it, ready for JSON."""
  loaded = formats.load(path, model.config)
  if loaded.hit_rates is None:
    raise ValueError(f"{path} came without hit rates, by which its trees are chosen.")
  rates, pseudo = np.asarray(loaded.hit_rates), isinstance(loaded.head, PseudoRows)
  part = Part(loaded.head.name, (), path)
  filler = fillers.Filler(
    part,
    lambda tree, guesses: drafting.drafter(loaded.head, tree, guesses or None),
    loaded.params,
    rates,
    pseudo,
  )
  context = max(len(item.ids) for item in items) + config.max_new_tokens // 2
  options = [c for c in choice.candidates(part, rates, pseudo) if c.nodes <= 2 * config.nodes]
  settings = Tune(drafters=(name,), batch=config.batch)
  target, draft = fillers.costs(model, filler, options, Static, config.batch, context)
  seconds = np.add(target, draft).tolist()
  speeds = [choice.expected(c, s, config.batch) for c, s in zip(options, seconds, strict=True)]
  own = options[int(np.argmax(speeds))]
  shares = {c.name: d / s for c, d, s in zip(options, draft, seconds, strict=True)}
  jax.clear_caches()  # a process may map 65530 pieces of memory
  some = (Part("rows", (config.nodes * 3 // 2,)),) if pseudo else ()
  dynamic = Part("dynamic", (config.nodes, min(len(rates), config.nodes - 1), config.beam))
  names = {
    SAME: grammar.show([part._replace(numbers=(config.nodes,), decorations=some)]),
    DYNAMIC: grammar.show([part._replace(decorations=(dynamic,))]),
    OWN: own.name,
  }
  decoders = {kind: Decoder(model, one, batch=config.batch) for kind, one in names.items()}
  decoders[bench.PLAIN] = Decoder(model, batch=config.batch)
  ids = [item.ids for item in items]
  runs = interleaved.decode(decoders, ids, config.max_new_tokens, config.repeats)
  figures = {k: bench.figures(x, runs[bench.PLAIN], items, settings) for k, x in runs.items()}
  jax.clear_caches()
  return {
    "parameters": optax.tree.size(loaded.params["params"]),
    # Frames are not tokens.
    "hit_rates": [] if isinstance(loaded.head, Frames) else rates[:, 0].tolist(),
    "draft_share": None if pseudo else shares.get(names[SAME]),
    "draft_seconds": dict(zip(shares, draft, strict=True)),
    "own": own.name.replace(f"[{path}]", ""),
    "plain": figures.pop(bench.PLAIN), "figures": figures,
  }  # fmt: skip


def row(name: str, head: dict[str, Any], nodes: int) -> dict[str, object]:
  """A line of the table."""
  same, dynamic, own = (head["figures"][kind] for kind in (SAME, DYNAMIC, OWN))
  share = head["draft_share"]
  depths = [f".{round(100 * a):02d}" for a in same["acceptance_by_depth"] if a is not None]
  return {
    "head": name,
    "parameters, M": f"{head['parameters'] / 1e6:.2f}",
    f"tokens / pass, {nodes} nodes": table.estimate(same["tau"], same["tau_interval"]),
    "dynamic tree": f"{dynamic['tau']:.2f}",
    "acceptance by depth": " ".join(depths),
    "draft share of time": "" if share is None else f"{100 * share:.0f} %",
    "speed-up": table.estimate(same["speed_up"], same["speed_up_interval"]),
    "own best tree: tokens / pass": f"{head['own']}: {own['tau']:.2f}",
    "its speed-up": table.estimate(own["speed_up"], own["speed_up_interval"]),
    "answers that differ": sum(len(m["divergences"]) for m in head["figures"].values()),
  }


def main(config: Config) -> None:
  report.check(config, "repeats", "batch")
  model = specjax.load(config.model, weights="float")
  found = sorted(p.parent.name for p in pathlib.Path(config.heads).glob("*/model"))
  names = config.only or tuple(found)
  if not names or not set(names) <= set(found):
    raise ValueError(
      f"heads={config.heads!r}, only={' '.join(config.only)!r}: the directory has "
      f"the heads {', '.join(found) or '(none)'}."
    )
  items = config.read(model)
  out = report.directory(config.out)
  fixed = ("heads", "max_new_tokens", "nodes", "beam", "repeats", "batch")
  same = {name: getattr(config, name) for name in fixed}
  same |= {"model": model.label, "questions": fingerprint.digest(str(item.ids) for item in items)}
  same |= model.ingredients()
  resume.claim(out, same)
  log = out / "heads.jsonl"
  known = {(line["name"], line["weights"]): line["figures"] for line in resume.kept(log)}
  heads = {}
  for name in names:
    path = pathlib.Path(config.heads, name, "model")
    weights = fingerprint.of_files(path)
    if (name, weights) not in known:  # a head that was trained again is measured again
      known[name, weights] = measure(model, name, str(path), items, config)
      line = {"name": name, "weights": weights, "figures": known[name, weights]}
      with log.open("a") as file:
        file.write(json.dumps(line) + "\n")
    heads[name] = known[name, weights]
  about = {"model": config.model, "prompts": len(items), "heads": heads}
  summary = report.summary(config, about)
  order = sorted(heads, key=lambda k: heads[k]["figures"][SAME]["tau"])
  text = table.markdown([row(name, heads[name], config.nodes) for name in order])
  kinds = {SAME: f"{config.nodes} nodes", OWN: "the tree that tune chose"}
  report.publish(config, summary, text, {"bakeoff": speed.heads(summary, kinds)})


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
