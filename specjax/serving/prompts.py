"""The ids of what a client wants to be answered: messages, or prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax import checks
from specjax.data.chat import EMPTY
from specjax.names.load import Model
from specjax.serving.tools import spoken

PROMPTS = 16  # of one request for completions
TEXTS = {"tool_call_id", "reasoning_content"}  # of a message, beside its content
KNOWN = TEXTS | {"role", "content", "name", "tool_calls"}


def of_chat(model: Model, messages: Any, values: Mapping[str, Any] = EMPTY) -> list[int]:
  """The ids of a conversation; `values` are for variables of the model's chat template.

  A message may have the name of who speaks, calls of tools, or the id of the call that it answers.
  """
  turns = []
  for i, message in enumerate(checks.sequence("messages", messages, "a list of messages")):
    if not isinstance(message, Mapping):
      checks.refuse(f"messages[{i}]", message, "an object with role and content")
    for key, value in message.items():
      if key not in KNOWN and value:
        checks.refuse(f"messages[{i}]", message, f"an object with role and content, not {key!r}")
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
      content = ""  # as beside calls of tools
    turn = {"role": message.get("role"), "content": _content(i, content)}
    for key in TEXTS & message.keys():
      turn[key] = checks.text(f"messages[{i}].{key}", message[key])
    if calls := message.get("tool_calls"):
      if "tool_calls" not in getattr(model.template, "source", ""):
        checks.refuse(f"messages[{i}].tool_calls", calls, "left out: the chat template has none")
      turn["tool_calls"] = spoken(calls, f"messages[{i}].tool_calls")
    if (name := message.get("name")) is not None:
      turn["name"] = checks.text(f"messages[{i}].name", name)
    turns.append(turn)
  if not turns:
    checks.refuse("messages", messages, "a list of one message or more")
  try:
    return model.chat(turns, **values)
  except ValueError as error:
    raise ValueError(str(error).replace("turns[", "messages[", 1)) from None


def _content(i: int, content: Any) -> str:
  """The text of a message, which may come in parts."""
  if isinstance(content, str):
    return content
  accepted = "text, or a list of parts of type text"
  parts = checks.sequence(f"messages[{i}].content", content, accepted)
  for part in parts:
    if not isinstance(part, Mapping) or part.get("type") != "text":
      checks.refuse(f"messages[{i}].content", part, accepted)
  return "".join(checks.text(f"messages[{i}].content", part.get("text")) for part in parts)


def of_prompts(model: Model, given: Any) -> list[list[int]]:
  """The ids of one prompt, text or ids, or of a list of prompts."""
  if isinstance(given, str):
    return [model.encode(given)]
  accepted = f"text, ids, or a list of 1 to {PROMPTS} of these"
  held = checks.sequence("prompt", given, accepted)
  if held and all(isinstance(x, int) for x in held):
    return [model.encode(held)]
  if not 1 <= len(held) <= PROMPTS or not all(isinstance(x, str | Sequence) for x in held):
    checks.refuse("prompt", given, accepted)
  return [model.encode(x) for x in held]
