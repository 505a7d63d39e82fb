"""The benchmark: every method decodes the same prompts, in interleaved, beside plain decoding.

See `interleaved` for how they are timed.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax.decoding.decoder import Decoder
from specjax.decoding.model import Model
from specjax.eval import interleaved, metrics, optimal, plots, report
from specjax.eval.divergence import margin
from specjax.eval.environment import environment
from specjax.eval.interleaved import Runs
from specjax.eval.prompts import OUR_QUESTIONS, Item, of_questions, read
from specjax.eval.verify_cost import measure

PLAIN = "none"
MODELS = ("draft_model", "adaptive_model", "draft_tree")
ROUNDS = 300  # whose root is compared with alpha*


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured.

  Attributes:
    drafters: names such as "medusa-16" or "eagle/dynamic-16-5-4", see `decoding.spec`. Plain
      decoding is always there.
    prompts: JSONL file or tfds:NAME:SPLIT; None for our own questions.
    limit: how many prompts; None for all.
    max_new_tokens: budget per prompt.
    batch: B, prompts decoded together.
    temperature: 0 is greedy.
    seed: of the noise.
    verifier: of all methods but plain; by default the exact one.
    repeats: times everything is decoded.
  """

  drafters: tuple[str, ...] = ("prompt_lookup", "medusa")
  prompts: str | None = None
  limit: int | None = None
  max_new_tokens: int = 128
  batch: int = 1
  temperature: float = 0.0
  seed: int = 0
  verifier: str | None = None
  repeats: int = 3


def make_decoder(model: Model, name: str, config: Config) -> Decoder:
  """The method of a name of `Config.drafters`; plain decoding has its own rule.

  Raises:
    ValueError: a name of none.
  """
  return Decoder(
    model, name, None if name == PLAIN else config.verifier,
    temperature=config.temperature, seed=config.seed, batch=config.batch,
  )  # fmt: skip


def read_items(model: Model, config: Config) -> list[Item]:
  """The prompts, with all numbers of the config that concern them checked.

  Raises:
    ValueError: a number below 1 or a prompt that cannot be decoded.
  """
  for name in ("repeats", "limit", "max_new_tokens"):
    value = getattr(config, name)
    if value is not None and value < 1:
      raise ValueError(f"{name}={value}: accepted is 1 or more.")
  if config.prompts is None:
    return of_questions(OUR_QUESTIONS[: config.limit], model, config.max_new_tokens)
  return read(config.prompts, model, config.max_new_tokens, config.limit)


def _divergences(
  run: Runs, plain: Runs, items: Sequence[Item], config: Config
) -> list[dict[str, Any]]:
  """Prompts whose ids differ from plain's: where first, and how near the choice was (greedy)."""
  found = []
  for i, (result, reference) in enumerate(zip(run.results, plain.results, strict=True)):
    index = metrics.first_divergence(result.tokens, reference.tokens)
    if index is None:
      continue
    prefix = items[i].ids + reference.tokens[:index]
    gap = margin(run.decoder.model, prefix) if config.temperature == 0 else None
    found.append({"prompt": i, "index": index, "margin": gap})
  return found


def parameters(params: Any) -> int:
  """How many numbers a pytree of weights has."""
  return sum(x.size for x in jax.tree.leaves(params))


