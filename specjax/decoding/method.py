"""A target, a drafter and a verifier put together, if the verifier is exact for the draft."""

from specjax.base import Drafter, Processor, Target, Verifier
from specjax.speculate import Method
from specjax.verifiers.validity import check


def method(
  target: Target,
  drafter: Drafter,
  verifier: Verifier,
  processors: tuple[Processor, ...] = (),
  narrow: tuple[int, ...] = (),
) -> Method:
  """What the loop runs.

  Raises:
    ValueError: the verifier would be biased for this drafter's proposals.
  """
  check(drafter, verifier)
  return Method(target, drafter, verifier, processors, narrow)
