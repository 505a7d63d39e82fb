"""Which slots to commit, one idea per file; some add to what another policy commits."""

from collections.abc import Callable

from specjax.diffusion.base import Policy
from specjax.diffusion.policies import best, schedule, threshold
from specjax.diffusion.policies.best import Quota, Ranked
from specjax.diffusion.policies.editing import edit, remdm
from specjax.diffusion.policies.end_last import EndLast, end_last
from specjax.diffusion.policies.guided import Guide, guided_by
from specjax.diffusion.policies.in_flight import Flight, in_flight
from specjax.diffusion.policies.klass import Stable, klass
from specjax.diffusion.policies.learned import Filter, learned
from specjax.diffusion.policies.r2 import Redundancy, r2
from specjax.diffusion.policies.remasking import remask, wino
from specjax.diffusion.policies.renoise import renoise, settled
from specjax.diffusion.policies.threshold import (
  Distance,
  Exploration,
  Leap,
  Levels,
  Threshold,
)

__all__ = [
  "ADDED", "GUIDED", "POLICIES", "Distance", "EndLast", "Exploration", "Filter", "Flight", "Guide",
  "Leap", "Levels", "Quota", "Ranked", "Redundancy", "Stable", "Threshold",
]  # fmt: skip

POLICIES: dict[str, Callable[[], Policy]] = {
  "random": best.random, "confidence": best.confidence, "margin": best.margin,
  "entropy": best.entropy, "left_to_right": best.left_to_right, "threshold": threshold.threshold,
  "factor": best.factor, "frechet": best.frechet,
  "entropy_threshold": threshold.entropy_threshold, "entropy_bound": best.entropy_bound,
  "entropy_distance": threshold.entropy_distance,
  "local_leap": threshold.local_leap, "hierarchy": threshold.hierarchy, "warm_up": best.warm_up,
  "in_flight": in_flight, "klass": klass, "learned": learned, "explore": threshold.explore,
  "origin": schedule.origin, "remdm": remdm, "wino": wino, "remask": remask,
}  # fmt: skip

# These take a second model and the mask: guided[gsm8k-7m].
GUIDED: dict[str, Callable[..., Policy]] = {"guided": guided_by}

# A policy that goes first is what these take: threshold+r2.
ADDED: dict[str, Callable[[Policy], Policy]] = {
  "r2": r2, "end_last": end_last, "steps": schedule.steps, "timesteps": schedule.timesteps,
  "renoise": renoise, "edit": edit, "settled": settled,
}  # fmt: skip
