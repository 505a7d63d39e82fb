"""How far the answers of weights in few bits are those of the same file in float32.

    python benchmarks/claims/narrow_answers.py --model smollm2-135m --prompts spec_bench.jsonl

Every kind of weights answers the same questions greedily, to the full length. Two answers agree up
to their first other token, behind which they are texts of their own.
"""

import dataclasses
import sys

import numpy as np

import specjax
from specjax import checks, command_line
from specjax.eval import prompts, report, table

# How weights lie in memory, and what they multiply.
KINDS = {
  "native": ("native", "float"),
  "native/int8": ("native", "int8"),
  "int4": ("int4", "float"),
  "int4/int8": ("int4", "int8"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared."""

  kinds: tuple[str, ...] = ("native/int8", "int4", "int4/int8")
  batch: int = 12  # questions answered together
  limit: int | None = 12  # number of questions, at equal distances in the file
  max_new_tokens: int = 64
  out: str = "results/narrow_answers"


def answers(config: Config, weights: str, activations: str) -> np.ndarray:
  """i[questions, max_new_tokens]."""
  model = specjax.load(config.model, weights=weights, activations=activations)
  model = dataclasses.replace(model, stop=())  # all answers are of full length
  ids = sorted((item.ids for item in config.evenly(model)), key=len)
  decoder = specjax.Decoder(model, "none", batch=config.batch)
  return np.array([r.tokens for r in decoder(ids, config.max_new_tokens)])


def main(config: Config) -> None:
  report.check(config, "batch")
  for kind in config.kinds:
    checks.choice("kinds", kind, KINDS)
  wide = answers(config, "float", "float")
  equal = {
    kind: np.cumprod(answers(config, *KINDS[kind]) == wide, axis=1).sum(1) for kind in config.kinds
  }
  rows = [
    {
      "weights": kind,
      "whole answers equal": f"{(n == config.max_new_tokens).sum()} of {len(n)}",
      "share before another token": f"{n.mean() / config.max_new_tokens:.2f}",
    }
    for kind, n in equal.items()
  ]
  tokens = {kind: n.tolist() for kind, n in equal.items()}
  report.publish(config, {"equal": tokens}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
