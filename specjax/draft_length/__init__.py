"""Policies that decide when a draft is long enough, those of one kind in one file."""

from collections.abc import Callable

from specjax.draft_length.base import DraftLength
from specjax.draft_length.marginal import marginal
from specjax.draft_length.schedule import constant, heuristic
from specjax.draft_length.specdecpp import specdecpp
from specjax.draft_length.survival import survival
from specjax.draft_length.threshold import adaedl, confidence

DRAFT_LENGTHS: dict[str, Callable[..., DraftLength]] = {
  "constant": constant, "heuristic": heuristic, "confidence": confidence, "adaedl": adaedl,
  "specdecpp": specdecpp, "marginal": marginal, "survival": survival,
}  # fmt: skip
