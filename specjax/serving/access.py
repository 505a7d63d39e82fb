"""Who may ask: a key that clients must have, and the pages that may ask from a browser."""

import secrets
from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specjax import checks
from specjax.serving.fields import Refused

OPEN = ("/health", "/metrics")  # for the programs that watch a server


class Keyed:
  """Refuses requests without the key, as OpenAI does; a key is sent as `Authorization: Bearer`."""

  def __init__(self, app: ASGIApp, key: str):
    self._app, self._header = app, f"Bearer {key}".encode()

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" and scope["path"] not in OPEN:
      given = HTTPConnection(scope).headers.get("authorization", "").encode()
      if not secrets.compare_digest(given, self._header):
        error = Refused(401, "the request has no key, or a wrong one.", code="invalid_api_key")
        await JSONResponse(error.body, error.status)(scope, receive, send)
        return
    await self._app(scope, receive, send)


def access(key: str | None, origins: Sequence[str]) -> list[Middleware]:
  """What stands before the endpoints.

  Args:
    key: None asks for none.
    origins: such as https://example.org, whose pages may ask; * is all.

  Raises:
    ValueError: a key that no header can hold, or no origin.
  """
  found = []
  for i, origin in enumerate(origins):
    if checks.text(f"origins[{i}]", origin) != "*" and "://" not in origin:
      checks.refuse(f"origins[{i}]", origin, "*, or an origin such as https://example.org")
  if origins:  # outside, for a browser asks without a key whether it may ask
    every = ["*"]
    found.append(
      Middleware(
        CORSMiddleware, allow_origins=list(origins), allow_methods=every, allow_headers=every
      )
    )
  if key is not None:
    if not key or not checks.text("key", key).isascii() or not key.isprintable() or " " in key:
      checks.refuse("key", key, "text of printable ASCII without spaces")
    found.append(Middleware(Keyed, key=key))
  return found
