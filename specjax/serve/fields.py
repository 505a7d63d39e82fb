"""What a client may ask for, in the fields of OpenAI's protocol.

A field that would change the text and is not known here is refused: an answer that quietly leaves
it out would be wrong.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specjax import checks, schema
from specjax.decoding.engine import Engine
from specjax.decoding.model import Model

PROMPTS = 16  # of one request for completions
STOP_WORDS = 16
COMPLETION = 16  # tokens of a completion that names no number, as at OpenAI

_COMMON = {"model", "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop",
           "stream", "stream_options", "max_tokens"}  # fmt: skip
CHAT = _COMMON | {"messages", "max_completion_tokens", "response_format"}
COMPLETIONS = _COMMON | {"prompt"}
# Fields that say who asks, or how; they change no text.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
           "prompt_cache_retention", "parallel_tool_calls", "prediction"}  # fmt: skip
# Fields that are accepted where their value asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
  "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False,), "suffix": ("",),
  "presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0), "logit_bias": ({},),
  "response_format": ({"type": "text"},), "modalities": (["text"],), "tools": ([],),
  "functions": ([],), "tool_choice": ("none", "auto"), "function_call": ("none", "auto"),
}  # fmt: skip


class Refused(Exception):
  """A request that is not answered.

  Attributes:
    status: of HTTP.
    sentence: what was wrong.
    kind, code, field: OpenAI's `type` and `code`, and the field at fault.
  """

  status: int
  sentence: str
  kind: str
  code: str | None
  field: str | None

  def __init__(
    self, status: int, sentence: str, kind: str = "invalid_request_error", code: str | None = None,
    field: str | None = None,
  ):  # fmt: skip
    super().__init__(sentence)
    self.status, self.sentence, self.kind, self.code, self.field = (
      status, sentence, kind, code, field,
    )  # fmt: skip

  @property
  def body(self) -> dict[str, Any]:
    """The error in OpenAI's form."""
    said = {"message": self.sentence, "type": self.kind, "param": self.field, "code": self.code}
    return {"error": said}


class Asked(NamedTuple):
  """A request that can be answered.

  Attributes:
    prompts: ids of each.
    budgets: new tokens of each.
    settings: keyword arguments of `Engine.submit`.
    stop_words: texts that end a text.
    stream: whether the text is sent as it comes.
    usage: whether a stream ends with its counts.
  """

  prompts: list[list[int]]
  budgets: list[int]
  settings: dict[str, Any]
  stop_words: tuple[str, ...]
  stream: bool
  usage: bool


def read(engine: Engine, name: str, body: bytes, chat: bool) -> Asked:
  """The request in a body of JSON, to the model of this name.

  Raises:
    Refused: a field or value that is not accepted.
  """
  raw = None
  try:
    raw = schema.parse(body, "the request")
    if not isinstance(raw, dict):
      checks.refuse("request", raw, "a JSON object")
    return _read(engine, name, {k: v for k, v in raw.items() if v is not None}, chat)
  except ValueError as error:
    words = str(error)
    field = words.partition("=")[0].partition("[")[0]
    known = isinstance(raw, dict) and field in raw
    raise Refused(400, words, field=field if known else None) from None


def _read(engine: Engine, name: str, given: dict[str, Any], chat: bool) -> Asked:
  known = CHAT if chat else COMPLETIONS
  for field, value in given.items():
    if field in known or field in IGNORED:
      continue
    accepted = NEUTRAL.get(field)
    if accepted is None:
      checks.refuse("field", field, f"one of {', '.join(sorted(known))}")
    if not any(value == x and type(value) is type(x) for x in accepted):
      checks.refuse(field, value, f"only {json.dumps(accepted[0])}")
  if "model" in given and given["model"] != name:
    sentence = f"model={checks.shown(given['model'])}: accepted is only {name!r}."
    raise Refused(404, sentence, code="model_not_found", field="model")
  needed = "messages" if chat else "prompt"
  if needed not in given:
    raise ValueError(f"the request lacks {needed!r}.")
  model = engine.decoder.model
  prompts = [_chat(model, given["messages"])] if chat else _prompts(model, given["prompt"])
  asked = given.get("max_completion_tokens", given.get("max_tokens"))
  budgets = [_budget(engine, len(ids), asked, chat) for ids in prompts]
  stop = given.get("stop", [])
  words = checks.texts("stop", [stop] if isinstance(stop, str) else stop)
  if len(words) > STOP_WORDS or max(map(len, words), default=0) > 256:
    checks.refuse("stop", stop, f"up to {STOP_WORDS} texts of up to 256 characters")
  options = given.get("stream_options", {})
  if not isinstance(options, Mapping) or options.keys() - {"include_usage", "include_obfuscation"}:
    checks.refuse("stream_options", options, "an object with include_usage")
  # As at OpenAI, a request that names no temperature is sampled, each time with other noise.
  settings: dict[str, Any] = {"temperature": 1.0, "seed": secrets.randbelow(checks.SEED + 1)}
  settings |= {
    k: given[k]
    for k in ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed")
    if k in given
  }
  if chat and (form := _form(given.get("response_format", {"type": "text"}))) is not None:
    settings["json_schema"] = form
  return Asked(
    prompts, budgets, settings, words, checks.boolean("stream", given.get("stream", False)),
    checks.boolean("include_usage", options.get("include_usage") or False),
  )  # fmt: skip


def _form(given: Any) -> Mapping[str, Any] | None:
  """The JSON Schema that an answer must follow, if any."""
  form = given if isinstance(given, Mapping) else {}
  match form.get("type"):
    case "text":
      return None
    case "json_object":
      return {"type": "object"}
    case "json_schema":
      inner = form.get("json_schema")
      # Nothing but an object: a text might name a file.
      if isinstance(inner, Mapping) and isinstance(inner.get("schema"), Mapping):
        return inner["schema"]
  return checks.refuse(
    "response_format", given, "an object of type text, json_object, or json_schema with its schema"
  )


def _budget(engine: Engine, length: int, asked: Any, chat: bool) -> int:
  """How many tokens may follow a prompt; a chat without a number goes on to the end."""
  room = engine.max_length - length
  budget = min(COMPLETION, room) if asked is None and not chat else room if asked is None else asked
  if asked is not None:
    checks.whole("max_tokens", asked, 1)
  if not 1 <= budget <= room:
    more = "" if asked is None else f" and max_tokens={asked}"
    sentence = f"the prompt has {length} tokens{more}: together at most {engine.max_length}."
    raise Refused(400, sentence, code="context_length_exceeded")
  return budget


def _chat(model: Model, messages: Any) -> list[int]:
  """The ids of a conversation."""
  turns = []
  for i, message in enumerate(checks.sequence("messages", messages, "a list of messages")):
    if not isinstance(message, Mapping):
      checks.refuse(f"messages[{i}]", message, "an object with role and content")
    for key, value in message.items():
      if key not in ("role", "content") and value:
        checks.refuse(f"messages[{i}]", message, f"an object with role and content, not {key!r}")
    turns.append({"role": message.get("role"), "content": _content(i, message.get("content"))})
  if not turns:
    checks.refuse("messages", messages, "a list of one message or more")
  return model.chat(turns)


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


def _prompts(model: Model, given: Any) -> list[list[int]]:
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
