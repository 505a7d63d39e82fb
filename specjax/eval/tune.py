"""The draft that is fastest on the machine: the promising ones are found, then decoded in turns.

A drafter that is named with its numbers is one draft. One that is named without is tried with
several numbers of nodes; the draft-length policy `marginal` gets the costs of this device. Where it
is known how often a guess is right, drafts of all sizes are considered, and those are decoded that
expect the most tokens per second from times that are measured on this device (see `choice`):

- "best_first": by a head's held-out hit rates, by depth and rank. The trees hold its best guesses.
- "sequoia": by how often a child of each rank is accepted when children are drawn without
  replacement, measured here (`eval.sequoia`). The trees are those of Sequoia's dynamic program.

The times of a few sizes are measured and those between them estimated, as each compiles a program.
The estimate leaves out the rule and the bookkeeping of a round, about the same for every draft, and
rows of a batch that end early. What is fastest when decoded is chosen.

Letters: B batch, N tree nodes, D depth, R ranks.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import checks
from specjax.base import Drafter, Params
from specjax.decoding import spec
from specjax.decoding.builders.drafters import is_head, knobs, load_small
from specjax.decoding.builders.head import load_head
from specjax.decoding.decoder import Decoder
from specjax.decoding.model import Model
from specjax.decoding.spec import Part
from specjax.drafters import DRAFTERS, drafting
from specjax.drafters.draft_tree import draft_tree
from specjax.eval import bench, draft_cost, interleaved, options, prompts, report, sequoia, table
from specjax.eval import verify_cost as verify
from specjax.eval.choice import PLAIN, Candidate, Paths, candidates, drawn, expected, fitted, spread
from specjax.eval.length_cost import priced
from specjax.eval.options import Tune as Config
from specjax.eval.plots import speed, trees
from specjax.models.weights import count_parameters
from specjax.trees import Static, Tree, WithoutReplacement, files
from specjax.trees.sequoia import sequoia as best_drawn

DEPTH = 5  # D at most of Sequoia's trees
MEASURED = 8  # prompts on which acceptance by rank is measured
SIZES = (4, 8, 16)  # nodes of drafters about whose guesses nothing is known
PASSES = (1, 2, 4, 8, 16, 32, 64)  # nodes of which the target's time is measured


class Filler(NamedTuple):
  """A head or a draft model whose trees are chosen.

  Attributes:
    part: its name.
    drafter: the drafter of a tree, with the pseudo rows of each node or ().
    params: its weights.
    hit_rates: f[D, R] held out, or None where they were not measured.
    pseudo: whether it guesses in pseudo rows of the target's pass.
  """

  part: Part
  drafter: Callable[[Tree, tuple[int, ...]], Drafter]
  params: Params
  hit_rates: Any
  pseudo: bool = False


def _named(name: str) -> Part | None:
  """The part of a name that leaves the size open, or None."""
  parts = spec.parse("drafter", name) if len(spec.alternatives(name)) == 1 else ()
  (part,) = parts if len(parts) == 1 else (Part(PLAIN),)
  whole = part.numbers or part.decorations or not (is_head(part.name) or part.name in DRAFTERS)
  return None if whole or "nodes" not in knobs(part.name) else part


def _whole(name: str) -> list[str]:
  """The drafts of a drafter about whose guesses nothing is known."""
  part = _named(name)
  return [name] if part is None else [spec.show([part._replace(numbers=(n,))]) for n in SIZES]


def _filler(model: Model, part: Part, config: Config) -> Filler | None:
  """What fills trees whose worth can be told before they are decoded."""
  if config.method == "sequoia" and part.name == "draft_model":
    small = load_small(model, part)
    return Filler(part, lambda tree, _: draft_tree(small.target, tree), small.params, None)
  if not is_head(part.name):
    return None
  name, loaded = load_head(model, part)
  if loaded.hit_rates is None and config.method == "best_first":
    raise ValueError(f"head={name!r} came without the hit rates by which trees are chosen: "
                     "specjax.train.heads measures and saves them. A draft that is named whole, as "
                     f"{part.name}-8, is measured without them.")  # fmt: skip
  pseudo = loaded.head.pseudo is not None
  return Filler(part, lambda tree, guesses: drafting.drafter(loaded.head, tree, guesses or None),
                loaded.params, loaded.hit_rates, pseudo)  # fmt: skip


def _shape(config: Config, choices: Paths) -> Tree:
  """The tree of rank paths, whose children are drawn for "sequoia"."""
  return WithoutReplacement(choices) if config.method == "sequoia" else Static(choices)


def _options(
  model: Model, filler: Filler, held_out: list[list[int]], config: Config, out: pathlib.Path
) -> tuple[list[Candidate], dict[str, Any]]:
  """The drafts of a filler, and the rates that they were made of."""
  if config.method == "best_first":
    rates = np.asarray(filler.hit_rates)
    return candidates(filler.part, rates, filler.pseudo), {"hit_rates": rates.tolist()}
  rates, rounds = sequoia.acceptance(
    model, lambda paths: filler.drafter(WithoutReplacement(paths), ()), filler.params, held_out,
    config.max_new_tokens, config.temperature,
  )  # fmt: skip

  def name(tree: Paths) -> str:
    file = out / f"{filler.part.name}-{len(tree) + 1}-{max(map(len, tree))}.json"
    return spec.show([filler.part._replace(decorations=(Part("tree", (), str(file)),))])

  deep = np.tile(rates, (DEPTH, 1))
  options = drawn(name, deep, lambda nodes: best_drawn(rates, nodes, DEPTH))
  return options, {"acceptance": rates.tolist(), "rounds": rounds}


def costs(
  model: Model, filler: Filler, options: Sequence[Candidate], config: Config, context: int
) -> tuple[list[float], list[float]]:
  """(the target's seconds, the drafter's) in a round of each candidate after `context` tokens."""
  few = spread(options, 6 if filler.pseudo else 4)
  drafters = [filler.drafter(_shape(config, c.tree), c.guesses) for c in few]
  seconds = draft_cost.measure(model.target, model.params, drafters, filler.params, context,
                               batch=config.batch)  # fmt: skip
  drafts = fitted(few, seconds, options)
  if drafters[0].evaluate is not None:  # it replaces the target's, and is in `drafts`
    return [0.0] * len(options), drafts
  most = max(c.nodes for c in options)
  sizes = sorted({min(n, most) for n in PASSES})
  cost = verify.measure(model.target, model.params, context, batch=config.batch, nodes=sizes)
  return np.interp([c.nodes for c in options], sizes, cost.seconds).tolist(), drafts


def _considered(
  model: Model, name: str, held_out: list[list[int]], config: Config, context: int,
  out: pathlib.Path,
) -> tuple[dict[str, dict[str, Any]], list[str], dict[str, Any]]:  # fmt: skip
  """(figures of the drafts of a drafter by name, those to decode, the rates behind them)."""
  part = _named(name)
  filler = None if part is None else _filler(model, part, config)
  if filler is None:
    whole = [priced(model, each, context, config.batch) for each in _whole(name)]
    return {each: {} for each in whole}, whole, {}
  options, about = _options(model, filler, held_out, config, out)
  target, draft = costs(model, filler, options, config, context)
  figures: dict[str, dict[str, Any]] = {
    c.name: {
      "nodes": c.nodes, "depth": c.depth, "choices": c.tree, "target_seconds": v,
      "draft_seconds": d, "expected_tau": 1 + c.accepted,
      "expected": expected(c, v + d, config.batch),
    }
    for c, v, d in zip(options, target, draft, strict=True)
  }  # fmt: skip
  promising = sorted(figures, key=lambda k: -figures[k]["expected"])[: config.decode]
  if config.method == "sequoia":
    for option in options:
      if option.name in promising:
        file = spec.parse("drafter", option.name)[0].decorations[0].text
        files.save(str(file), _shape(config, option.tree), {"drafter": name})
  return figures, promising, about


def _decode(
  model: Model, names: Sequence[str], items: Sequence[prompts.Item], config: Config
) -> dict[str, dict[str, Any]]:
  """Measured figures of each draft, all on the same prompts; see `bench.figures`."""
  decoders = {
    name: Decoder(model, name, temperature=config.temperature, batch=config.batch)
    for name in names
  }  # fmt: skip
  ids = [item.ids for item in items]
  runs = interleaved.decode(decoders, ids, config.max_new_tokens, config.repeats)
  return {k: bench.figures(run, runs[PLAIN], items, config) for k, run in runs.items()}


def _check(config: Config) -> None:
  report.check(config, "repeats")
  checks.whole("batch", config.batch, 1, checks.BATCH)
  checks.number("temperature", config.temperature, 0)
  if config.limit is not None:
    checks.whole("limit", config.limit, 1)
  if config.method == "sequoia" and not config.temperature:
    checks.refuse("temperature", config.temperature, "more than 0 for method='sequoia'")
  if config.decode is not None:
    checks.whole("decode", config.decode, 1)
  names = config.drafters
  if not names or len(set(names)) < len(names) or PLAIN in names:
    checks.refuse("drafters", " ".join(names), "one or more, each once; none is always there")


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Chooses a draft, and writes the summary with table.md, the plots and its tree as tree.json.

  Raises:
    ValueError: a drafter is unknown or there twice, a head has no hit rates, the temperature does
      not go with the method, there are too few prompts, or one cannot be decoded.
  """
  _check(config)
  for name in config.drafters:
    part = _named(name)
    if part is None or _filler(model, part, config) is None:
      if config.method == "sequoia":
        raise ValueError(f"drafter={name!r}: accepted for method='sequoia' are heads and "
                         "draft_model, without numbers.")  # fmt: skip
      Decoder(model, _whole(name)[0], temperature=config.temperature)  # it refuses what cannot be
  held_out = MEASURED if config.method == "sequoia" else 0
  limit = None if config.limit is None else config.limit + held_out
  items = prompts.read(config.prompts, model, config.max_new_tokens, limit)
  if len(items) <= held_out:
    raise ValueError(f"prompts={config.prompts!r} has {len(items)}: accepted are more than the "
                     f"{held_out} on which acceptance is measured.")  # fmt: skip
  directory = report.directory(out)

  before, items = [item.ids for item in items[:held_out]], items[held_out:]
  context = max(len(item.ids) for item in items) + config.max_new_tokens // 2
  figures: dict[str, dict[str, Any]] = {PLAIN: {"drafter": PLAIN}}
  names, rates = [PLAIN], {}
  for name in config.drafters:
    found, promising, rates[name] = _considered(model, name, before, config, context, directory)
    figures |= {k: {"drafter": name, **f} for k, f in found.items()}
    names += promising
  for name, measured in _decode(model, names, items, config).items():
    figures[name] |= measured | {"drafter": figures[name]["drafter"]}
  chosen = max(names, key=lambda k: figures[k]["tokens_per_second"])
  summary = report.summary(config, {
    "model": model.label, "parameters": count_parameters(model.params), "prompts": len(items),
    "context": context, "rates": rates, "candidates": figures, "chosen": chosen,
  })  # fmt: skip
  text = "\n\n".join([report.caption(summary), table.markdown(rows(summary)), verdict(summary)])
  decoded = {k: figures[k] for k in names}
  pictures = {"speedup": speed.speed_up(summary | {"methods": decoded})}
  if any(rates.values()):
    pictures["tune"] = trees.choice(summary)
  report.save(directory, summary, text, pictures)
  if "choices" in figures[chosen]:
    about = {  # what the tree was chosen for, and the tokens per second that it gave
      "drafter": chosen, "model": model.label, "temperature": config.temperature,
      "batch": config.batch, "machine": summary["machine"],
      "plain": figures[PLAIN]["tokens_per_second"],
      "measured": figures[chosen]["tokens_per_second"],
    }  # fmt: skip
    files.save(directory / "tree.json", _shape(config, figures[chosen]["choices"]), about)
  return summary


