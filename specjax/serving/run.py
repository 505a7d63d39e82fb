"""`specjax serve`: the application on a port, until Ctrl-C or SIGTERM."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import uvicorn

from specjax import checks
from specjax.serving.access import access
from specjax.serving.app import app, model_name
from specjax.serving.engine import Engine

GRACE = 10.0  # seconds that answers have to end when the server does
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Uvicorn(uvicorn.Server):
  """A server that cuts the answers which have not ended in time when it ends."""

  def __init__(self, config: uvicorn.Config, engine: Engine, grace: float = GRACE):
    super().__init__(config)
    self.engine, self.grace = engine, grace

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    """Waits for the answers, and cuts them when the time is over."""
    cut = asyncio.get_running_loop().call_later(self.grace, self.engine.cut)
    await super().shutdown(sockets)
    cut.cancel()


def configured(
  engine: Engine, seconds: float, key: str | None = None, origins: Sequence[str] = ()
) -> uvicorn.Config:
  """How the application runs: quietly, and without telling who serves it."""
  return uvicorn.Config(
    app(engine, seconds, key, origins),
    log_level="warning",
    access_log=False,
    server_header=False,
    lifespan="off",
    ws="none",
    timeout_graceful_shutdown=round(GRACE) + 20,
  )


def bound(host: str, port: int) -> socket.socket:
  """A socket of this address; ValueError where there is none, or it is taken."""
  checks.text("host", host)
  checks.whole("port", port, 0, 65535, "0 is any that is free")
  try:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=1024)
  except OSError as error:
    raise ValueError(
      f"`host` and `port` must be a free address of this machine, got {host!r} and {port} "
      f"({error.strerror or error})."
    ) from None
  except UnicodeError:
    checks.refuse("host", host, "the name or address of this machine")


def warm(engine: Engine) -> None:
  """Compiles all that the engine will run."""
  for ids, budget in engine.half.examples:
    engine.submit(ids, budget).wait()


def serve(
  make: Callable[[], Engine],
  host: str,
  port: int,
  seconds: float,
  key: str | None = None,
  origins: Sequence[str] = (),
) -> None:
  """Serves what `make` makes; returns after Ctrl-C or SIGTERM.

  Raises:
    ValueError: an address or a time that is not accepted, or what `make` and `app` refuse.
  """
  checks.number("seconds", seconds, above=0)
  access(key, origins)  # before a model is loaded
  place = bound(host, port)
  before = {kind: signal.signal(kind, lambda *_: sys.exit(0)) for kind in SIGNALS}
  try:
    with place, make() as engine:
      config = configured(engine, seconds, key, origins)
      warm(engine)
      # uvicorn raises the signal that ended it once more, which must not end the process then.
      for kind in SIGNALS:
        signal.signal(kind, lambda *_: None)
      shown = f"[{host}]" if ":" in host else host
      print(
        f"{model_name(engine)} at http://{shown}:{place.getsockname()[1]}/v1, with "
        f"{' and '.join(engine.half.names.values())}",
        flush=True,
      )
      Uvicorn(config, engine).run(sockets=[place])
  finally:
    for kind, handler in before.items():
      signal.signal(kind, handler)
