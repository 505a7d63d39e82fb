"""Verifiers from names."""

from collections.abc import Callable
from typing import Any

from specjax.base import Drafter, Params, Target, Verifier
from specjax.checkpoints.files import read_config
from specjax.checkpoints.parts import load_judge
from specjax.checkpoints.trained_for import checked
from specjax.models.reflective import reflective, reflective_once
from specjax.names import grammar
from specjax.names.grammar import Part
from specjax.names.load import Model
from specjax.verifiers import VERIFIERS

REFLECTIONS: dict[str, Callable[..., Target]] = {
  "reflective": reflective,
  "reflective_once": reflective_once,
}


def _judge(model: Model, part: Part, name: str) -> Params:
  path = grammar.text_of(part, "a head", hint=", see specjax.train.judge")
  with checked(name, read_config(path, "judge"), target=model.identity):
    return load_judge(path, model.config)


# Of verifiers that are trained.
WEIGHTS: dict[str, Callable[[Model, Part, str], Params]] = {"judge": _judge}


def exact_verifier(drafter: Drafter, temperature: float) -> str:
  """The exact verifier that accepts the most; at temperature 0 it is greedy."""
  if temperature == 0:
    return "greedy"
  by_proposal = {
    "deterministic": "target_only", "chain": "block", "truncated": "block", "coupled": "token",
  }  # fmt: skip
  return by_proposal.get(drafter.proposal, "traversal") if drafter.depth else "target_only"


def build_verifier(
  model: Model, given: Any, drafter: Drafter, temperature: float
) -> tuple[str, Verifier, Params, Target]:
  """(canonical name, verifier, its weights, the target as the verifier reads it).

  Args:
    given: a name, a Verifier, or a pair of it and its weights; None is `exact_verifier`.

  Raises:
    ValueError: an unknown name, or greedy verification above temperature 0.
  """
  given = exact_verifier(drafter, temperature) if given is None else given
  if isinstance(given, str):
    name, verifier, weights, target = _named(model, given)
  else:
    verifier, weights = grammar.with_weights("verifier", given, Verifier)
    name, target = verifier.name, model.target
  if verifier.temperature == "zero" and temperature > 0:
    raise ValueError(
      f"`temperature` must be 0 for the verifier {name!r}, got {temperature}; target_only is exact "
      "at any temperature."
    )
  return name, verifier, weights, target


def _named(model: Model, given: str) -> tuple[str, Verifier, Params, Target]:
  part, *more = grammar.parse("verifier", given)
  builder = grammar.look_up("verifier", part, VERIFIERS)
  if more:
    raise ValueError(f"`verifier` must be one verifier, got {given!r}.")
  name, arguments = grammar.bind("verifier", part, grammar.parameters(builder))
  verifier, target = builder(*arguments.values()), model.target
  weights = WEIGHTS.get(part.name, lambda *_: ())(model, part, name)
  for second in grammar.decorations(part, {"reflection": REFLECTIONS}).values():
    prompt = model.encode(grammar.text_of(second, "a prompt", "TEXT"))
    builder = REFLECTIONS[second.name]
    label, numbers = grammar.bind("verifier", second, grammar.parameters(builder))
    target = builder(target, tuple(prompt), **numbers)
    name, verifier = f"{name}/{label}", verifier._replace(exactness=f"LOSSY ({label})")
  return name, verifier, weights, target