def tuned(model: Model, config: options.Bench, out: pathlib.Path) -> options.Bench:
  """A benchmark whose drafters, where they leave their size open, are chosen on our questions.

  What was tried is written below `out`, a directory for each such drafter.
  """
  chosen = []
  for name in config.drafters:
    part = _named(name)
    if part is not None:
      own = Config(drafters=(name,), limit=6, max_new_tokens=64, batch=config.batch,
                   temperature=config.temperature, repeats=1)  # fmt: skip
      name = run(model, own, out / f"tune-{part.name}")["chosen"]
    chosen.append(name)
  return dataclasses.replace(config, drafters=tuple(x for x in chosen if x != PLAIN))


def rows(summary: Mapping[str, Any]) -> list[dict[str, object]]:
  """The table of a summary: expected and measured figures of each draft."""

  def shown(f: Mapping[str, Any], key: str, digits: int, unit: float = 1) -> str:
    return f"{unit * f[key]:.{digits}f}" if key in f else ""

  def estimate(f: Mapping[str, Any], key: str) -> str:
    interval = f.get(f"{key}_interval") if f["drafter"] != PLAIN else None
    return table.estimate(f[key], interval) if key in f else ""

  return [
    {
      "draft": name, "tokens/s": shown(f, "tokens_per_second", 0),
      "speed-up": estimate(f, "speed_up"), "tokens/forward": estimate(f, "tau"),
      "differ": f"{len(f['divergences'])} of {summary['prompts']}" if "divergences" in f else "",
      "expected tokens/s": shown(f, "expected", 0),
      "expected tokens/forward": shown(f, "expected_tau", 2),
      "target ms": shown(f, "target_seconds", 2, 1e3),
      "draft ms": shown(f, "draft_seconds", 2, 1e3),
    }
    for name, f in summary["candidates"].items()
  ]  # fmt: skip


def verdict(summary: Mapping[str, Any]) -> str:
  """The choice in a sentence, as it is typed."""
  chosen = summary["chosen"]
  f = summary["candidates"][chosen]
  return (f'chosen: --drafter "{chosen}", {f["tokens_per_second"]:.0f} tokens/s, '
          f"{f['speed_up']:.2f} of plain decoding")  # fmt: skip
