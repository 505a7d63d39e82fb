"""When a draft is long enough, one rule per file.

`pearl` and `cascade` are no policies: they say what is committed, or drafted, where draft and
target, or several exits of a draft model, work together.
"""

from collections.abc import Callable

from specjax.draft_length.adaedl import adaedl
from specjax.draft_length.base import DraftLength
from specjax.draft_length.confidence import confidence
from specjax.draft_length.heuristic import heuristic
from specjax.draft_length.marginal import marginal
from specjax.draft_length.specdecpp import specdecpp
from specjax.draft_length.static import static

DRAFT_LENGTHS: dict[str, Callable[..., DraftLength]] = {
  "static": static,
  "heuristic": heuristic,
  "confidence": confidence,
  "adaedl": adaedl,
  "specdecpp": specdecpp,
  "marginal": marginal,
}
