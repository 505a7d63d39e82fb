"""Draft-length policies from names."""

from collections.abc import Callable, Mapping
from typing import Any

from specjax import checks
from specjax.base import Params
from specjax.checkpoints.files import read_config
from specjax.checkpoints.parts import load_acceptance
from specjax.checkpoints.trained_for import Identity, checked
from specjax.draft_length import DRAFT_LENGTHS
from specjax.draft_length.base import DraftLength
from specjax.names import grammar
from specjax.names.grammar import Part


def parameters(name: str) -> dict[str, grammar.Number | None]:
  """What a name's numbers set; the drafter's nodes and the weights decide the other arguments."""
  return grammar.parameters(DRAFT_LENGTHS[name], without=("longest", "blocks"))


def build_draft_length(
  given: Any, width: int, depth: int, **models: Identity
) -> tuple[str, DraftLength, Params]:
  """(canonical name, policy, weights) for drafts of up to `depth` tokens.

  Args:
    given: a name, a part, a DraftLength, or a pair of it and its weights.
    width: E of the draft model.
    models: the `target` and the `draft` model that an acceptance head is used with.

  Raises:
    ValueError: a name of no policy, or a policy without the weights that it needs.
  """
  if isinstance(given, str):
    given = grammar.parse_one("draft_length", given)
  if not isinstance(given, Part):
    policy, weights = grammar.with_weights("draft_length", given, DraftLength)
    return policy.name, policy, weights
  builder = grammar.look_up("draft_length", given, DRAFT_LENGTHS)
  name, arguments = grammar.bind("draft_length", given, parameters(given.name))
  every = grammar.parameters(builder)
  if "longest" in every:
    arguments["longest"] = depth
  if "length" in every:
    usual = int(every["length"] or 0)
    if arguments.setdefault("length", usual) == usual:  # a name leaves a default out, which fits
      arguments["length"] = min(usual, depth)
    most = "the most that is drafted"
    checks.whole(f"draft_length={name!r}: length", arguments["length"], 0, depth, most)
  if given.name in TRAINED:
    fixed, weights = TRAINED[given.name](given, name, width, models)
    return name, builder(*fixed, **arguments), weights
  return name, builder(**arguments), ()


def _acceptance(
  part: Part, name: str, width: int, models: Mapping[str, Identity]
) -> tuple[tuple[int, ...], Params]:
  path = grammar.text_of(part, "an acceptance head", hint=", see specjax.train.acceptance")
  with checked(name, read_config(path, "acceptance head"), **models):
    loaded = load_acceptance(path, width)
  return (loaded.blocks,), loaded.params


# (first arguments of the builder, weights) of policies that are trained.
TRAINED: dict[str, Callable[..., tuple[tuple[int, ...], Params]]] = {"specdecpp": _acceptance}
