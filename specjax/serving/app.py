"""The web application: OpenAI's endpoints over an engine.

It reads no file and loads nothing that a client names. It encrypts nothing: where others than this
machine's users can reach it, a proxy must.
"""

import asyncio
import contextlib
import functools
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from specjax.serving.access import access
from specjax.serving.answers import Answers
from specjax.serving.engine import Engine
from specjax.serving.fields import Asked, Refused, read
from specjax.serving.forms import Chat, Completion, Form
from specjax.serving.metrics import Metrics
from specjax.serving.responses import ResponseForm
from specjax.serving.responses import read as read_response
from specjax.serving.tokens import detokenize, tokenize

Tokens = Callable[[Engine, str, bytes], dict[str, Any]]
Asking = Callable[[Engine, str, bytes], Asked]

GONE = 499  # the status of an answer that nobody waits for


def model_name(engine: Engine) -> str:
  """What clients call the model: the last part of its name or path."""
  return pathlib.PurePath(engine.decoder.model.name).name


class Server:
  """The endpoints.

  Args:
    engine: answers.
    seconds: the time limit of an answer, waiting included.
  """

  def __init__(self, engine: Engine, seconds: float = 300.0):
    self.engine, self.seconds, self.name = engine, seconds, model_name(engine)
    self.counts = Metrics(engine)
    self.created = int(time.time())
    # A token has a few bytes, and JSON may write each as six characters.
    self.most_bytes = 2**16 + 64 * engine.max_length

  async def health(self, request: Request) -> Response:
    """How many requests hold a row and wait; 503 when no more are taken."""
    running, waiting = self.engine.load
    ok = not self.engine.closed
    state = {"status": "ok" if ok else "closed", "running": running, "waiting": waiting}
    return JSONResponse(state, 200 if ok else 503)

  async def metrics(self, request: Request) -> Response:
    """What Prometheus scrapes."""
    return Response(self.counts.text(), media_type=CONTENT_TYPE_LATEST)

  async def tokens(self, request: Request, read: Tokens) -> Response:
    """A text to its ids, or ids to their text."""
    try:
      body = await self._body(request)
    except (ClientDisconnect, TimeoutError):
      return Response(status_code=GONE)
    return JSONResponse(await run_in_threadpool(read, self.engine, self.name, body))

  def _card(self) -> dict[str, Any]:
    return {
      "id": self.name, "object": "model", "created": self.created, "owned_by": "specjax",
      "max_length": self.engine.max_length,
    }  # fmt: skip

  async def models(self, request: Request) -> Response:
    """The one model."""
    return JSONResponse({"object": "list", "data": [self._card()]})

  async def model(self, request: Request) -> Response:
    """The one model, by its name."""
    if request.path_params["name"] != self.name:
      raise Refused(404, f"the model here is {self.name!r}.", code="model_not_found")
    return JSONResponse(self._card())

  async def _body(self, request: Request) -> bytes:
    held = bytearray()
    async with asyncio.timeout(self.seconds):
      async for part in request.stream():
        held += part
        if len(held) > self.most_bytes:
          raise Refused(413, f"the request has more than {self.most_bytes} bytes.")
    return bytes(held)

  async def answer(self, request: Request, asking: Asking, kind: type[Form]) -> Response:
    """What `asking` reads, in the form of its kind, whole or as a stream of events."""
    try:
      body = await self._body(request)
    except (ClientDisconnect, TimeoutError):
      return Response(status_code=GONE)
    # A long prompt takes a while to read, in which others are answered.
    asked = await run_in_threadpool(asking, self.engine, self.name, body)
    answers = Answers(self.engine, asked, self.seconds)
    form = kind(self.name, asked)
    if asked.stream:
      return _Stream(answers, form.events(answers))
    whole = asyncio.ensure_future(form.whole(answers))
    gone = asyncio.ensure_future(_until_gone(request))
    try:
      await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
      return JSONResponse(whole.result()) if whole.done() else Response(status_code=GONE)
    finally:
      whole.cancel()
      gone.cancel()
      answers.cancel()


async def _until_gone(request: Request) -> None:
  """Returns when the client has hung up."""
  while (await request.receive())["type"] != "http.disconnect":
    pass


class _Stream(StreamingResponse):
  """Events; whoever hangs up gives the answers up, also before the first event."""

  def __init__(self, answers: Answers, events: AsyncIterator[bytes]):
    super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
    self._answers = answers

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    try:
      with contextlib.suppress(ClientDisconnect):
        await super().__call__(scope, receive, send)
    finally:
      self._answers.cancel()


async def _refused(request: Request, error: Exception) -> Response:
  """Errors in OpenAI's form."""
  if isinstance(error, HTTPException):
    error = Refused(error.status_code, f"{request.method} {request.url.path}: {error.detail}.")
  if not isinstance(error, Refused):
    error = Refused(500, f"the server failed ({type(error).__name__}).", "server_error")
  request.app.state.counts.refused.labels(error.status).inc()
  headers = {"Retry-After": "1"} if error.status == 429 else None
  return JSONResponse(error.body, error.status, headers)


def app(
  engine: Engine, seconds: float = 300.0, key: str | None = None, origins: Sequence[str] = ()
) -> Starlette:
  """The application; see `Server` and `access`. Whoever made the engine closes it.

  Raises:
    ValueError: the engine's model has no tokenizer.
  """
  model = engine.decoder.model
  if model.tokenizer is None:
    raise ValueError(f"`model` must have a tokenizer to be served, got {model.name!r}.")
  server = Server(engine, seconds)
  routes = [
    Route("/health", server.health),
    Route("/metrics", server.metrics),
    Route("/v1/models", server.models),
    Route("/v1/models/{name:path}", server.model),
  ]
  answered: list[tuple[str, Asking, type[Form]]] = [
    ("/v1/chat/completions", functools.partial(read, chat=True), Chat),
    ("/v1/completions", functools.partial(read, chat=False), Completion),
    ("/v1/responses", read_response, ResponseForm),
  ]
  for path, asking, kind in answered:
    endpoint = functools.partial(server.answer, asking=asking, kind=kind)
    routes.append(Route(path, endpoint, methods=["POST"]))
  for path, read_tokens in (("/tokenize", tokenize), ("/detokenize", detokenize)):
    endpoint = functools.partial(server.tokens, read=read_tokens)
    routes.append(Route(path, endpoint, methods=["POST"]))
  web = Starlette(
    routes=routes,
    middleware=access(key, origins),
    exception_handlers={Refused: _refused, HTTPException: _refused, Exception: _refused},
  )
  web.state.counts = server.counts
  return web
