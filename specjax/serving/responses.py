"""OpenAI's responses, in the form that keeps nothing: input, one answer, and its typed events."""

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from specjax import checks
from specjax.serving.answers import Answers
from specjax.serving.engine import Engine
from specjax.serving.fields import SAMPLING, Asked, Refused, of_chat_fields, of_json
from specjax.serving.forms import Form, Object, event

# Fields that a chat has under the same name.
SHARED = SAMPLING | {"model", "stream", "top_logprobs", "user", "metadata", "service_tier",
                     "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                     "parallel_tool_calls"}  # fmt: skip
OWN = {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "include"}
# What asks a server to remember, or to work behind the client's back, unless it has this value.
STATE: dict[str, Any] = {
  "store": False, "background": False, "previous_response_id": None, "conversation": None,
  "prompt": None,
}  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {
  "truncation": ("disabled",), "reasoning": ({},), "stream_options": ({},),
}  # fmt: skip
LOGPROBS = "message.output_text.logprobs"


def read(engine: Engine, name: str, body: bytes) -> Asked:
  """The request in a body of JSON, to the model of this name.

  Raises:
    Refused: a field or value that is not accepted.
  """
  return of_json(body, lambda given: of_chat_fields(engine, name, _as_chat(given)), _RENAMED)


_RENAMED = (
  ("`messages`", "`input`"), ("messages[", "input["),
  ("max_completion_tokens", "max_output_tokens"),
)  # fmt: skip


def _as_chat(given: Mapping[str, Any]) -> Object:
  """The request for a chat that asks for the same."""
  chat: Object = {}
  for field, value in given.items():
    if field in STATE:
      if value != STATE[field]:
        checks.refuse(field, value, "left out: nothing is kept here between requests")
    elif field in NEUTRAL:
      if value not in NEUTRAL[field]:
        checks.refuse(field, value, f"{NEUTRAL[field][0]!r}, or left out")
    elif field in SHARED:
      chat[field] = value
    elif field not in OWN:
      checks.refuse("field", field, f"one of {', '.join(sorted(SHARED | OWN))}")
  if "input" not in given:
    raise ValueError("the request lacks 'input'.")
  chat["messages"] = _messages(given["input"], given.get("instructions"))
  if "max_output_tokens" in given:
    chat["max_completion_tokens"] = given["max_output_tokens"]
  if "tools" in given:
    accepted = "a list of functions"
    chat["tools"] = [_tool(x) for x in checks.sequence("tools", given["tools"], accepted)]
  choice = given.get("tool_choice", "auto")
  named = isinstance(choice, Mapping) and choice.get("type") == "function"
  chat["tool_choice"] = (
    {"type": "function", "function": {"name": choice.get("name")}} if named else choice
  )
  text = given.get("text", {})
  if not isinstance(text, Mapping) or text.keys() - {"format", "verbosity"}:
    checks.refuse("text", text, "an object with a format")
  if form := text.get("format"):
    chat["response_format"] = _format(form)
  include = checks.sequence("include", given.get("include", []), f"a list of {LOGPROBS!r}")
  if any(x != LOGPROBS for x in include):
    checks.refuse("include", include, f"a list of {LOGPROBS!r}")
  if include or given.get("top_logprobs"):
    chat["logprobs"] = True
  return chat


def _format(form: Any) -> Any:
  """The `response_format` of a `text.format`, whose schema is not in an object of its own."""
  if isinstance(form, Mapping) and form.get("type") == "json_schema":
    return {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}
  return form


def _tool(tool: Any) -> Any:
  if isinstance(tool, Mapping) and tool.get("type") == "function":
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
  return tool


def _messages(given: Any, instructions: Any) -> list[Object]:
  """The messages of a chat."""
  found: list[Object] = []
  if instructions is not None:
    told = checks.text("instructions", instructions)
    found.append({"role": "system", "content": told})
  if isinstance(given, str):
    return [*found, {"role": "user", "content": given}]
  accepted = "text, or a list of messages, calls of functions and their results"
  for i, item in enumerate(checks.sequence("input", given, accepted)):
    if not isinstance(item, Mapping):
      checks.refuse(f"input[{i}]", item, "an object")
    match item.get("type", "message"):
      case "message":
        content = item.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
          content = [_part(i, part) for part in content]
        found.append({"role": item.get("role"), "content": content})
      case "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
      case "function_call_output":
        own = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
        found.append({"role": "tool", **own})
      case kind:
        checks.refuse(f"input[{i}].type", kind, "message, function_call or function_call_output")
  return found


def _part(i: int, part: Any) -> Any:
  if not isinstance(part, Mapping) or part.get("type") not in ("input_text", "output_text", "text"):
    checks.refuse(f"input[{i}].content", part, "text, or a list of parts of type input_text")
  return {"type": "text", "text": part.get("text")}


def _of(kind: str) -> str:
  return f"{kind}_{secrets.token_hex(12)}"


class ResponseForm(Form):
  """One answer as a response: a message, or calls of functions."""

  def __init__(self, model: str, asked: Asked):
    super().__init__(model, asked)
    settings, tools = asked.settings, asked.tools
    self._number = 0
    self._said = _of("msg")
    self._body = {
      "id": _of("resp"), "object": "response", "created_at": int(time.time()), "model": model,
      "status": "in_progress", "output": [], "error": None, "incomplete_details": None,
      "instructions": None, "metadata": {}, "parallel_tool_calls": True,
      "temperature": settings["temperature"], "top_p": settings.get("top_p", 1.0),
      "max_output_tokens": asked.budgets[0], "previous_response_id": None, "store": False,
      "tool_choice": "required" if tools.forced else "auto",
      "tools": [{"type": "function", "strict": False, **x["function"]} for x in tools.offered],
      "text": {"format": {"type": "text"}}, "truncation": "disabled", "usage": None,
    }  # fmt: skip

  def _message(self, text: str, logprobs: Sequence[Object], status: str) -> Object:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}]
    return {
      "id": self._said, "type": "message", "role": "assistant", "status": status,
      "content": content if status != "in_progress" else [],
    }  # fmt: skip

  def _ended(self, output: list[Object], reason: str | None, answers: Answers) -> Object:
    counts = answers.usage
    short = reason == "length"
    return self._body | {
      "output": output, "status": "incomplete" if short else "completed",
      "incomplete_details": {"reason": "max_output_tokens"} if short else None,
      "usage": {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"], "specjax": counts["specjax"],
      },
    }  # fmt: skip

  def _call(self, call: Object) -> Object:
    return {
      "id": _of("fc"), "type": "function_call", "status": "completed", "call_id": call["id"],
      **call["function"],
    }  # fmt: skip

  async def whole(self, answers: Answers) -> Object:
    text, calls, reason = "", list[Object](), None
    async for piece, called in answers.spoken():
      text, calls, reason = text + piece.text, [*calls, *called], piece.reason
    (logprobs,) = await run_in_threadpool(answers.logprobs)
    scored = [] if logprobs is None else logprobs["content"]
    status = "incomplete" if reason == "length" else "completed"
    output = [self._message(text, scored, status)] if text or not calls else []
    return self._ended([*output, *map(self._call, calls)], reason, answers)

  def _event(self, kind: str, **fields: Any) -> bytes:
    self._number += 1
    data = {"type": kind, "sequence_number": self._number - 1, **fields}
    return event(data, kind)

  async def events(self, answers: Answers) -> AsyncIterator[bytes]:
    text, scored, reason, output = "", list[Object](), None, list[Object]()
    begun = False
    place = {"item_id": self._said, "output_index": 0, "content_index": 0}
    try:
      for kind in ("response.created", "response.in_progress"):
        yield self._event(kind, response=self._body)
      async for piece, calls in answers.spoken():
        logprobs = await run_in_threadpool(answers.more_logprobs, 0)
        new = [] if logprobs is None else logprobs["content"]
        text, reason, scored = text + piece.text, piece.reason, [*scored, *new]
        ending = reason is not None and not calls
        if not begun and (piece.text or ending):
          begun = True
          item = self._message("", [], "in_progress")
          yield self._event("response.output_item.added", output_index=0, item=item)
          part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
          yield self._event("response.content_part.added", **place, part=part)
        if piece.text or new:
          yield self._event("response.output_text.delta", **place, delta=piece.text, logprobs=new)
        if reason is not None and begun:
          item = self._message(text, scored, "incomplete" if reason == "length" else "completed")
          output.append(item)
          yield self._event("response.output_text.done", **place, text=text, logprobs=scored)
          yield self._event("response.content_part.done", **place, part=item["content"][0])
          yield self._event("response.output_item.done", output_index=0, item=item)
        for call in map(self._call, calls):
          at = {"item_id": call["id"], "output_index": len(output)}
          empty = call | {"status": "in_progress", "arguments": ""}
          output.append(call)
          said = call["arguments"]
          index = at["output_index"]
          yield self._event("response.output_item.added", output_index=index, item=empty)
          yield self._event("response.function_call_arguments.delta", **at, delta=said)
          yield self._event(
            "response.function_call_arguments.done", **at, name=call["name"], arguments=said
          )
          yield self._event("response.output_item.done", output_index=index, item=call)
      ended = self._ended(output, reason, answers)
      yield self._event(f"response.{ended['status']}", response=ended)
    except Refused as error:
      code = error.code or error.kind
      yield self._event("error", code=code, message=error.sentence, param=error.field)
