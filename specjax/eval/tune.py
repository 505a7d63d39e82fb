"""The tree that fits the machine: chosen by measured times, and checked by decoding.

The times of a round, the target's and the drafter's, are measured on this device (see `choice`).
How often a guess is right comes from one of two methods:

- "best_first": a head's held-out hit rates, by depth and rank. The trees hold its best guesses.
- "sequoia": how often a child of each rank is accepted when children are drawn without
  replacement, measured here (`eval.sequoia`). The trees are those of Sequoia's dynamic program.

Decoding is a little slower than expected: the estimate leaves out the rule and the bookkeeping of
a round, about the same for every candidate, and rows of a batch that end early. A busy machine and
prompts unlike those of the rates widen the gap.

Letters: B batch, N tree nodes, D depth, R ranks.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import optax

from specjax import checks
from specjax.base import Drafter, Params
from specjax.decoding import spec
from specjax.decoding.builders.drafters import HEAD_NAMES, is_head, load_small
from specjax.decoding.builders.head import load_head
from specjax.decoding.decoder import Decoder
from specjax.decoding.model import Model
from specjax.drafters import drafting
from specjax.drafters.draft_tree import draft_tree
from specjax.eval import draft_cost, interleaved, metrics, prompts, report, sequoia, table
from specjax.eval import verify_cost as verify
from specjax.eval.choice import PLAIN, Candidate, Paths, candidates, choose, expected
from specjax.eval.options import Tune as Config
from specjax.eval.plots import trees as plots
from specjax.trees import Static, Tree, WithoutReplacement, files
from specjax.trees.sequoia import sequoia as best_drawn

DEPTH = 5  # D at most of Sequoia's trees
MEASURED = 8  # prompts on which acceptance by rank is measured


class Filler(NamedTuple):
  """A head or a draft model, which fills trees with guesses.

  Attributes:
    name: where its weights come from.
    drafter: the drafter of a tree.
    params: its weights.
    hit_rates: f[D, R] held out, or None where they were not measured.
  """

  name: str
  drafter: Callable[[Paths], Drafter]
  params: Params
  hit_rates: Any


def _options(
  model: Model, filler: Filler, held_out: list[list[int]], config: Config
) -> tuple[list[Candidate], dict[str, Any]]:
  """The candidates, and the rates that they were made of."""
  if config.method == "best_first":
    hit_rates = np.asarray(filler.hit_rates)
    return candidates(hit_rates), {"hit_rates": hit_rates.tolist()}
  rates, rounds = sequoia.acceptance(model, filler.drafter, filler.params, held_out,
                                     config.max_new_tokens, config.temperature)  # fmt: skip
  options = candidates(np.tile(rates, (DEPTH, 1)), lambda nodes: best_drawn(rates, nodes, DEPTH))
  return options, {"acceptance": rates.tolist(), "rounds": rounds}


def _shape(config: Config, choices: Paths) -> Tree:
  """The tree of rank paths, whose children are drawn for "sequoia"."""
  drawn = config.method == "sequoia" and choices
  return WithoutReplacement(choices) if drawn else Static(choices)


def _filler(model: Model, config: Config) -> Filler:
  """The head or draft model with its weights, loaded once for all trees."""
  part = spec.parse_one("drafter", config.drafter)
  accepted = [*HEAD_NAMES, *(["draft_model"] if config.method == "sequoia" else [])]
  if not (is_head(part.name) or part.name in accepted) or part.numbers:
    raise ValueError(f"drafter={config.drafter!r} has no tree to choose: accepted are "
                     f"{', '.join(accepted)}, with [PATH] or not.")  # fmt: skip
  if part.name == "draft_model":
    small = load_small(model, part)
    return Filler(small.name, lambda paths: draft_tree(small.target, _shape(config, paths)),
                  small.params, None)  # fmt: skip
  name, loaded = load_head(model, part)
  if loaded.hit_rates is None and config.method == "best_first":
    raise ValueError(f"head={name!r} came without the hit rates by which trees are chosen: "
                     "specjax.train.heads measures and saves them.")  # fmt: skip
  return Filler(name, lambda paths: drafting.drafter(loaded.head, _shape(config, paths)),
                loaded.params, loaded.hit_rates)  # fmt: skip


def costs(
  model: Model, filler: Filler, options: Sequence[Candidate], context: int, batch: int
) -> tuple[list[float], list[float]]:
  """(the target's seconds, the drafter's) in a round of each candidate after `context` tokens."""
  drawn = [filler.drafter(c.tree) for c in options if c.tree]
  sizes = sorted({c.nodes for c in options})
  cost = verify.measure(model.target, model.params, context, batch=batch, nodes=sizes)
  passes = dict(zip(sizes, cost.seconds, strict=True))
  drafts = draft_cost.measure(model.target, model.params, drawn, filler.params, context,
                              batch=batch)  # fmt: skip
  # The time of a drafter's own `evaluate`, which replaces the target's, is in `drafts`.
  own = [False, *(d.evaluate is not None for d in drawn)]
  target = [0.0 if o else passes[c.nodes] for c, o in zip(options, own, strict=True)]
  return target, [0.0, *drafts]


def _decode(
  model: Model, filler: Filler, options: Sequence[Candidate], ids: list[list[int]], config: Config
) -> dict[str, dict[str, Any]]:
  """Measured figures of each candidate, all on the same prompts."""
  rule = "recursive" if config.method == "sequoia" else None
  decoders = {}
  for c in options:
    part = ((filler.drafter(c.tree), filler.params), rule) if c.tree else ()
    decoders[c.name] = Decoder(model, *part, temperature=config.temperature, batch=config.batch)
  runs = interleaved.decode(decoders, ids, config.max_new_tokens, config.repeats)
  plain = [r.tokens for r in runs[PLAIN].results]
  return {
    name: {
      "measured": metrics.tokens_per_second(
        sum(r.emitted for r in x.results), float(np.median(x.seconds, 0).sum())),
      **{f"measured_{key}": value for key, value in metrics.tau(x.results).items()},
      "differ": sum(r.tokens != tokens for r, tokens in zip(x.results, plain, strict=True)),
    }
    for name, x in runs.items()
  }  # fmt: skip


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Chooses a tree, and writes the summary with tree.json, table.md and tune.png.

  Raises:
    ValueError: the head is unknown or has no hit rates, the temperature does not go with the
      method, there are too few prompts, or one cannot be decoded.
  """
  report.check(config, "repeats")
  checks.whole("batch", config.batch, 1, checks.BATCH)
  checks.number("temperature", config.temperature, 0)
  if config.limit is not None:
    checks.whole("limit", config.limit, 1)
  sampled = config.method == "sequoia"
  if sampled != (config.temperature > 0):
    accepted = f"{'more than 0' if sampled else '0'} for method={config.method!r}"
    checks.refuse("temperature", config.temperature, accepted)
  if config.decode is not None:
    checks.whole("decode", config.decode)
  filler = _filler(model, config)
  held_out = MEASURED if sampled else 0
  limit = None if config.limit is None else config.limit + held_out
  ids = [x.ids for x in prompts.read(config.prompts, model, config.max_new_tokens, limit)]
  if len(ids) <= held_out:
    raise ValueError(f"prompts={config.prompts!r} has {len(ids)}: accepted are more than the "
                     f"{held_out} on which acceptance is measured.")  # fmt: skip
  directory = report.directory(out)

  options, about = _options(model, filler, ids[:held_out], config)
  ids = ids[held_out:]
  context = max(map(len, ids)) + config.max_new_tokens // 2
  target, draft = costs(model, filler, options, context, config.batch)
  seconds = np.add(target, draft).tolist()
  speeds = {c.name: expected(c, s, config.batch) for c, s in zip(options, seconds, strict=True)}
  chosen = choose(options, seconds, config.batch)
  promising = sorted(options[1:], key=lambda c: -speeds[c.name])[: config.decode]
  decoded = _decode(model, filler, [options[0], *promising], ids, config)
  figures = {
    c.name: {
      "nodes": c.nodes, "depth": max(map(len, c.tree), default=0), "choices": c.tree,
      "target_seconds": v, "draft_seconds": d, "tau": 1 + c.accepted, "expected": speeds[c.name],
      **decoded.get(c.name, {}),
    }
    for c, v, d in zip(options, target, draft, strict=True)
  }  # fmt: skip
  summary = report.summary(config, {
    "model": model.label, "parameters": optax.tree.size(model.params), "drafter": config.drafter,
    "head": filler.name, "prompts": len(ids), "context": context, **about, "candidates": figures,
    "chosen": chosen.name,
  })  # fmt: skip
  text = "\n\n".join([report.caption(summary), table.markdown(rows(summary)), verdict(summary)])
  report.save(directory, summary, text, {"tune": plots.choice(summary)})
  about = {  # what the tree was chosen for, and the tokens per second that it gave
    "drafter": config.drafter, "head": filler.name, "model": model.label, "method": config.method,
    "temperature": config.temperature, "batch": config.batch,
    "machine": {k: summary["machine"][k] for k in ("cpu", "cores", "device", "backend")},
    "expected": figures[chosen.name]["expected"],
    "measured": figures[chosen.name].get("measured"), "plain": figures[PLAIN]["measured"],
  }  # fmt: skip
  files.save(directory / "tree.json", _shape(config, chosen.tree), about)
  return summary


