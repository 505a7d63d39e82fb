"""The benchmark: every method decodes the same prompts in turns with plain decoding."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from specjax.data import resume
from specjax.decoding.decoder import Decoder
from specjax.eval import interleaved, metrics, optimal, report, table
from specjax.eval.divergence import divergences
from specjax.eval.interleaved import Runs
from specjax.eval.options import Bench as Config
from specjax.eval.options import Tune
from specjax.eval.plots import speed, trees
from specjax.eval.prompts import Item, read
from specjax.eval.verify_cost import measure
from specjax.models.weights import count_parameters
from specjax.names.load import Model

PLAIN = "none"
MODELS = ("draft_model", "adaptive_model", "draft_tree")
ROUNDS = 300  # at most, whose roots are compared with alpha*
FOOTNOTE = (
  "differ: prompts whose ids differ from those of plain decoding, as they may where a rule keeps "
  "only the distribution or is LOSSY; largest margin: that of the two best logits where greedy "
  "ids first differ; of alpha*: how often a child of the root is accepted, over how often the best "
  "exact rule would accept one."
)


def make_decoder(model: Model, name: str, config: Config) -> Decoder:
  """The decoder of a name in `Config.drafters`; plain decoding has its own verifier."""
  return Decoder(
    model,
    name,
    None if name == PLAIN else config.verifier,
    temperature=config.temperature,
    seed=config.seed,
    batch=config.batch,
    stop=config.stop,
    stop_words=config.stop_words,
  )


def make_decoders(model: Model, config: Config) -> dict[str, Decoder]:
  """Plain decoding and `config.drafters` by name; ValueError where a method is there twice."""
  labels = [PLAIN, *(x for x in config.drafters if x != PLAIN)]
  made = (make_decoder(model, label, config) for label in labels)
  decoders = {decoder.name: decoder for decoder in made}
  if len(decoders) < len(labels):
    raise ValueError(f"`drafters` must name each method once, got {' '.join(config.drafters)}.")
  return decoders


def figures(run: Runs, plain: Runs, items: Sequence[Item], config: Config | Tune) -> dict[str, Any]:
  """The metrics of one method, ready for JSON."""
  decoder, results = run.decoder, run.results
  drafter, verifier = decoder.method.drafter, decoder.method.verifier
  passes = [r.passes for r in results]
  block = metrics.tau(results)
  batches = [slice(i, i + config.batch) for i in range(0, len(results), config.batch)]

  def totals(x: Runs, prefill: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, seconds) of each batch."""
    tokens = np.array([sum(r.emitted for r in x.results[batch]) for batch in batches])
    return tokens, np.median(x.seconds + prefill * x.prefill, 0)

  tokens, seconds = totals(run)
  paired = (tokens, seconds, *totals(plain))
  with_prefill = (*totals(run, True), *totals(plain, True))
  rounds = sum(max(passes[batch]) for batch in batches)
  # A model drafts in one pass per level and one more that caches the last. A head counts as one
  # pass, which is too few where it reads the same weights at every depth (EAGLE, ReDrafter).
  accepted, offered = ([getattr(r.rounds, k) for r in results] for k in ("accepted", "offered"))
  deep = np.sum(offered, 0)
  length = float(deep @ np.arange(len(deep)) / max(deep.sum(), 1))
  draft_passes = length + 1 if drafter.name in MODELS else 1.0
  cost = count_parameters(decoder.weights.drafter) / count_parameters(decoder.weights.target)
  rates = metrics.tokens_per_second(tokens.sum(), run.seconds.sum(1))
  plain_rates = metrics.tokens_per_second(paired[2].sum(), plain.seconds.sum(1))
  must_equal = not run.lossy and (config.temperature == 0 or verifier.name == "target_only")
  return {
    "drafter": drafter.name, "nodes": drafter.nodes, "depth": drafter.depth,
    "verifier": verifier.name, "exactness": verifier.exactness, "lossy": run.lossy, **block,
    "acceptance_by_depth": metrics.acceptance_by_depth(accepted, offered),
    "tried_by_depth": metrics.tried_by_depth(accepted, offered),
    "speed_up": float(metrics.speed_up(*(x.sum() for x in paired))),
    "speed_up_interval": metrics.bootstrap_interval(metrics.speed_up, *paired),
    "speed_up_repeats": (rates / plain_rates).tolist(),
    "speed_up_with_prefill": float(metrics.speed_up(*(x.sum() for x in with_prefill))),
    "mbsu": float(metrics.mbsu(block["tau"], cost, draft_passes)),
    "draft_cost": cost, "draft_passes": draft_passes, "tokens": int(tokens.sum()),
    "passes": sum(passes), "seconds": float(seconds.sum()),
    "prefill_seconds": float(np.median(run.prefill, 0).sum()),
    "tokens_per_second": float(metrics.tokens_per_second(tokens.sum(), seconds.sum())),
    "tokens_per_second_repeats": rates.tolist(),
    "ms_per_round": float(1e3 * seconds.sum() / rounds),
    "must_equal_plain": must_equal, "unstable_batches": run.unstable,
    "divergences": divergences(decoder.model, [item.ids for item in items], results, plain.results,
                               config.temperature == 0),
  }  # fmt: skip


