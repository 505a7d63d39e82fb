"""Accuracy by passes of twenty settings of a policy, in one call and one compilation.

    python benchmarks/speed/sweep.py

A policy's numbers are traced and each row has its own, so that a question is decoded with all
settings as rows of the same batches. A cross marks what a policy would reach that knew the best
setting of each question.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax import command_line
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion import denoise
from specjax.eval import parallelbench, report, table
from specjax.eval.plots import denoising
from specjax.names.load import DEFAULT_DENOISER, load

SETTINGS = {
  "threshold": np.linspace(0.05, 1.0, 20),
  "factor": np.geomspace(0.01, 4.0, 20),
  "entropy_bound": np.geomspace(0.001, 8.0, 20),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """What is swept."""

  model: str = DEFAULT_DENOISER  # a masked diffusion model, zoo name or directory
  # names of `lists.KNOWN`, a panel each
  tasks: tuple[str, ...] = ("copy", "sort", "replace_random", "shuffle")
  count: int = 4  # questions per task and length
  max_new_tokens: int = 16  # slots per question, which are one block
  batch: int = 400  # rows decoded together
  out: str = "results/sweep"  # directory of the report


def swept(model, name: str, values: np.ndarray, asked, config: Config) -> dict[str, Any]:
  """right bool[Q, S] and passes i32[Q, S] of Q questions and S settings."""
  decoder = DiffusionDecoder(model, name, blocks=config.max_new_tokens, batch=config.batch)
  ids = [model.chat(q.messages) for q in asked]
  prompts = [x for x in ids for _ in values]
  loop: Any = decoder.loop  # of a policy
  params = loop.method.policy.parameters(jnp.tile(jnp.asarray(values, jnp.float32), len(asked)))
  # Every jitted function has this counter of its compilations, but jax has no public name for it.
  size: Callable[[], int] = denoise.compiled_advance._cache_size  # type: ignore[attr-defined]
  before, begin = size(), time.perf_counter()
  results = decoder(prompts, config.max_new_tokens, params=params)
  seconds = time.perf_counter() - begin
  shape = (len(asked), len(values))
  right = [asked[i // shape[1]].right(parallelbench.said(model, r)) for i, r in enumerate(results)]
  return {
    "right": np.array(right).reshape(shape),
    "passes": np.array([r.passes for r in results]).reshape(shape),
    "compilations": size() - before, "seconds": seconds,
  }  # fmt: skip


def oracle(right: np.ndarray, passes: np.ndarray) -> tuple[float, float]:
  """Accuracy and passes with the best setting of each question."""
  fewest = np.where(right, passes, passes.max() + 1).min(1)
  some = right.any(1)
  return float(some.mean()), float(np.where(some, fewest, passes.min(1)).mean())


def main(config: Config) -> None:
  report.check(config, "count", "max_new_tokens", "batch")
  asked = parallelbench.questions(parallelbench.Config(tasks=config.tasks, count=config.count))
  model = load(config.model)
  report.directory(config.out)
  tasks = np.array([q.task for q in asked])
  found = {k: swept(model, k, values, asked, config) for k, values in SETTINGS.items()}
  curves: dict[str, dict[str, denoising.Curve]] = {}
  best: dict[str, dict[str, denoising.Curve]] = {}
  for task in config.tasks:
    for name, c in found.items():
      right, passes = c["right"][tasks == task], c["passes"][tasks == task]
      curves.setdefault(task, {})[name] = (passes.mean(0).tolist(), right.mean(0).tolist())
      accuracy, fewest = oracle(right, passes)
      best.setdefault(task, {})[name] = ([fewest], [accuracy])
  summary = {
    "questions": len(asked), "settings": {k: v.tolist() for k, v in SETTINGS.items()},
    **{key: {k: c[key] for k, c in found.items()} for key in ("compilations", "seconds")},
    "passes_and_accuracy": curves, "best_of_each_question": best,
  }  # fmt: skip
  rows = [
    {
      "policy": k,
      "rows": c["right"].size,
      "seconds": f"{c['seconds']:.1f}",
      "compilations": c["compilations"],
    }
    for k, c in found.items()
  ]
  picture = denoising.accuracy(curves, f"{model.name}, {len(asked)} questions", best)
  report.publish(config, summary, table.markdown(rows), {"sweep": picture})


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
