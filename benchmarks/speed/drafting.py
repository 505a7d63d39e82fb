r"""What drafting and learning take in a round, as a share of a pass, and what a drafter keeps.

    python benchmarks/speed/drafting.py --model smollm2-135m --drafters token_recycling-8 history-8

A round here is one `propose` and one `update`, without the target, after a context of random
tokens. What a drafter keeps is its state for each text; its own weights, such as a datastore, are
shared by all texts. The target's cache and weights count for neither.
"""

import dataclasses
import functools
import sys
from typing import Any

import jax
import numpy as np

import specjax
from specjax import command_line
from specjax.base import Context, Drafter, Params
from specjax.eval import draft_cost, memory, report, table, verify_cost
from specjax.names.build.drafter import build_drafter
from specjax.names.load import DEFAULT_MODEL

FREE = ("prompt_lookup-8", "prompt_lookup-8,longest=8,shortest=2,per_match=2", "token_recycling-8",
        "history-8", "lookahead-4,window=5,guesses=5", "jacobi-8", "speculative_jacobi-8",
        "aggressive-8")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = DEFAULT_MODEL  # zoo name, directory, GGUF file, or name on the hub
  drafters: tuple[str, ...] = FREE  # names as in `specjax bench`; by default without training
  batches: tuple[int, ...] = (1, 8)  # B, texts decoded together
  context: int = 200  # cached tokens
  repeats: int = 7  # timings; their median counts
  out: str = "results/drafting"  # directory of the report


def kept(model: specjax.Model, drafter: Drafter, weights: Params, context: int) -> int:
  """Bytes of a drafter's state for one text that may grow to twice the context."""
  S = 2 * context

  def state(params, weights, tokens, length):
    cache, features = model.target.prefill(
      params, tokens, length, S, hidden_layers=drafter.hidden_layers
    )
    text = Context(tokens, length, cache)
    return drafter.init(weights, params, text, features, S)

  tokens, length = (jax.ShapeDtypeStruct(shape, np.int32) for shape in ((1, S), (1,)))
  return memory.size_of(jax.eval_shape(state, model.params, weights, tokens, length))


def main(config: Config) -> None:
  report.check(config, "context", "repeats")
  model = specjax.load(config.model, weights="float")
  built = {name: build_drafter(model, name)[1:] for name in config.drafters}
  report.directory(config.out)
  measure = functools.partial(draft_cost.measure, model.target, model.params)
  cells: list[dict[str, Any]] = []
  for batch in config.batches:
    (one,) = verify_cost.measure(
      model.target, model.params, config.context, batch=batch, nodes=(1,), repeats=config.repeats
    ).seconds
    for name, (drafter, weights) in built.items():
      (seconds,) = measure([drafter], weights, config.context, batch=batch, repeats=config.repeats)
      cells.append(
        {
          "drafter": name,
          "batch": batch,
          "seconds": seconds,
          "pass": one,
          "state": kept(model, drafter, weights, config.context),
          "weights": memory.size_of(weights),
        }
      )
  rows = [
    {
      "drafter": c["drafter"],
      "batch": c["batch"],
      "ms": f"{1e3 * c['seconds']:.2f}",
      "of a pass over one node": f"{100 * c['seconds'] / c['pass']:.1f} %",
      "kept for a text, MB": f"{c['state'] / 1e6:.2f}",
      "shared, MB": f"{c['weights'] / 1e6:.2f}",
    }
    for c in cells
  ]
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
