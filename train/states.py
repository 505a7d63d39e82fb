"""Gives the hidden states of a target to trainers of heads on other machines.

    python -m specjax.train.states --model smollm2-135m --host 0.0.0.0 --port 8100
    python -m specjax.train.heads --model smollm2-135m --states-from HOST:8100 \\
        --data questions.jsonl --out runs/eagle3 eagle3

States are computed when a trainer asks for them, a few batches before it trains on them, and none
are kept; `recipe.remote_states` has the protocol. It has no password: listen where only trainers
are. Several trainers may ask at a time.
"""

import contextlib
import dataclasses
import queue
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from specjax import checks, distributed, switches
from specjax.cli.arguments import Dtype
from specjax.data.packing import PackedRows
from specjax.models import sharding
from specjax.names.load import Model, load
from specjax.train.recipe import forward, options
from specjax.train.recipe.config import Bounds, check
from specjax.train.recipe.remote_states import VERSION, key_of, receive, send


@dataclasses.dataclass(frozen=True)
class Config:
  """A target that gives its states.

  Attributes:
    model: zoo name or directory of the target, as in the training of the head.
    dtype: of its weights and states, as in the training of the head.
    host: address to listen at; 0.0.0.0 is every one of this machine.
    port: to listen at; 0 takes any free port.
    mesh: devices over which the rows of a batch and the target are spread, as data=2,model=4.
  """

  model: str
  dtype: Dtype = "float32"
  host: str = "127.0.0.1"
  port: Annotated[int, Bounds(0, 65535)] = 8100
  mesh: str | None = None


@switches.hold
class States(socketserver.ThreadingTCPServer):
  """The server; OSError where it cannot listen at the place."""

  allow_reuse_address, daemon_threads = True, True

  def __init__(self, place: tuple[str, int], model: Model, mesh: Mesh | None = None):
    self.model, self.key, self._mesh = model, key_of(model), mesh
    self._programs: dict[tuple[int, ...], Callable[..., Any]] = {}
    self._alone = threading.Lock()
    with self._on_mesh():
      self._params = model.spread().params
    super().__init__(place, _Trainer)

  def _on_mesh(self) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)

  def read(self, layers: tuple[int, ...], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The last states and those of some layers, [B, T, E], of tokens, positions and segments."""
    if len({x.shape for x in arrays}) != 1 or len(arrays) != 3 or arrays[0].ndim != 2:
      raise ValueError("a batch must be tokens, positions and segments i32[B, T].")
    tokens, position, segment = arrays
    rows = PackedRows(tokens, position, segment, np.zeros(tokens.shape, bool))
    with self._alone, self._on_mesh():
      if layers not in self._programs:
        dtype = jnp.dtype(self.model.dtype)
        self._programs[layers] = forward.reader(self.model.config, layers, dtype)
      return distributed.fetch(self._programs[layers](self._params, sharding.dealt(rows)))


class _Trainer(socketserver.BaseRequestHandler):
  """A trainer's connection."""

  server: States

  def handle(self) -> None:
    who = "{}:{}".format(*self.client_address[:2])
    try:
      self._serve(who)
    except ValueError as error:
      print(f"{who} is sent away: {error}", file=sys.stderr)
      with contextlib.suppress(OSError):
        send(self.request, {"error": str(error)})
    except (OSError, LookupError, TypeError) as error:
      print(f"{who} is gone: {error}", file=sys.stderr)

  def _serve(self, who: str) -> None:
    said, _ = receive(self.request)
    if said.get("version") != VERSION:
      raise ValueError(f"`version` must be {VERSION}, got {said.get('version')}: update specjax.")
    most = self.server.model.config.layers
    layers = tuple(checks.whole("layers", i, 0, most) for i in said["layers"])
    send(self.request, {"holds": self.server.key})
    asked: queue.SimpleQueue[list[np.ndarray] | None] = queue.SimpleQueue()

    def listen() -> None:
      """Reads on while states are sent, or both sides might wait for each other."""
      with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        while True:
          asked.put(receive(self.request)[1])
      asked.put(None)

    threading.Thread(target=listen, daemon=True).start()
    begun, spent, count = time.perf_counter(), {"computing": 0.0, "sending": 0.0}, 0
    while (arrays := asked.get()) is not None:
      start = time.perf_counter()
      states = self.server.read(layers, arrays)
      read = time.perf_counter()
      send(self.request, {}, states)
      spent["computing"] += read - start
      spent["sending"] += time.perf_counter() - read
      count += 1
    if count:
      spent["waiting for it"] = time.perf_counter() - begun - sum(spent.values())
      times = ", ".join(f"{seconds:.1f} s {what}" for what, seconds in spent.items())
      print(f"{who} got {count} batches of layers {layers}: {times}.", flush=True)


def main(config: Config) -> None:
  """Gives states until it is interrupted."""
  check(config)
  mesh = None if config.mesh is None else sharding.named_mesh(config.mesh)
  model = load(config.model, config.dtype, weights="float")
  if not model.config.causal:
    raise ValueError(f"`model` must be causal, got the masked diffusion model {config.model!r}.")
  with States((config.host, config.port), model, mesh) as server:
    print(f"{model.label} gives states at {config.host}:{server.server_address[1]}.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
      server.serve_forever()


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.states"))
