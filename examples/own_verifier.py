"""Your own verifier with its proof, and a verifier with a mistake, which the proof detects.

    python examples/own_verifier.py

The proof enumerates every outcome of the shipped loop over a model whose distributions are a table,
and compares the distribution of its texts with the target's.
"""

import dataclasses
import sys

import numpy as np

from specjax import command_line
from specjax.base import PROPOSALS, Verifier
from specjax.decoding.method import method
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees.structure import match


def following(rows: str) -> Verifier:
  """Draws a token of the target's at every node, and follows the guesses that say the same."""

  def verify(params, draft, log_probs, features, noise, *, depth, proposal):
    seen = log_probs if rows == "own" else log_probs[:, :1].repeat(log_probs.shape[1], 1)
    return match(draft, noise.choose(seen, draft.depth), depth)

  return Verifier("following", "EXACT", PROPOSALS, "any", verify)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is proven."""

  temperature: float = 0.8  # of the sampling
  top_p: float = 0.9  # of the sampling


def main(config: Config) -> None:
  case = Case(
    np.asarray(random_table(0, 3)["logits"]), temperature=config.temperature, top_p=config.top_p
  )
  guesses = fixed_draft([[0], [1], [0, 0]], [2, 0, 1])  # two guesses, and one after the first
  for rows in ("own", "the root's"):
    proven = method(table_model(3), guesses, following(rows))
    far = total_variation(emitted_distribution(case, proven), target_distribution(case))
    word = "EXACT" if far < 1e-6 else "NOT EXACT"
    print(f"distributions of {rows} row: {far:.1e} from the target, {word}")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
