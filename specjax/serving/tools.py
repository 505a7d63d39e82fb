"""Functions that a client offers to the model, and the calls of them in an answer.

A model's chat template shows the functions to the model, and shows how it was taught to call them.
Where a request asks for a call, the answer follows a schema of it; else the model decides, and
what has not the form of a call is text.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specjax import checks
from specjax.names.load import Model

MOST = 128  # functions of a request, as at OpenAI


class Style(NamedTuple):
  """How a family writes calls: JSON between two marks.

  Attributes:
    begin, end: the marks; without a second one the rest of the answer is JSON.
    arguments: the key of a call's arguments, beside `name`.
  """

  begin: str
  end: str
  arguments: str


STYLES = (
  Style("<tool_call>", "</tool_call>", "arguments"),  # Hermes 2 Pro, Qwen2.5 and 3
  Style("[TOOL_CALLS]", "", "arguments"),  # Mistral
  Style("<|python_tag|>", "", "parameters"),  # Llama 3.1
)


class Tools(NamedTuple):
  """What a request offers.

  Attributes:
    offered: the functions, in OpenAI's form; none where none may be called.
    style: how the model calls them.
    forced: whether the answer must be a call.
  """

  offered: Sequence[Mapping[str, Any]] = ()
  style: Style = STYLES[0]
  forced: bool = False

  @property
  def names(self) -> list[str]:
    return [tool["function"]["name"] for tool in self.offered]

  @property
  def schema(self) -> dict[str, Any]:
    """The JSON Schema of one call."""
    return {"anyOf": [self._call(tool["function"]) for tool in self.offered]}

  def _call(self, function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("parameters") or {"type": "object", "properties": {}}
    return {
      "type": "object",
      "properties": {"name": {"const": function["name"]}, self.style.arguments: arguments},
      "required": ["name", self.style.arguments],
      "additionalProperties": False,
    }


def read(model: Model, given: Mapping[str, Any]) -> Tools:
  """What a request offers by `tools` and `tool_choice`.

  Raises:
    ValueError: no list of functions, a model that was taught to call none, or another choice.
  """
  tools, choice = given.get("tools", []), given.get("tool_choice", "auto")
  offered = [_function(i, x) for i, x in enumerate(checks.sequence("tools", tools, LIST))]
  if len(offered) > MOST:
    checks.refuse("tools", tools, f"a list of up to {MOST} functions")
  names = [tool["function"]["name"] for tool in offered]
  if isinstance(choice, Mapping):
    function = choice.get("function")
    wanted = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or wanted not in names:
      checks.refuse("tool_choice", choice, "an object of type function with the name of a tool")
    offered = [tool for tool in offered if tool["function"]["name"] == wanted]
  elif choice not in ("none", "auto", "required") or (choice == "required" and not offered):
    checks.refuse("tool_choice", choice, "none, auto, required with tools, or a function")
  if choice == "none" or not offered:
    return Tools()
  style = style_of(model)
  if style is None:
    checks.refuse("tools", names, f"left out: the chat template of {model.name} calls no tools")
  several = checks.boolean("parallel_tool_calls", given.get("parallel_tool_calls", True))
  if choice == "auto" and not several:
    checks.refuse("parallel_tool_calls", several, "true with tool_choice auto")
  return Tools(offered, style, choice != "auto")


LIST = "a list of functions"


def _function(i: int, tool: Any) -> Mapping[str, Any]:
  function = tool.get("function") if isinstance(tool, Mapping) else None
  if not isinstance(function, Mapping) or tool.get("type") != "function":
    checks.refuse(f"tools[{i}]", tool, "an object of type function")
  checks.text(f"tools[{i}]: name", function.get("name"))
  if not isinstance(function.get("parameters", {}), Mapping):
    checks.refuse(f"tools[{i}]: parameters", function["parameters"], "a JSON Schema")
  return tool


def style_of(model: Model) -> Style | None:
  """How a model calls functions, by the marks in its chat template; None where it has none."""
  template = model.template
  if template is None or "tools" not in template.variables:
    return None
  return next((style for style in STYLES if style.begin in template.source), None)


def spoken(calls: Any, name: str) -> list[dict[str, Any]]:
  """Calls of an earlier turn as templates read them: their arguments are objects, not texts.

  Raises:
    ValueError: no list of calls in OpenAI's form.
  """
  found = []
  accepted = "a call of type function, with its name and arguments"
  for i, call in enumerate(checks.sequence(name, calls, "a list of calls")):
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
      checks.refuse(f"{name}[{i}]", call, accepted)
    checks.text(f"{name}[{i}]: name", function.get("name"))
    arguments = checks.parse_json(function["arguments"] or "{}", f"{name}[{i}]: arguments")
    found.append({**call, "function": {**function, "arguments": arguments}})
  return found


class Spoken:
  """One answer, as text and calls, while its text comes.

  Text is shown until a call may begin.
  """

  def __init__(self, tools: Tools):
    self._tools, self._text, self._shown = tools, "", 0

  def add(self, text: str) -> str:
    """What can be shown now that this has come."""
    self._text += text
    return self._show(self._certain())

  def end(self) -> tuple[str, list[dict[str, Any]]]:
    """(what is left to show, the calls in OpenAI's form) when no more comes."""
    text, calls = parse(self._text, self._tools)
    return self._show(len(self._text) if not calls else len(text)), calls

  def _show(self, end: int) -> str:
    new = self._text[self._shown : end]
    self._shown = max(self._shown, end)
    return new

  def _certain(self) -> int:
    """How much of the text is no part of a call, whatever comes."""
    if not self._tools.offered:
      return len(self._text)
    begin = self._tools.style.begin
    opens = self._text.lstrip()[:1] in ("", "{", "[") and not self._tools.style.end
    if self._tools.forced or opens:
      return 0
    place = self._text.find(begin)
    if place < 0:
      begun = (n for n in range(1, len(begin)) if self._text.endswith(begin[:n]))
      place = len(self._text) - max(begun, default=0)
    return len(self._text[:place].rstrip())  # the space before a call is not the text's


def parse(text: str, tools: Tools) -> tuple[str, list[dict[str, Any]]]:
  """(the text before the calls, the calls in OpenAI's form), or (text, []) where it has none.

  A special token is no part of an answer's text, so that a call may stand without its mark.
  """
  style = tools.style
  said, mark, rest = text.partition(style.begin)
  if not mark:
    bare = tools.forced or (not style.end and text.lstrip()[:1] in ("{", "["))
    said, rest = ("", text) if bare else (text, "")
  if style.end:
    rest = rest.replace(style.begin, " ").replace(style.end, " ")
  try:
    calls = [_called(value, tools) for value in _values(rest)] if tools.offered else []
  except (ValueError, RecursionError):  # lists may lie in lists without end
    return text, []
  return (said.rstrip(), calls) if calls else (text, [])


def _values(text: str) -> Iterator[Any]:
  """JSON values that stand one after the other, or in lists."""
  place, decoder = 0, json.JSONDecoder()
  while (place := place + len(text[place:]) - len(text[place:].lstrip(" \n\t;,"))) < len(text):
    value, place = decoder.raw_decode(text, place)
    yield from value if isinstance(value, list) else [value]


def _called(value: Any, tools: Tools) -> dict[str, Any]:
  arguments = value.get(tools.style.arguments) if isinstance(value, dict) else None
  if not isinstance(arguments, dict) or value.get("name") not in tools.names:
    raise ValueError
  function = {"name": value["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
  return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
