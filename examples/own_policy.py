"""Your own denoising policy: it commits the two slots with the largest lead of the best token.

python examples/own_policy.py --slots 4
"""

import dataclasses
import sys
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

import specjax
from specjax import command_line
from specjax.diffusion.base import Count, Policy, Prediction


class Slots(NamedTuple):
  """How many slots a pass commits, i32[B]."""

  count: Count = 2


def decided() -> Policy:
  """LOSSY: commits the slots with the largest distance between their two best tokens."""

  def select(params: Slots, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    distance = jnp.where(prediction.open, prediction.margin, -jnp.inf)
    rank = jnp.argsort(jnp.argsort(-distance, 1), 1)
    return prediction.open & (rank < params.count[:, None]), distance, memory

  return Policy("decided", lambda B, W, V: (), select, Slots)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is filled in."""

  question: str = "reverse : Ada Bob Kim Leo ="  # an operation on a list of names
  slots: int = 2  # that a pass commits


def main(config: Config) -> None:
  model = specjax.load("lists-3m")
  decoder = specjax.DiffusionDecoder(model, (decided(), Slots(config.slots)), blocks=16)
  (filled,) = decoder([model.chat(config.question)], 16)
  print(filled.text.strip())
  print(f"{filled.passes} passes for 16 slots")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
