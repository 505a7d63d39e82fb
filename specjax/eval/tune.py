"""The draft that is fastest on the machine: the promising ones are found, then decoded in turns.

A drafter that is named with its numbers is one draft. One that is named without is tried with
several numbers of nodes; the draft-length policy `marginal` gets the costs of this device. Of a
head whose hit rates are known trees of all sizes are considered, and above temperature 0 drawn ones
as well, of draft models too; `fillers` says which of them are decoded. What is fastest when decoded
is chosen.

Letters: B batch, N tree nodes.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specjax import checks
from specjax.decoding.decoder import Decoder
from specjax.drafters import DRAFTERS
from specjax.eval import bench, fillers, interleaved, options, prompts, report, table
from specjax.eval.choice import PLAIN
from specjax.eval.fillers import SHAPES, Filler
from specjax.eval.length_cost import priced
from specjax.eval.options import Tune as Config
from specjax.eval.plots import speed, trees
from specjax.models.weights import count_parameters
from specjax.names import grammar
from specjax.names.build.drafters import is_head, parameters
from specjax.names.grammar import Part
from specjax.names.load import Model
from specjax.trees import files

MEASURED = 8  # prompts on which acceptance by rank is measured
SIZES = (4, 8, 16)  # nodes of drafters about whose guesses nothing is known
TURNS = 6  # in which each draft is timed; other work on the machine may disturb one or two


def unsized(name: str) -> Part | None:
  """The part of a name that leaves the size open, or None."""
  parts = grammar.parse("drafter", name) if len(grammar.alternatives(name)) == 1 else ()
  (part,) = parts if len(parts) == 1 else (Part(PLAIN),)
  whole = part.numbers or part.decorations or not (is_head(part.name) or part.name in DRAFTERS)
  return None if whole or "nodes" not in parameters(part.name) else part


def _whole(name: str) -> list[str]:
  """The drafts of a drafter about whose guesses nothing is known."""
  part = unsized(name)
  return [name] if part is None else [grammar.show([part._replace(numbers=(n,))]) for n in SIZES]


class _Asked(NamedTuple):
  """A drafter: what fills its trees, by the methods that make them, and drafts named whole."""

  fillers: dict[str, Filler]
  whole: list[str]


def _asked(model: Model, name: str, config: Config) -> _Asked:
  """Loads a drafter; ValueError for one that cannot be decoded, or not by the method."""
  part = unsized(name)
  filler = None if part is None else fillers.filler(model, part)
  both = ("best_first", "sequoia") if config.temperature else ("best_first",)
  wanted = (config.method,) if config.method in SHAPES else both
  found = {
    m: filler
    for m in wanted
    if filler is not None and (filler.deepest if m == "sequoia" else filler.hit_rates is not None)
  }
  if config.method == "sequoia" and not found:
    raise ValueError(
      "`drafter` must be a head or draft_model, without numbers, for method='sequoia', got "
      f"{name!r}."
    )
  whole = _whole(name) if "best_first" in {*wanted} - {*found} else []
  for each in whole[:1]:
    Decoder(model, each, temperature=config.temperature)
  return _Asked(found, whole)


def _considered(
  model: Model,
  asked: _Asked,
  held_out: list[list[int]],
  config: Config,
  context: int,
  out: pathlib.Path,
) -> fillers.Found:
  """The drafts of a drafter, those of them to decode, and the rates behind them."""
  promising = [priced(model, each, context, config.batch) for each in asked.whole]
  figures: dict[str, dict[str, Any]] = {each: {} for each in promising}
  rates: dict[str, Any] = {}
  for method, filler in asked.fillers.items():
    found = fillers.promising(model, filler, method, held_out, config, context, out)
    figures |= found.figures
    promising += found.promising
    rates |= found.rates
  return fillers.Found(figures, promising, rates)


def _decode(
  model: Model, names: Sequence[str], items: Sequence[prompts.Item], config: Config
) -> dict[str, dict[str, Any]]:
  """Measured figures of each draft, all on the same prompts; see `bench.figures`."""
  decoders = {
    name: Decoder(model, name, temperature=config.temperature, batch=config.batch) for name in names
  }
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
    checks.refuse("temperature", config.temperature, "above 0 for method='sequoia'")
  if config.decode is not None:
    checks.whole("decode", config.decode, 1)
  names = config.drafters
  if not names or len(set(names)) < len(names) or PLAIN in names:
    checks.refuse(
      "drafters", " ".join(names), "one or more names, each once (none is always there)"
    )


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Chooses a draft, and writes the summary with table.md, the plots and its tree as tree.json.

  Raises:
    ValueError: a drafter is unknown or there twice, the temperature does not go with the method,
      there are too few prompts, or one cannot be decoded.
  """
  _check(config)
  every = {name: _asked(model, name, config) for name in config.drafters}
  held_out = MEASURED if any("sequoia" in asked.fillers for asked in every.values()) else 0
  limit = None if config.limit is None else config.limit + held_out
  items = prompts.read(config.prompts, model, config.max_new_tokens, limit)
  if len(items) <= held_out:
    raise ValueError(
      f"`prompts` must hold more than the {held_out} questions on which acceptance is measured, "
      f"got {len(items)} in {config.prompts!r}; --method best_first needs no held-out questions."
    )
  directory = report.directory(out)

  before, items = [item.ids for item in items[:held_out]], items[held_out:]
  context = max(len(item.ids) for item in items) + config.max_new_tokens // 2
  figures: dict[str, dict[str, Any]] = {PLAIN: {"drafter": PLAIN}}
  names, rates = [PLAIN], {}
  for name, asked in every.items():
    found = _considered(model, asked, before, config, context, directory)
    figures |= {k: {"drafter": name, **f} for k, f in found.figures.items()}
    names += found.promising
    rates[name] = found.rates
  for name, measured in _decode(model, names, items, config).items():
    figures[name] |= measured | {"drafter": figures[name]["drafter"]}
  chosen = max(names, key=lambda k: figures[k]["tokens_per_second"])
  summary = report.summary(
    config,
    {
      "model": model.label,
      "parameters": count_parameters(model.params),
      "prompts": len(items),
      "context": context,
      "rates": rates,
      "candidates": figures,
      "chosen": chosen,
    },
  )
  text = "\n\n".join([report.caption(summary), table.markdown(rows(summary)), verdict(summary)])
  decoded = {k: figures[k] for k in names}
  pictures = {"speedup": speed.speed_up(summary | {"methods": decoded})}
  if any(rates.values()):
    pictures["tune"] = trees.choice(summary)
  report.save(directory, summary, text, pictures)
  if "choices" in figures[chosen]:
    shape = SHAPES[figures[chosen]["method"]]
    about = {  # what the tree was chosen for, and the tokens per second that it gave
      "drafter": chosen, "model": model.label, "temperature": config.temperature,
      "batch": config.batch, "machine": summary["machine"],
      "plain": figures[PLAIN]["tokens_per_second"],
      "measured": figures[chosen]["tokens_per_second"],
    }  # fmt: skip
    files.save(directory / "tree.json", shape(figures[chosen]["choices"]), about)
  return summary


