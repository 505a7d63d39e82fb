"""When a draft is long enough, one rule per file.

`pearl` and `cascade` are no policies: they say what is committed, or drafted, where draft and
target, or several exits of a draft model, work together.
"""

from collections.abc import Callable

from specjax.policies.adaedl import adaedl
from specjax.policies.confidence import confidence
from specjax.policies.heuristic import heuristic
from specjax.policies.marginal import marginal
from specjax.policies.policy import Policy
from specjax.policies.specdecpp import specdecpp
from specjax.policies.static import static

POLICIES: dict[str, Callable[..., Policy]] = {
  "static": static,
  "heuristic": heuristic,
  "confidence": confidence,
  "adaedl": adaedl,
  "specdecpp": specdecpp,
  "marginal": marginal,
}
