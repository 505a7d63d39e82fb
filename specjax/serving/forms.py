"""How answers are written in OpenAI's protocol: chats and completions, whole or as events."""

import abc
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from specjax.serving.answers import Answers, Piece
from specjax.serving.fields import Asked, Refused

Object = dict[str, Any]


def event(data: Object, name: str = "") -> bytes:
  """One event of a stream."""
  head = f"event: {name}\n".encode() if name else b""
  return head + b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


class Form(abc.ABC):
  """How the answers to one request are written.

  Args:
    model: its name.
    asked: the request.
  """

  def __init__(self, model: str, asked: Asked):
    self.model, self.asked = model, asked

  @abc.abstractmethod
  async def whole(self, answers: Answers) -> Object:
    """All answers, once they have ended."""

  @abc.abstractmethod
  def events(self, answers: Answers) -> AsyncIterator[bytes]:
    """A stream; where it must break off, its last event is the error."""


class Choices(Form):
  """Several answers to a request, as chats and completions have them."""

  kind: str
  part: str  # of an event
  name: str

  def __init__(self, model: str, asked: Asked):
    super().__init__(model, asked)
    name = f"{self.name}-{secrets.token_hex(12)}"
    self._whole = {"id": name, "object": self.kind, "created": int(time.time()), "model": model}
    self._chunk = self._whole | {"object": self.part}

  @abc.abstractmethod
  def said(self, text: str, calls: Sequence[Object]) -> Object:
    """What a choice has of a whole answer."""

  @abc.abstractmethod
  def first(self, index: int, beginning: str) -> list[Object]:
    """The events before an answer that has this beginning."""

  @abc.abstractmethod
  def parts(self, piece: Piece, calls: Sequence[Object], logprobs: Any) -> list[Object]:
    """The events that a piece, and its calls of tools, make."""

  async def whole(self, answers: Answers) -> Object:
    texts = [*answers.beginnings]
    calls: list[list[Object]] = [[] for _ in texts]
    reasons = list[str | None]([None] * len(texts))
    async for (index, text, reason), called in answers.spoken():
      texts[index] += text
      calls[index] += called
      reasons[index] = reason
    logprobs, kept = await run_in_threadpool(lambda: (answers.logprobs(), answers.best()))
    choices = [
      {
        "index": i, **self.said(texts[j], calls[j]), "logprobs": logprobs[j],
        "finish_reason": reasons[j],
      }
      for i, j in enumerate(kept)
    ]  # fmt: skip
    return self._whole | {"choices": choices, "usage": answers.usage}

  def chunk(self, index: int, said: Object, reason: str | None = None, logprobs: Any = None):
    """An event."""
    choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}
    return self._chunk | {"choices": [choice]}

  async def events(self, answers: Answers) -> AsyncIterator[bytes]:
    try:
      for i, beginning in enumerate(answers.beginnings):
        for part in self.first(i, beginning):
          yield event(part)
      async for piece, calls in answers.spoken():
        logprobs = await run_in_threadpool(answers.more_logprobs, piece.answer)
        if parts := self.parts(piece, calls, logprobs):
          yield b"".join(map(event, parts))
      if self.asked.usage:
        yield event(self._chunk | {"choices": [], "usage": answers.usage})
      yield b"data: [DONE]\n\n"
    except Refused as error:
      yield event(error.body)


class Chat(Choices):
  """Messages of an assistant."""

  kind, part, name = "chat.completion", "chat.completion.chunk", "chatcmpl"

  def said(self, text: str, calls: Sequence[Object]) -> Object:
    message: Object = {"role": "assistant", "content": text}
    if calls:
      message |= {"content": text or None, "tool_calls": calls}
    return {"message": message}

  def first(self, index: int, beginning: str) -> list[Object]:
    return [self.chunk(index, {"delta": {"role": "assistant", "content": ""}})]

  def parts(self, piece: Piece, calls: Sequence[Object], logprobs: Any) -> list[Object]:
    index, text, reason = piece
    parts = []
    if text or logprobs:
      parts.append(self.chunk(index, {"delta": {"content": text}}, logprobs=logprobs))
    if calls:
      numbered = [{"index": i, **call} for i, call in enumerate(calls)]
      parts.append(self.chunk(index, {"delta": {"tool_calls": numbered}}))
    return parts if reason is None else [*parts, self.chunk(index, {"delta": {}}, reason)]


class Completion(Choices):
  """Texts that go on from a prompt."""

  kind, part, name = "text_completion", "text_completion", "cmpl"

  def said(self, text: str, calls: Sequence[Object]) -> Object:
    return {"text": text}

  def first(self, index: int, beginning: str) -> list[Object]:
    return [self.chunk(index, {"text": beginning})] if beginning else []

  def parts(self, piece: Piece, calls: Sequence[Object], logprobs: Any) -> list[Object]:
    return [self.chunk(piece.answer, {"text": piece.text}, piece.reason, logprobs)]
