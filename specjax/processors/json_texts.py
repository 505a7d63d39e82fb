"""The language of the JSON texts of a schema, as llguidance reads it, where it is known exactly.

It serves the search for ends (`closing`), never the masks. What is not known is refused with
`Unknown`: some keywords, formats, numbers with fractions as bounds, characters beyond ASCII in
patterns. `closing` compares every language with the engine's masks as it is walked.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from specjax.processors.languages import EMPTY, NOTHING, Languages
from specjax.processors.ranges import Unknown, decimal, whole

_DAY = (
  "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
  "02-(0[1-9]|[12][0-9]))"
)
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR}:([0-5][0-9]|60)(\\.[0-9]+)?([zZ]|[+-]{_HOUR})"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = f"({_BYTE}\\.){{3}}{_BYTE}"
_ATOM = "[a-zA-Z0-9!#$%&'*+\\-/=?\\^_`{|}~]+"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9\\-]*[a-zA-Z0-9])?"
FORMATS = {
  "date": f"[0-9]{{4}}-{_DAY}", "time": _TIME, "date-time": f"[0-9]{{4}}-{_DAY}[tT]{_TIME}",
  "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "ipv4": _IPV4,
  "email": f"{_ATOM}(\\.{_ATOM})*@({_LABEL}(\\.{_LABEL})*|\\[{_IPV4}\\])",
}  # fmt: skip
_LENGTHS = {"minLength", "maxLength", "pattern", "format"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_ITEMS = {"items", "prefixItems", "minItems", "maxItems"}
_FIELDS = {"properties", "required", "additionalProperties"}
_KINDS = {"null": set[str](), "boolean": set[str](), "integer": _BOUNDS, "number": _BOUNDS,
          "string": _LENGTHS, "array": _ITEMS, "object": _FIELDS}  # fmt: skip
_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs",
          "definitions", "x-guidance", "readOnly", "writeOnly", "deprecated"}  # fmt: skip
_STYLE = {"whitespace_flexible", "item_separator", "key_separator"}


class _Texts:
  """The languages of the parts of a schema."""

  def __init__(self, schema: Mapping[str, Any], languages: Languages):
    self._all, self._languages = schema, languages
    self._referred_to: set[str] = set()
    style = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":",
             **schema.get("x-guidance", {})}  # fmt: skip
    if style.keys() != _STYLE:
      raise Unknown("x-guidance")
    blank = languages.repeated(languages.one_of(b" \n\r\t"))
    self._blank = blank if style["whitespace_flexible"] else EMPTY
    self._comma = languages.text(style["item_separator"].encode())
    self._colon = languages.text(style["key_separator"].encode())

  def _joined(self, *parts: int) -> int:
    """Lexemes with the white space before them."""
    return self._languages.joined(*(x for part in parts for x in (self._blank, part)))

  def _literal(self, value: Any) -> int:
    if isinstance(value, Mapping):
      fields = [(key, self.of({"const": item})) for key, item in value.items()]
      return self._fields([(k, v, True) for k, v in fields], None)
    if isinstance(value, list):
      return self._list([self.of({"const": item}) for item in value], None, len(value), len(value))
    if isinstance(value, float) and not re.fullmatch(r"-?[0-9]+\.[0-9]*[1-9]", repr(value)):
      raise Unknown("a number that is written in several ways")
    return self._languages.text(json.dumps(value, ensure_ascii=False).encode())

  def of(self, schema: Any) -> int:
    """The texts of one part, or of all."""
    if schema is True or schema == {}:
      return self._any()
    if schema is False:
      return NOTHING
    keys = schema.keys() - _NOTES
    L = self._languages
    if keys == {"$ref"}:
      return self._referred(schema["$ref"])
    if keys in ({"anyOf"}, {"oneOf"}):
      return L.either(*map(self.of, schema.get("anyOf") or schema["oneOf"]))
    if "const" in schema and keys <= {"const", "type"}:
      return self._literal(schema["const"])
    if "enum" in schema and keys <= {"enum", "type"}:
      return L.either(*map(self._literal, schema["enum"]))
    kinds = schema.get("type", [kind for kind in _KINDS if kind != "integer"])
    if unknown := keys - {"type"}.union(*_KINDS.values()):
      raise Unknown(", ".join(sorted(unknown)))
    return L.either(
      *(self._of_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    )

  def _of_kind(self, kind: str, schema: Mapping[str, Any]) -> int:
    L = self._languages
    match kind:
      case "null":
        return L.text(b"null")
      case "boolean":
        return L.either(L.text(b"true"), L.text(b"false"))
      case "integer" | "number":
        return L.matching(self._number(kind, schema))
      case "string":
        return L.joined(L.text(b'"'), self._string(schema))
      case "array":
        return self._array(schema)
      case _:
        return self._object(schema)

  def _number(self, kind: str, schema: Mapping[str, Any]) -> str:
    def bound(name: str, side: int) -> tuple[int | None, bool]:
      own, other = schema.get(name), schema.get(f"exclusive{name.capitalize()}")
      if own is None and other is None:
        return None, True
      if own is not None and other is not None:
        raise Unknown("two bounds")
      value: Any = own if other is None else other
      inside = other is None
      if isinstance(value, bool) or value != int(value):
        raise Unknown("a bound with a fraction")
      if kind == "integer" and not inside:
        return int(value) + side, True
      return int(value), inside

    (low, with_low), (high, with_high) = bound("minimum", 1), bound("maximum", -1)
    if low is not None and high is not None and low > high:
      raise Unknown("an empty range")
    return whole(low, high) if kind == "integer" else decimal(low, high, with_low, with_high)

  def _string(self, schema: Mapping[str, Any]) -> int:
    L = self._languages
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    of_length = L.characters(least, most)
    if "pattern" in schema and "format" in schema:
      raise Unknown("a pattern with a format")
    if "pattern" in schema:
      pattern = schema["pattern"]
      whole = pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")
      if not whole or re.search(r"\\[a-zA-Z]|\(\?[^:]|[^\\[]\^|\$.", pattern):
        raise Unknown("a pattern without ^ and $, or with classes of Unicode")
      if "|" in re.sub(r"\\.|\([^()]*\)|\[[^]]*\]", "", pattern):
        raise Unknown("alternatives between ^ and $")
      pattern = pattern[1:-1]
    elif "format" in schema:
      if schema["format"] not in FORMATS:
        raise Unknown(f"format {schema['format']}")
      pattern = FORMATS[schema["format"]]
    else:
      return of_length
    matching = L.matching(pattern, quoted=True)
    return L.both(matching, of_length) if least or most is not None else matching

  def _any(self) -> int:
    L = self._languages

    def every() -> int:
      kinds = ("null", "boolean", "number", "string", "array", "object")
      return L.either(*(self._of_kind(kind, {}) for kind in kinds))

    return L.named("any", every)

  def _referred(self, place: str) -> int:
    if not place.startswith("#"):
      raise Unknown("a schema elsewhere")
    found: Any = self._all
    for name in place[1:].strip("/").split("/") if place != "#" else ():
      found = found[name.replace("~1", "/").replace("~0", "~")]
    named = self._languages.named(place, lambda: self.of(found))
    if place not in self._referred_to:
      self._referred_to.add(place)
      self.of(found)  # which may be unknown
      self._languages.after(named, 0)  # or begin with itself
    return named

  def _array(self, schema: Mapping[str, Any]) -> int:
    first = [self.of(one) for one in schema.get("prefixItems", [])]
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    return self._list(first, self.of(schema.get("items", True)), least, most)

  def _list(self, first: list[int], more: int | None, least: int, most: int | None) -> int:
    L, count = self._languages, len(first)
    if more in (None, NOTHING):
      most = count if most is None else min(most, count)
    elif most is None:
      count = max(count, least)
    else:
      count = most
    items = [*first, *([more] * (count - len(first)) if more is not None else [])][:count]
    rest = EMPTY
    if most is None and more is not None:
      rest = L.repeated(self._joined(self._comma, more))
    for i in reversed(range(len(items))):
      item = L.joined(
        self._joined(items[i]) if i == 0 else self._joined(self._comma, items[i]), rest
      )
      rest = item if i < least else L.either(item, EMPTY)
    if not items and most is None and more is not None:
      rest = L.either(L.joined(self._joined(more), rest), EMPTY)
    return L.joined(L.text(b"["), rest, self._joined(L.text(b"]")))

  def _object(self, schema: Mapping[str, Any]) -> int:
    fields, required = schema.get("properties", {}), schema.get("required", [])
    more = schema.get("additionalProperties", True)
    names = [*fields, *(name for name in required if name not in fields)]
    other = self.of(more)
    each = [
      (name, self.of(fields[name]) if name in fields else other, name in required) for name in names
    ]
    return self._fields(each, other)

  def _fields(self, fields: list[tuple[str, int, bool]], other: int | None) -> int:
    """An object of fields (name, language, whether it is required), in order, then of others."""
    L = self._languages
    names = [json.dumps(name, ensure_ascii=False).encode() for name, _, _ in fields]
    behind, alone = EMPTY, EMPTY  # what follows a field, and what follows the brace
    if other is not None and other != NOTHING:
      key = L.without(L.keys(), frozenset(name[1:] for name in names)) if names else L.characters()
      item = self._joined(L.joined(L.text(b'"'), key), self._colon, other)
      behind = L.repeated(self._joined_to(self._comma, item))
      alone = L.either(EMPTY, L.joined(item, behind))
    for name, (_, value, required) in zip(reversed(names), reversed(fields), strict=True):
      if value == NOTHING and not required:
        continue
      item = self._joined(L.text(name), self._colon, value)
      with_it, first = L.joined(self._joined_to(self._comma, item), behind), L.joined(item, behind)
      behind = with_it if required else L.either(with_it, behind)
      alone = first if required else L.either(first, alone)
    return L.joined(L.text(b"{"), alone, self._joined(L.text(b"}")))

  def _joined_to(self, before: int, item: int) -> int:
    return self._languages.joined(self._joined(before), item)


def texts_of(schema: Any, languages: Languages) -> int:
  """The language of the JSON texts of a schema.

  Raises:
    Unknown: it is not known here.
  """
  try:
    return _Texts(schema if isinstance(schema, Mapping) else {}, languages).of(schema)
  except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
    raise Unknown(str(error)) from error