def shortfall(
  model: Model, label: str, run: Runs, items: Sequence[Item], config: Config
) -> dict[str, float] | None:
  """How often a child of the root is accepted and how often it could be; see `eval.optimal`.

  None for greedy decoding and lossy verifiers, for proposals without a closed form, and for
  DySpec's trees, whose number of siblings depends on what was drawn.
  """
  known = run.decoder.method.drafter.proposal in optimal.KNOWN and "/dyspec" not in label
  if label == PLAIN or config.temperature == 0 or run.lossy or not known:
    return None
  alone = make_decoder(model, label, dataclasses.replace(config, batch=1))
  ids = [item.ids for item in items]
  return optimal.measure(alone, ids, config.max_new_tokens, ROUNDS)


def _records(runs: dict[str, Runs], items: Sequence[Item], batch: int) -> Iterator[dict[str, Any]]:
  """What each method decoded for each prompt. Times are those of the prompt's batch."""
  for label, run in runs.items():
    for i, (item, result) in enumerate(zip(items, run.results, strict=True)):
      yield {
        "method": label,
        "prompt": i,
        "category": item.category,
        "prompt_tokens": len(item.ids),
        "tokens": result.tokens,
        "emitted": result.emitted,
        "passes": result.passes,
        "verifier": result.verifier,
        "exactness": result.exactness,
        **dataclasses.asdict(result.rounds),
        "batch": i // batch,
        "seconds": float(np.median(run.seconds[:, i // batch])),
        "prefill_seconds": float(np.median(run.prefill[:, i // batch])),
      }


def rows(summary: dict[str, Any]) -> list[dict[str, object]]:
  """The table of a summary with 95% intervals, the most important columns first."""
  found = []
  for label, m in summary["methods"].items():
    plain = label == PLAIN
    margins = [d["margin"] for d in m["divergences"] if d["margin"] is not None]
    found.append(
      {
        "method": label + (" (LOSSY)" if m["lossy"] else ""),
        "tokens/pass": table.estimate(m["tau"], None if plain else m["tau_interval"]),
        "speed-up": table.estimate(m["speed_up"], None if plain else m["speed_up_interval"]),
        "tokens/s": f"{m['tokens_per_second']:.0f}",
        "differ": "" if plain else f"{len(m['divergences'])} of {summary['prompts']}",
        "verifier": f"{m['verifier']}, {m['exactness']}",
        "nodes": m["nodes"],
        "with prefill": f"{m['speed_up_with_prefill']:.2f}",
        "ms/round": f"{m['ms_per_round']:.2f}",
        "MBSU": f"{m['mbsu']:.2f}",
        "largest margin": f"{max(margins):.1e}" if margins else "",
        "of alpha*": f"{100 * m['first']['reached']:.0f} %" if m["first"] else "",
      }
    )
  return found


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Measures, and writes the summary with results.jsonl, table.md and three plots.

  Until that is written, each batch is kept when it has been decoded, and a run that was killed goes
  on with the next.

  Raises:
    ValueError: a number is below 1, a prompt cannot be decoded, or a method is unknown or given
      twice. This is known before anything is decoded.
  """
  report.check(config, "repeats")
  items = read(config.prompts, model, config.max_new_tokens, config.limit)
  decoders = make_decoders(model, config)
  directory = report.directory(out)
  ids = [item.ids for item in items]
  weights = [x.weights.drafter for x in decoders.values()]
  with resume.unfinished(directory, interleaved.ingredients(model, config, ids, weights)) as place:
    runs = interleaved.decode(
      decoders, ids, config.max_new_tokens, config.repeats, place / "batches.jsonl"
    )
    methods = {
      k: figures(x, runs[PLAIN], items, config) | {"first": shortfall(model, k, x, items, config)}
      for k, x in runs.items()
    }
    summary = report.summary(
      config,
      {
        "model": model.label,
        "network": dataclasses.asdict(model.config),
        "parameters": count_parameters(model.params),
        "prompts": len(items),
        "methods": methods,
      },
    )
    texts = [report.caption(summary), table.markdown(rows(summary)), FOOTNOTE]
    plots = {"speedup": speed.speed_up(summary), "acceptance": trees.acceptance(summary)}
    if config.verify_cost:
      context = min(model.config.max_length // 2, 512)
      cost = measure(model.target, model.params, context, batch=config.batch)
      summary["verify_cost"] = cost._asdict()
      texts.append(cost.markdown)
      plots["verify_cost"] = trees.verify_cost(summary)
    records = _records(runs, items, config.batch)
    report.save(directory, summary, "\n\n".join(texts), plots, records)
  return summary
