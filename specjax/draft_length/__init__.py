"""Each file holds a policy, which says when a draft is long enough."""

from collections.abc import Callable

from specjax.draft_length.adaedl import adaedl
from specjax.draft_length.base import DraftLength
from specjax.draft_length.confidence import confidence
from specjax.draft_length.constant import constant
from specjax.draft_length.heuristic import heuristic
from specjax.draft_length.marginal import marginal
from specjax.draft_length.specdecpp import specdecpp

DRAFT_LENGTHS: dict[str, Callable[..., DraftLength]] = {
  "constant": constant,
  "heuristic": heuristic,
  "confidence": confidence,
  "adaedl": adaedl,
  "specdecpp": specdecpp,
  "marginal": marginal,
}
