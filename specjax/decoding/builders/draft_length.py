"""Draft-length policies from names."""

from typing import Any

from specjax.base import Params
from specjax.checkpoints.parts import load_acceptance
from specjax.decoding import spec
from specjax.decoding.spec import Part
from specjax.draft_length import DRAFT_LENGTHS
from specjax.draft_length.base import DraftLength


def knobs(name: str) -> dict[str, spec.Number | None]:
  """What a name's numbers set; the drafter's nodes and the weights decide the other arguments."""
  return spec.knobs(DRAFT_LENGTHS[name], without=("longest", "blocks"))


def build_draft_length(given: Any, width: int, depth: int) -> tuple[str, DraftLength, Params]:
  """(canonical name, policy, weights) for drafts of up to `depth` tokens.

  Args:
    given: a name, a part, a DraftLength, or a pair of it and its weights.
    width: E of the draft model.

  Raises:
    ValueError: a name of no policy, or a policy without the weights that it needs.
  """
  if isinstance(given, str):
    given = spec.parse_one("draft_length", given)
  if not isinstance(given, Part):
    policy, weights = spec.with_weights("draft_length", given, DraftLength)
    return policy.name, policy, weights
  builder = spec.look_up("draft_length", given, DRAFT_LENGTHS)
  name, arguments = spec.settle("draft_length", given, knobs(given.name))
  every = spec.knobs(builder)
  if "longest" in every:
    arguments["longest"] = depth
  if "length" in every:
    arguments.setdefault("length", min(int(every["length"] or 0), depth))
  if given.name != "specdecpp":
    return name, builder(**arguments), ()
  path = spec.text_of(given, "an acceptance head", hint=", see specjax.train.acceptance")
  loaded = load_acceptance(path, width)
  return name, builder(loaded.blocks, **arguments), loaded.params
