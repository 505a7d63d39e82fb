"""A whole curve in one call: accuracy by passes of twenty settings of a policy, one compilation.

    python benchmarks/sweep.py

Each question is decoded once per setting, as rows of the same batches: a policy's numbers are
traced, a row has its own. The best setting of each single question, which no one knows beforehand,
is the cross: what a policy that always chose well would reach.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure

from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.model import DEFAULT_DENOISER, load
from specjax.diffusion import denoise
from specjax.eval import parallelbench
from specjax.eval.environment import environment
from specjax.eval.plots import COLOURS, MARKERS

SETTINGS = {
  "threshold": np.linspace(0.05, 1.0, 20),
  "factor": np.geomspace(0.01, 4.0, 20),
  "entropy_bound": np.geomspace(0.001, 8.0, 20),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """What is swept.

  Attributes:
    model: a masked diffusion model, zoo name or directory.
    tasks: names of `lists.KNOWN`, a panel each.
    count: questions per task and length.
    max_new_tokens: slots per question, one block.
    batch: rows decoded together.
    out: directory of sweep.json and sweep.png.
  """

  model: str = DEFAULT_DENOISER
  tasks: tuple[str, ...] = ("copy", "sort", "replace_random", "shuffle")
  count: int = 4
  max_new_tokens: int = 16
  batch: int = 400
  out: str = "results/sweep"


def swept(model, name: str, values: np.ndarray, asked, config: Config) -> dict[str, Any]:
  """right bool[Q, S] and passes i32[Q, S] of Q questions and S settings."""
  decoder = DiffusionDecoder(model, name, blocks=config.max_new_tokens, batch=config.batch)
  ids = [model.chat(q.messages) for q in asked]
  prompts = [x for x in ids for _ in values]
  params = decoder.method.policy.knobs(jnp.tile(jnp.asarray(values, jnp.float32), len(asked)))
  # Every jitted function counts its compilations so, but jax has no public name for it.
  size: Callable[[], int] = denoise.compiled_advance._cache_size  # type: ignore[attr-defined]
  before, begin = size(), time.perf_counter()
  results = decoder(prompts, config.max_new_tokens, params=params)
  seconds = time.perf_counter() - begin
  shape = (len(asked), len(values))
  right = [asked[i // shape[1]].right(parallelbench.said(model, r)) for i, r in enumerate(results)]
  return {
    "right": np.array(right).reshape(shape),
    "passes": np.array([r.forwards for r in results]).reshape(shape),
    "compilations": size() - before,
    "seconds": seconds,
  }


def oracle(right: np.ndarray, passes: np.ndarray) -> tuple[float, float]:
  """Accuracy and passes where each question has the setting that suits it best."""
  fewest = np.where(right, passes, passes.max() + 1).min(1)
  some = right.any(1)
  return float(some.mean()), float(np.where(some, fewest, passes.min(1)).mean())


def picture(curves: dict[str, Any], tasks: np.ndarray, names: tuple[str, ...]) -> Figure:
  figure = Figure(figsize=(3.0 * len(names), 3.4), dpi=140, layout="constrained")
  for axes, task in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
    rows = tasks == task
    for i, (policy, c) in enumerate(curves.items()):
      right, passes = c["right"][rows], c["passes"][rows]
      style = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 4}
      axes.plot(passes.mean(0), 100 * right.mean(0), label=policy, lw=1.2, **style)
      accuracy, fewest = oracle(right, passes)
      axes.plot(fewest, 100 * accuracy, "x", color=COLOURS[i], markersize=9, mew=2)
    axes.set_title(task.replace("_", " "), loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(-4, 104)
    axes.set_xlim(0)
  figure.supxlabel("passes per question", fontsize=10)
  figure.supylabel("right answers, %", fontsize=10)
  handles, labels = figure.axes[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
  return figure


def main(config: Config) -> None:
  model = load(config.model)
  asked = parallelbench.questions(parallelbench.Config(tasks=config.tasks, count=config.count))
  tasks = np.array([q.task for q in asked])
  curves = {k: swept(model, k, values, asked, config) for k, values in SETTINGS.items()}
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  picture(curves, tasks, config.tasks).savefig(out / "sweep.png")
  report = {
    "config": dataclasses.asdict(config), "questions": len(asked), **environment(),
    "policies": {
      name: {
        "settings": SETTINGS[name].tolist(),
        "compilations": c["compilations"],
        "seconds": round(c["seconds"], 2),
        "tasks": {
          task: {
            "accuracy": c["right"][tasks == task].mean(0).tolist(),
            "passes": c["passes"][tasks == task].mean(0).tolist(),
            "oracle": oracle(c["right"][tasks == task], c["passes"][tasks == task]),
          }
          for task in config.tasks
        },
      }
      for name, c in curves.items()
    },
  }  # fmt: skip
  (out / "sweep.json").write_text(json.dumps(report, indent=2) + "\n")
  for name, c in curves.items():
    rows = len(asked) * len(SETTINGS[name])
    print(f"{name:14} {rows} rows in {c['seconds']:.1f} s, {c['compilations']} compilation")
  print(f"{out}: sweep.json, sweep.png")


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
