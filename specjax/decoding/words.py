"""Policies, plans and rules of length in words: `threshold-0.9`, `local_leap-0.9-0.75-4`.

Letters: B batch.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.base import Params
from specjax.diffusion.base import Policy
from specjax.diffusion.policies import (
  POLICIES,
  Exploration,
  Filter,
  Leap,
  Levels,
  Redundancy,
  Stable,
  r2,
)


def _alone(value: jax.Array) -> jax.Array:
  return value


# The numbers of each policy and what holds them. As published; klass and explore are ours, their
# papers give none. One slot per pass where a number of slots is asked for.
DEFAULTS: dict[str, tuple[Callable[..., Params], tuple[float, ...]]] = {
  "random": (_alone, (1,)),
  "confidence": (_alone, (1,)),
  "margin": (_alone, (1,)),
  "entropy": (_alone, (1,)),
  "left_to_right": (_alone, (1,)),
  "threshold": (_alone, (0.9,)),
  "factor": (_alone, (1.0,)),
  "frechet": (_alone, (0.25,)),
  "entropy_threshold": (_alone, (0.5,)),
  "entropy_bound": (_alone, (0.1,)),
  "local_leap": (Leap, (0.9, 0.75, 4)),
  "hierarchy": (Levels, (0.92, 0.62)),
  "warm_up": (_alone, (2,)),
  "klass": (Stable, (0.9, 0.01, 2)),
  "explore": (Exploration, (0.9, 0.97, 2)),
  "learned": (_alone, (0.96,)),
}
REDUNDANCY = {"cluster": 0.8, "run": 0.8, "stay": 0.8, "rounds": 3}
ACCEPTED = "NAME or NAME-NUMBER-.., with +r2 after it or not"


def _rows(value: float, batch: int) -> jax.Array:
  return jnp.full(batch, value, jnp.int32 if isinstance(value, int) else jnp.float32)


def policy(words: str, batch: int, trained: Filter | None = None) -> tuple[Policy, Params]:
  """A policy with its params, the same for all B rows.

  Args:
    words: a name of `POLICIES`; after it, numbers in place of the published ones; then "+r2".
    batch: B.
    trained: the filter of "learned".

  Raises:
    ValueError: words that name no policy, too many numbers, or no filter where one is needed.
  """
  base, _, more = words.partition("+")
  name, *numbers = base.split("-")
  if name not in DEFAULTS or more not in ("", "r2"):
    raise ValueError(
      f"policy={words!r}: accepted is {ACCEPTED}, NAME being one of {', '.join(DEFAULTS)}."
    )
  hold, published = DEFAULTS[name]
  values = list(published)
  if len(numbers) > len(values):
    raise ValueError(f"policy={words!r}: {name} takes {len(values)} numbers at most.")
  for i, number in enumerate(numbers):
    try:
      values[i] = type(published[i])(number)
    except ValueError:
      kind = "whole number" if isinstance(published[i], int) else "number"
      raise ValueError(f"policy={words!r}: {number!r} is no {kind}.") from None
  params = hold(*(_rows(x, batch) for x in values))
  if name == "learned":
    if trained is None:
      raise ValueError(f"policy={words!r}: it needs a filter, see specjax.train.filter.")
    params = trained._replace(least=params if numbers else _rows(float(trained.least), batch))
  chosen = POLICIES[name]()
  if more:
    levels = {key: _rows(value, batch) for key, value in REDUNDANCY.items()}
    return r2(chosen), Redundancy(base=params, **levels)
  return chosen, params