def figures(run: Runs, plain: Runs, items: Sequence[Item], config: Config) -> dict[str, Any]:
  """The metrics of one method, ready for JSON."""
  decoder, results = run.decoder, run.results
  drafter, verifier = decoder.method.drafter, decoder.method.verifier
  emitted = np.array([r.emitted for r in results])
  forwards = np.array([r.forwards for r in results])

  def totals(x: Runs, prefill: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, seconds) of each batch."""
    counts = [r.emitted for r in x.results]
    batches = range(0, len(counts), config.batch)
    tokens = np.array([sum(counts[i : i + config.batch]) for i in batches])
    return tokens, np.median(x.seconds + prefill * x.prefill, 0)

  tokens, seconds = totals(run)
  paired = (tokens, seconds, *totals(plain))
  with_prefill = (*totals(run, True), *totals(plain, True))
  rounds = sum(max(forwards[i : i + config.batch]) for i in range(0, len(results), config.batch))
  tau = float(metrics.block_efficiency(emitted.sum(), forwards.sum()))
  # A model drafts in one pass per level and one more that caches the last. Heads count once, which
  # flatters those that read the same weights at every depth (EAGLE, ReDrafter).
  offered = np.sum([r.rounds.offered for r in results], 0)
  length = float(offered @ np.arange(len(offered)) / max(offered.sum(), 1))
  passes = length + 1 if drafter.name in MODELS else 1.0
  cost = parameters(decoder.weights.drafter) / parameters(decoder.weights.target)
  rates = metrics.tokens_per_second(tokens.sum(), run.seconds.sum(1))
  plain_rates = metrics.tokens_per_second(paired[2].sum(), plain.seconds.sum(1))
  must_equal = not run.lossy and (config.temperature == 0 or verifier.name == "target_only")
  return {
    "drafter": drafter.name,
    "nodes": drafter.nodes,
    "depth": drafter.depth,
    "verifier": verifier.name,
    "exactness": verifier.exactness,
    "lossy": run.lossy,
    "tau": tau,
    "tau_interval": metrics.bootstrap_interval(metrics.block_efficiency, emitted, forwards),
    "acceptance_by_depth": metrics.acceptance_by_depth(
      [r.rounds.accepted for r in results], [r.rounds.offered for r in results]
    ),
    "speed_up": float(metrics.speed_up(*(x.sum() for x in paired))),
    "speed_up_interval": metrics.bootstrap_interval(metrics.speed_up, *paired),
    "speed_up_repeats": (rates / plain_rates).tolist(),
    "speed_up_with_prefill": float(metrics.speed_up(*(x.sum() for x in with_prefill))),
    "mbsu": float(metrics.mbsu(tau, cost, passes)),
    "draft_cost": cost,
    "draft_passes": passes,
    "tokens": int(tokens.sum()),
    "forwards": int(forwards.sum()),
    "seconds": float(seconds.sum()),
    "prefill_seconds": float(np.median(run.prefill, 0).sum()),
    "tokens_per_second": float(metrics.tokens_per_second(tokens.sum(), seconds.sum())),
    "tokens_per_second_repeats": rates.tolist(),
    "ms_per_round": float(1e3 * seconds.sum() / rounds),
    "must_equal_plain": must_equal,
    "divergences": _divergences(run, plain, items, config),
    "unstable_batches": run.unstable,
  }


def shortfall(
  model: Model, label: str, run: Runs, items: Sequence[Item], config: Config
) -> dict[str, float] | None:
  """How often a first token was accepted, and how often it could have been; see `eval.optimal`.

  None where that says nothing (greedy, or a lossy rule) or is not known: proposals without a closed
  form, and DySpec's trees, whose number of siblings depends on what was drawn.
  """
  known = run.decoder.method.drafter.proposal in optimal.KNOWN and "/dyspec" not in label
  if label == PLAIN or config.temperature == 0 or run.lossy or not known:
    return None
  alone = make_decoder(model, label, dataclasses.replace(config, batch=1))
  seen = optimal.measure(alone, [item.ids for item in items], config.max_new_tokens, ROUNDS)
  return {"accepted": seen.accepted, "optimum": seen.optimum, "reached": seen.reached}


def _lines(label: str, run: Runs, items: Sequence[Item], config: Config):
  """One record per prompt. Times are those of the prompt's batch."""
  for i, result in enumerate(run.results):
    batch = i // config.batch
    yield {
      "method": label,
      "prompt": i,
      "category": items[i].category,
      "prompt_tokens": len(items[i].ids),
      "tokens": result.tokens,
      "emitted": result.emitted,
      "forwards": result.forwards,
      "accepted": result.rounds.accepted,
      "offered": result.rounds.offered,
      "verifier": result.verifier,
      "exactness": result.exactness,
      "batch": batch,
      "seconds": float(np.median(run.seconds[:, batch])),
      "prefill_seconds": float(np.median(run.prefill[:, batch])),
    }


def run(model: Model, config: Config, out: str | pathlib.Path) -> dict[str, Any]:
  """Measures, and writes results.jsonl, summary.json, table.md and three plots.

  Args:
    model: the target.
    config: what is measured.
    out: directory, made where it is absent.

  Returns:
    The summary: config, environment, figures of each method, verify cost.

  Raises:
    ValueError: a prompt that cannot be decoded, an unknown method, a method given twice; all
      before anything is decoded.
  """
  items = read_items(model, config)
  labels = [PLAIN, *(x for x in config.drafters if x != PLAIN)]
  made = (make_decoder(model, label, config) for label in labels)
  decoders = {decoder.name: decoder for decoder in made}
  if len(decoders) < len(labels):
    raise ValueError(f"drafters={' '.join(config.drafters)}: a method is there twice.")
  out = pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)

  runs = interleaved.decode(
    decoders, [item.ids for item in items], config.max_new_tokens, config.repeats
  )
  with (out / "results.jsonl").open("w") as file:
    for label, x in runs.items():
      file.writelines(json.dumps(line) + "\n" for line in _lines(label, x, items, config))
  cost = measure(
    model.target, model.params, min(model.config.max_length // 2, 512), batch=config.batch
  )
  summary = {
    "model": model.name,
    "network": dataclasses.asdict(model.config),
    "parameters": parameters(model.params),
    "config": dataclasses.asdict(config),
    "prompts": len(items),
    **environment(),
    "methods": {
      k: figures(x, runs[PLAIN], items, config) | {"first": shortfall(model, k, x, items, config)}
      for k, x in runs.items()
    },
    "verify_cost": cost._asdict() | {"relative": cost.relative},
  }
  (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
  (out / "table.md").write_text(report.markdown(summary))
  plots.write(summary, out)
  return summary