def rows(summary: Mapping[str, Any]) -> list[dict[str, object]]:
  """The table of a summary: expected and measured figures of each candidate."""
  return [
    {
      "draft": name, "target ms": f"{1e3 * f['target_seconds']:.2f}",
      "draft ms": f"{1e3 * f['draft_seconds']:.2f}", "expected tokens/forward": f"{f['tau']:.2f}",
      "measured":
        table.estimate(f["measured_tau"], f["measured_tau_interval"]) if "measured" in f else "",
      "expected tokens/s": f"{f['expected']:.0f}",
      "measured tokens/s": f"{f['measured']:.0f}" if "measured" in f else "",
      "differ": f"{f['differ']} of {summary['prompts']}" if "measured" in f else "",
    }
    for name, f in summary["candidates"].items()
  ]  # fmt: skip


def verdict(summary: Mapping[str, Any]) -> str:
  """The choice in a sentence, with the fastest candidate if that is another one."""
  figures, chosen = summary["candidates"], summary["chosen"]
  decoded = {k: f["measured"] for k, f in figures.items() if "measured" in f}
  said = f"chosen: {chosen}, {figures[chosen]['expected']:.0f} tokens/s expected"
  if chosen in decoded:
    ratio = decoded[chosen] / decoded[PLAIN]
    said += f", {decoded[chosen]:.0f} measured, {ratio:.2f} of plain decoding"
  fastest = max(decoded, key=lambda k: decoded[k])
  if fastest != chosen:
    said += f"; fastest as measured: {fastest}, {decoded[fastest]:.0f}"
  return said