def repeats(prompts: int, batch: int) -> int:
  """How often so many prompts are decoded for TURNS turns of each draft."""
  return -(-TURNS // -(-prompts // batch))


def tuned(model: Model, config: options.Bench, out: pathlib.Path) -> options.Bench:
  """A benchmark whose drafters, where they leave their size open, are chosen on our questions.

  What was tried is written below `out`, a directory for each such drafter.
  """
  chosen = []
  for name in config.drafters:
    part = unsized(name)
    if part is not None:
      own = Config(
        drafters=(name,),
        limit=6,
        max_new_tokens=64,
        batch=config.batch,
        temperature=config.temperature,
        repeats=repeats(6, config.batch),
      )
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
      "draft": name,
      "tokens/s": shown(f, "tokens_per_second", 0),
      "speed-up": estimate(f, "speed_up"),
      "tokens/pass": estimate(f, "tau"),
      "differ": f"{len(f['divergences'])} of {summary['prompts']}" if "divergences" in f else "",
      "expected tokens/s": shown(f, "expected", 0),
      "expected tokens/pass": shown(f, "expected_tau", 2),
      "target ms": shown(f, "target_seconds", 2, 1e3),
      "draft ms": shown(f, "draft_seconds", 2, 1e3),
    }
    for name, f in summary["candidates"].items()
  ]


def verdict(summary: Mapping[str, Any]) -> str:
  """The choice in a sentence, as it is typed."""
  chosen = summary["chosen"]
  f = summary["candidates"][chosen]
  return (
    f'chosen: --drafter "{chosen}", {f["tokens_per_second"]:.0f} tokens/s, '
    f"{f['speed_up']:.2f} of plain decoding"
  )
