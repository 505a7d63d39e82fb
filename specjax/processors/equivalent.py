"""A JSON Schema in keywords that the engine knows, where they say exactly the same.

- A `format` that no draft defines says nothing, as the drafts want it of those that are not known.
- `uniqueItems` says nothing where it is false, or where there is one item at most.
- `propertyNames` says nothing where any text may be a name. A pattern of names is one of properties
  where no other keyword names any.
- A null that two branches of a `oneOf` take is one that the whole refuses, so that none need take
  it.

What stands where no keyword has a schema is left as it is: a value, or what only a `$ref` finds.
"""

from collections.abc import Mapping
from typing import Any

# Keywords with a schema, with a list of them, and with names of them.
ONE = {"items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if",
       "then", "else", "unevaluatedItems", "unevaluatedProperties"}  # fmt: skip
MANY = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
FORMATS = {
  "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4",
  "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer",
  "relative-json-pointer", "regex",
}  # fmt: skip
NAMES = {"properties", "patternProperties", "propertyNames"}
SAYS_OF_NULL = {"enum", "const", "not", "allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef"}


def _types(schema: Any) -> list[str]:
  kind = schema.get("type") if isinstance(schema, Mapping) else None
  return [kind] if isinstance(kind, str) else list(kind or ())


def _one_of(branches: list[Any]) -> list[Any]:
  """The branches of a `oneOf` without a null that two of them take."""
  take = ["null" in _types(x) and SAYS_OF_NULL.isdisjoint(x) for x in branches]
  if sum(take) < 2 or not all(map(_types, branches)):
    return branches
  left = [(x, [kind for kind in _types(x) if kind != "null"]) for x in branches]
  return [{**x, "type": kinds} for x, kinds in left if kinds]


def _names(schema: dict[str, Any]) -> dict[str, Any]:
  """A schema without its `propertyNames`, if other keywords say the same."""
  asked = schema["propertyNames"]
  if asked is True or asked in ({}, {"type": "string"}):
    return {key: x for key, x in schema.items() if key != "propertyNames"}
  if not isinstance(asked, Mapping) or not {"pattern"} <= set(asked) <= {"pattern", "type"}:
    return schema
  if _types(asked) not in ([], ["string"]) or NAMES & set(schema) != {"propertyNames"}:
    return schema
  others = {key: x for key, x in schema.items() if key != "propertyNames"}
  pattern = {asked["pattern"]: schema.get("additionalProperties", True)}
  return {**others, "patternProperties": pattern, "additionalProperties": False}


def _inside(key: str, x: Any) -> Any:
  if key in MANY and isinstance(x, list):
    return [equivalent(y) for y in x]
  if key in NAMED and isinstance(x, Mapping):
    return {name: equivalent(y) for name, y in x.items()}
  return equivalent(x) if key in ONE else x


def equivalent(schema: Any) -> Any:
  """A schema that takes the same values; what is no object is as it was."""
  if not isinstance(schema, Mapping):
    return schema
  made = {key: _inside(key, x) for key, x in schema.items()}
  if isinstance(made.get("format"), str) and made["format"] not in FORMATS:
    del made["format"]
  if made.get("uniqueItems") is False or made.get("maxItems") in (0, 1):
    made.pop("uniqueItems", None)
  if isinstance(made.get("oneOf"), list):
    made["oneOf"] = _one_of(made["oneOf"])
  return _names(made) if "propertyNames" in made else made
