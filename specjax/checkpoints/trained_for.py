"""Whose a trained part is: what its file says of the models it was trained for.

A config.json has their names and, in `trained_for`, what else tells them from others, by their
roles. Older ones, and those of other programs, have names alone.
"""

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from specjax import checks

KEY = "trained_for"
_NAMES = {"target": ("target", "base", "base_model_name_or_path")}  # where a name alone stands


class Identity(NamedTuple):
  """What tells a model from others.

  Attributes:
    name: as it was loaded.
    vocab_size, width, layers: of its network.
    tokens: `data.vocabulary.digest` of its tokenizer, None without one.
  """

  name: str
  vocab_size: int
  width: int
  layers: int
  tokens: str | None = None


_SCHEMA = {"vocab_size": int, "width": int, "layers": int, "tokens": str}
_CALLED = {"vocab_size": "a vocabulary of", "width": "a width of", "layers": "layers:"}


def record(**models: Identity | str) -> dict[str, Any]:
  """The entries of a config.json for models by their roles, of which a name alone may be known."""
  names = {role: model if isinstance(model, str) else model.name for role, model in models.items()}
  known = {
    role: {key: getattr(model, key) for key in _SCHEMA}
    for role, model in models.items()
    if isinstance(model, Identity)
  }
  return names | ({KEY: known} if known else {})


def _said(raw: Mapping[str, Any], role: str) -> dict[str, Any]:
  """What is known of the model that a part was trained for; nothing where nothing is said."""
  keys, known = _NAMES.get(role, (role,)), raw.get(KEY) or {}
  if not isinstance(known, dict) or not all(isinstance(x, dict) for x in known.values()):
    checks.refuse(KEY, known, "an object of objects")
  program = raw.get("speculators_config")
  verifier = program.get("verifier") if isinstance(program, dict) else None
  names = [raw.get(key) for key in keys]
  names += [verifier.get("name_or_path")] if isinstance(verifier, dict) else []
  own: dict[str, Any] = next((known[key] for key in keys if key in known), {})
  name = next((x for x in names if isinstance(x, str) and x), "")
  return {"name": name, **checks.fields_of(own, _SCHEMA, f"{KEY}: {role}")}


def _same_name(a: str, b: str) -> bool:
  """Whether two names may be one model's: a path, or a repository, of the same last part."""
  return pathlib.PurePath(a).name.lower() == pathlib.PurePath(b).name.lower()


@contextlib.contextmanager
def checked(what: str, raw: Mapping[str, Any], **models: Identity) -> Iterator[None]:
  """Around the reading of a trained part: its errors say whose it is, if that is another model's.

  A line on stderr says where a part was trained for a model of another name that is known to be
  alike. A name alone is no sign of another model: it may be a path, or an alias.

  Args:
    what: the part, as the user called it.
    raw: its config.json.
    models: those it is used with, by the roles that the file gives them; heads have a `target`.

  Raises:
    ValueError: it was trained for a model of another vocabulary, width or number of layers, or
      whose tokens are others.
  """
  others: dict[str, bool] = {}
  for role, model in models.items():
    said = _said(raw, role)
    name = said["name"]
    whose = f"{what} was trained for {name or 'another model'}, not {model.name}"
    for key, called in _CALLED.items():
      if said.get(key, getattr(model, key)) != getattr(model, key):
        raise ValueError(
          f"{whose}: that has {called} {said[key]}, and this one {getattr(model, key)}."
        )
    if None not in (said.get("tokens"), model.tokens) and said["tokens"] != model.tokens:
      raise ValueError(f"{whose}: their tokenizers have other tokens.")
    if name and not _same_name(name, model.name):
      others[whose] = len(said) > 1
  try:
    yield
  except ValueError as error:
    raise (ValueError(f"{next(iter(others))}: {error}") if others else error) from None
  for whose, is_alike in others.items():
    if is_alike:
      print(f"{whose}: it may draft badly.", file=sys.stderr)
