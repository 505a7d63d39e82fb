"""Schemas in the engine's keywords take what they took before, as a validator sees it."""

import jsonschema
import pytest

from specjax.names.load import load
from specjax.processors.equivalent import equivalent
from specjax.processors.matchers import Matchers
from specjax.processors.schemas import of_json_schema

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
OR_NULL = [{"type": ["string", "null"]}, {"type": ["integer", "null"], "minimum": 3}]
VALUES = [
  None, True, 1, 3, 2.5, "a", "ab", "B", [], [1], [1, 1], [1, 2], {}, {"a": 1}, {"a": "b"},
  {"B": 1}, {"a": None}, {"x": {"a": 1}}, {"x": {"B": 1}}, {"format": 1}, {"c": [1, 1]},
]  # fmt: skip
MENDED = {
  "a format of nobody": {"type": "string", "format": "byte"},
  "in a property": {"properties": {"format": {"type": "integer", "format": "int32"},
                                   "a": {"type": "string", "format": "color"}}},
  "not unique": {"type": "array", "items": NUMBER, "uniqueItems": False},
  "one item": {"type": "array", "items": NUMBER, "maxItems": 1, "uniqueItems": True},
  "two nulls": {"oneOf": OR_NULL},
  "two nulls alone": {"oneOf": [{"type": "null"}, *OR_NULL]},
  "deep": {"properties": {"a": {"anyOf": [{"oneOf": OR_NULL}]}}},
  "any names": {"type": "object", "propertyNames": TEXT, "additionalProperties": NUMBER},
  "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^[a-z]$"}},
  "of values": {"type": "object", "propertyNames": {"pattern": "^[a-z]$", "type": "string"},
                "additionalProperties": NUMBER},
  "in a definition": {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}},
                      "$defs": {"y": {"type": "object", "propertyNames": {"pattern": "^a"}}}},
}  # fmt: skip
KEPT = {
  "a value": {"enum": [{"format": "byte"}, {"uniqueItems": False}]},
  "names": {"properties": {"format": TEXT, "oneOf": NUMBER, "uniqueItems": {"const": False}}},
  "a format of the drafts": {"type": "string", "format": "uuid"},
  "unique": {"type": "array", "uniqueItems": True},
  "one null": {"oneOf": [TEXT, {"type": ["integer", "null"]}]},
  "a null by a reference": {"oneOf": [{"$ref": "#/$defs/y"}, *OR_NULL],
                            "$defs": {"y": {"type": ["null"]}}},
  "a null refused": {"oneOf": [{"type": ["string", "null"], "enum": ["a"]}, OR_NULL[1]]},
  "names beside others": {"properties": {"a": TEXT}, "propertyNames": {"pattern": "^b"}},
  "long names": {"propertyNames": {"minLength": 2}},
}  # fmt: skip


def takes(schema) -> list[bool]:
  return [jsonschema.Draft202012Validator(schema).is_valid(value) for value in VALUES]


@pytest.mark.parametrize("name", MENDED)
def test_a_mended_schema_takes_the_same_and_is_taken(name):
  schema, model = MENDED[name], load()
  made, own = equivalent(schema), Matchers(model.tokenizer, model.config.vocab_size, model.stop)
  assert made != schema and takes(made) == takes(schema) and equivalent(made) == made
  assert of_json_schema(schema, own).any()


@pytest.mark.parametrize("name", KEPT)
def test_what_has_no_equal_stays(name):
  assert equivalent(KEPT[name]) == KEPT[name]


def test_what_is_no_schema_stays():
  assert [equivalent(x) for x in (True, None, 3, ["a"])] == [True, None, 3, ["a"]]
