"""JSON Schemas and Lark grammars become what `grammar` and `forced` take, u8[G].

A schema may set the engine's options under "x-guidance", such as whitespace_flexible,
item_separator and key_separator.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks
from specjax.processors.equivalent import equivalent
from specjax.processors.matchers import Matchers

LEAST = 4096  # bytes: most grammars fit, and so share a compiled loop
OWN = 16384  # bytes of a grammar that a request brings to a loop which is compiled


def none() -> Array:
  """The grammar that allows everything; a request may bring its own in place of it."""
  return jnp.zeros(OWN, jnp.uint8)


def _file(what: str, path: str) -> str:
  try:
    return pathlib.Path(path).read_text(encoding="utf-8")
  except (OSError, ValueError) as error:
    raise ValueError(f"{what}[{checks.shown(path)}] must name a file of text ({error}).") from (
      error
    )


def of_json_schema(
  given: str | Mapping[str, Any], matchers: Matchers, size: int | None = None
) -> Array:
  """The grammar of the JSON texts that a schema describes.

  Args:
    given: the schema, its text, which begins with {, or the path of a file of it.
    size: G; None is a power of two that it fits.

  Raises:
    ValueError: no such file, no JSON, or a schema that the engine refuses or that has no room.
  """
  name = given if isinstance(given, str) else json.dumps(given)
  text = name if name.lstrip().startswith("{") else _file("json_schema", name)
  try:
    schema = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"json_schema[{checks.shown(name)}]: no JSON: {error}.") from error
  inner = json.dumps({"grammars": [{"json_schema": equivalent(schema)}]})
  return _checked(f"json_schema[{checks.shown(name)}]", inner, matchers, size)


def of_lark(path: str, matchers: Matchers) -> Array:
  """The Lark grammar of a file, as llguidance reads it.

  Raises:
    ValueError: no such file, or a grammar that the engine refuses.
  """
  inner = json.dumps({"grammars": [{"lark_grammar": _file("grammar", path)}]})
  return _checked(f"grammar[{checks.shown(path)}]", inner, matchers)


def _checked(name: str, grammar: str, matchers: Matchers, size: int | None = None) -> Array:
  try:
    matchers.check(grammar)
  except ValueError as error:
    raise ValueError(f"{name}: {error}.") from error
  written = np.frombuffer(grammar.encode(), np.uint8)
  if size is None:
    size = max(LEAST, 1 << (len(written) - 1).bit_length())
  if len(written) > size:
    raise ValueError(f"{name} must have at most {size} bytes, got {len(written)}.")
  return jnp.asarray(np.pad(written, (0, size - len(written))))
