"""Which slots to commit, one idea per file; `r2` adds to what another policy commits."""

from collections.abc import Callable

from specjax.diffusion.base import Policy
from specjax.diffusion.policies.bounds import (
  EntropyBound,
  Factor,
  Frechet,
  entropy_bound,
  factor,
  frechet,
)
from specjax.diffusion.policies.klass import Stable, klass
from specjax.diffusion.policies.learned import Filter, learned
from specjax.diffusion.policies.quota import (
  Quota,
  WarmUp,
  confidence,
  entropy,
  left_to_right,
  margin,
  random,
  warm_up,
)
from specjax.diffusion.policies.r2 import Redundancy, r2
from specjax.diffusion.policies.threshold import (
  EntropyThreshold,
  Exploration,
  Leap,
  Levels,
  Threshold,
  entropy_threshold,
  explore,
  hierarchy,
  local_leap,
  threshold,
)

__all__ = [
  "ADDED", "POLICIES", "EntropyBound", "EntropyThreshold", "Exploration", "Factor", "Filter",
  "Frechet", "Leap", "Levels", "Quota", "Redundancy", "Stable", "Threshold", "WarmUp",
]  # fmt: skip

POLICIES: dict[str, Callable[[], Policy]] = {
  "random": random, "confidence": confidence, "margin": margin, "entropy": entropy,
  "left_to_right": left_to_right, "threshold": threshold, "factor": factor, "frechet": frechet,
  "entropy_threshold": entropy_threshold, "entropy_bound": entropy_bound,
  "local_leap": local_leap, "hierarchy": hierarchy, "warm_up": warm_up, "klass": klass,
  "learned": learned, "explore": explore,
}  # fmt: skip

# A policy that goes first is what these take: threshold+r2.
ADDED: dict[str, Callable[[Policy], Policy]] = {"r2": r2}
