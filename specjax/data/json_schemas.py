"""JSON Schemas with prompts, of the kinds that programs ask language models for.

The kinds are those of JSONSchemaBench: flat objects, nested ones, bounded arrays, unions, and
strings with a pattern or a format. Most are made by a seed; the others were written by hand.
The published ones are read from a copy of them, see `published`.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from specjax import checks
from specjax.data.sources import numbered, open_source

Schema = dict[str, Any]


class Sample(NamedTuple):
  """A schema, its kind or the dataset it is of, and a prompt that asks for such a text.

  The text is written as `json.dumps` writes it, with a space behind each comma and colon.
  """

  kind: str
  schema: Schema
  prompt: str


THINGS = ("a book", "a city", "a recipe", "a bicycle", "a film", "a train ride", "a garden")
ITEMS = ("tags", "colours", "authors", "steps", "places", "scores")
STRINGS = ("title", "name", "summary", "owner", "language")
NUMBERS = ("price", "year", "weight", "rating", "pages")
FLAGS = ("available", "verified", "public", "new")
ENUMS = {
  "size": ["small", "medium", "large"], "status": ["open", "closed", "waiting"],
  "level": ["low", "high"], "currency": ["EUR", "USD", "JPY"],
}  # fmt: skip
FORMS: dict[str, Schema] = {
  "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
  "phone": {"type": "string", "pattern": "^\\+[0-9]{8,12}$"},
  "day": {"type": "string", "format": "date"}, "hour": {"type": "string", "format": "time"},
  "mail": {"type": "string", "format": "email"}, "id": {"type": "string", "format": "uuid"},
}  # fmt: skip


def _text() -> Schema:
  return {"type": "string", "minLength": 1, "maxLength": 24}


def _object(fields: dict[str, Schema]) -> Schema:
  return {"type": "object", "properties": fields, "required": list(fields),
          "additionalProperties": False}  # fmt: skip


def _some(rng: np.random.Generator, names) -> str:
  return str(rng.choice(list(names)))


def _number(rng: np.random.Generator) -> Schema:
  low = int(rng.integers(0, 10))
  kind = ("integer", "number")[int(rng.integers(2))]
  return {"type": kind, "minimum": low, "maximum": low + int(rng.integers(10, 3000))}


def _flat(rng: np.random.Generator) -> Schema:
  enum = _some(rng, ENUMS)
  return _object(
    {
      _some(rng, STRINGS): _text(),
      _some(rng, NUMBERS): _number(rng),
      enum: {"enum": ENUMS[enum]},
      _some(rng, FLAGS): {"type": "boolean"},
    }
  )


def _nested(rng: np.random.Generator) -> Schema:
  inner = _object({_some(rng, STRINGS): _text(), _some(rng, FLAGS): {"type": "boolean"}})
  return _object({"details": _object({"first": inner, "second": _flat(rng)})})


def _array(rng: np.random.Generator) -> Schema:
  low, enum = int(rng.integers(1, 3)), _some(rng, ENUMS)
  item = ({"enum": ENUMS[enum]}, _number(rng), _object({"value": _number(rng)}))[rng.integers(3)]
  bounded = {"type": "array", "items": item, "minItems": low, "maxItems": low + 2}
  return _object({_some(rng, STRINGS): _text(), _some(rng, ITEMS): bounded})


def _union(rng: np.random.Generator) -> Schema:
  enum, one, other = _some(rng, ENUMS), _some(rng, STRINGS), _some(rng, NUMBERS)
  choice = [
    _object({"kind": {"const": one}, one: _text()}),
    _object({"kind": {"const": other}, other: _number(rng)}),
  ]
  return _object({"result": {"anyOf": choice}, enum: {"enum": [*ENUMS[enum], None]}})


def _form(rng: np.random.Generator) -> Schema:
  one, other = rng.choice(list(FORMS), 2, replace=False)
  return _object({str(one): FORMS[one], str(other): FORMS[other], "checked": {"type": "boolean"}})


KINDS = {"flat": _flat, "nested": _nested, "array": _array, "union": _union, "form": _form}

BY_HAND = (
  ("How many apples does Tom have, if he has 7 and buys 4 more?",
   _object({"working": _text(), "answer": {"type": "integer", "maximum": 9999}})),
  ("Call the tool that tells the weather in Paris tomorrow.",
   _object({"tool": {"const": "get_weather"}, "arguments": _object({
     "city": _text(), "unit": {"enum": ["celsius", "fahrenheit"]},
     "days": {"enum": [1, 2, 7]}})})),
  ("Is this review kind or unkind: The soup was cold.",
   _object({"label": {"enum": ["kind", "unkind", "neither"]},
            "sure": {"type": "number", "minimum": 0, "maximum": 1}})),
  ("Name the people in: Ann met Bob and Cy at noon.",
   _object({"people": {"type": "array", "maxItems": 4, "items": _object({"name": _text()})},
            "time": {"anyOf": [{"type": "string", "format": "time"}, {"type": "null"}]}})),
  ("Give a point of the plane and its colour.",
   _object({"point": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}],
                      "items": False, "minItems": 2},
            "colour": {"type": "string", "pattern": "^#[0-9a-f]{6}$"}})),
)  # fmt: skip


STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def samples(count: int, seed: int = 0) -> list[Sample]:
  """`count` samples: those by hand, then made ones whose kinds take turns."""
  rng = np.random.default_rng(seed)
  made = [Sample("by hand", schema, prompt) for prompt, schema in BY_HAND]
  for i in range(count - len(made)):
    kind = list(KINDS)[i % len(KINDS)]
    made.append(Sample(kind, KINDS[kind](rng), f"Describe {_some(rng, THINGS)}."))
  return [
    Sample(
      kind,
      {**schema, "x-guidance": STYLE},
      f"{prompt} Answer in JSON with the fields {', '.join(schema['properties'])}.",
    )
    for kind, schema, prompt in made[:count]
  ]


def _given(kind: str, schema: Any) -> Sample:
  if not isinstance(schema, dict):
    checks.refuse("json_schema", schema, "an object")
  prompt = f"Write a text in JSON that follows this JSON Schema: {json.dumps(schema)}"
  return Sample(kind, {**schema, "x-guidance": STYLE}, prompt)


def published(path: str) -> list[Sample]:
  """The schemas of JSONSchemaBench, or others that lie like them.

  Geng et al. 2025 (JSONSchemaBench, arXiv 2501.10868) published them twice: as files
  `data/DATASET/NAME.json`, and as records whose `json_schema` is the schema's text.

  Args:
    path: a directory with such files at any depth, or a JSONL file of such records, whose name is
      that of the dataset.

  Raises:
    ValueError: there is no schema, or one that is no object in JSON.
  """
  root = pathlib.Path(path)
  if root.is_dir():
    files = sorted(root.rglob("*.json"))
    if not files:
      checks.refuse("published", path, "a directory with files *.json")
    return [
      _given(x.parent.name, checks.parse_json(x.read_bytes(), str(x.relative_to(root))))
      for x in files
    ]
  source, found = open_source(path), []
  for i, record in enumerate(source[i] for i in range(len(source))):
    with numbered(i):
      text = checks.text("json_schema", record.get("json_schema"))
      found.append(_given(root.stem, checks.parse_json(text, "json_schema")))
  return found
