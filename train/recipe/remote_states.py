"""Hidden states from a remote process that holds the target, see `specjax.train.states`.

A message is MAGIC, the length of a header as u32, the header in JSON, and the bytes of the arrays
that it names. A trainer first says which VERSION it speaks and which layers it reads, and is told
what the remote holds. Then it sends the tokens, positions and segments i32[B, T] of its batches in
the order of its steps, and gets their states [B, T, E], in the dtype of the run. It asks for AHEAD
batches at most beyond those that it has taken; neither side computes or keeps more.

Letters: B rows of a batch, T row length, E width.
"""

import collections
import contextlib
import itertools
import json
import math
import queue
import socket
import struct
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax.base import Features
from specjax.data.packing import PackedRows
from specjax.fingerprint import differences
from specjax.names.load import Model
from specjax.train.recipe.draft_positions import Batch, PositionSource

VERSION, MAGIC = 1, b"SJXS"
AHEAD = 4  # batches
WAITS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # seconds before the remote is asked again
LONGEST = 600.0  # seconds that the states of a batch may take
_HELLO = 20.0  # seconds in which a remote says what it holds
_DTYPES = ("int32", "float32", "float16", "bfloat16")
_MOST = 2**20, 2**36  # bytes of a header, and of an array


def send(link: socket.socket, header: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
  """Writes a message; OSError where nobody reads it."""
  text = json.dumps({**header, "arrays": [[x.dtype.name, *x.shape] for x in arrays]}).encode()
  link.sendall(MAGIC + struct.pack("<I", len(text)) + text)
  for x in arrays:
    link.sendall(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)


def receive(link: socket.socket) -> tuple[dict[str, Any], list[np.ndarray]]:
  """Reads a message; OSError where none comes, ValueError where something else comes."""
  begin = bytes(_exactly(link, np.empty(8, np.uint8)))
  (size,) = struct.unpack("<I", begin[4:])
  if begin[:4] != MAGIC or size > _MOST[0]:
    raise ValueError("it speaks another protocol")
  header = json.loads(bytes(_exactly(link, np.empty(size, np.uint8))))
  arrays = []
  for name, *shape in header["arrays"]:
    if name not in _DTYPES or min(shape) < 1 or 4 * math.prod(shape) > _MOST[1]:
      raise ValueError(f"it sends an array {name}{shape}")
    arrays.append(x := np.empty(shape, jnp.dtype(name)))
    _exactly(link, x.reshape(-1).view(np.uint8))
  return header, arrays


def _exactly(link: socket.socket, sink: np.ndarray) -> np.ndarray:
  """Fills an array u8[N] in place."""
  left = sink.data
  while left:
    if not (count := link.recv_into(left)):
      raise ConnectionError("the connection was closed")
    left = left[count:]
  return sink


def key_of(model: Model) -> dict[str, Any]:
  """What a model's states depend on."""
  found = model.ingredients()
  own = {k: x for k, x in found.items() if k.startswith("model.config.")}
  return own | {"weights": found["model.weights"], "dtype": jnp.dtype(model.dtype).name}


class Remote:
  """The remote process of an address HOST:PORT, for a trainer that reads some layers of `model`.

  Raises:
    ValueError: it is no address, no such process is there, or it holds another target.
  """

  def __init__(self, address: str, model: Model, layers: Sequence[int]):
    self.address, self.layers, self._key = address, [*layers], key_of(model)
    self._width = model.config.width
    try:
      parts = urllib.parse.urlsplit(f"//{address}")
      self._place = parts.hostname, parts.port
    except ValueError:
      self._place = None, None
    if not all(self._place) or parts.path:
      checks.refuse("states_from", address, "HOST:PORT of `python -m specjax.train.states`")
    try:
      self.connected().close()
    except OSError as error:
      self.refuse(f"must be a process that gives states: {_reason(error)}.")

  def refuse(self, what: str) -> NoReturn:
    raise ValueError(f"states_from={self.address!r} {what}")

  def connected(self) -> socket.socket:
    """A connection to the remote, which holds this target; OSError where it is not there."""
    link = socket.create_connection(self._place, _HELLO)  # type: ignore[arg-type]  # checked above
    with contextlib.ExitStack() as failed:
      failed.callback(link.close)
      link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
      send(link, {"version": VERSION, "layers": self.layers})
      said, _ = self.received(link)
      changed = differences(said.get("holds") or {}, self._key)
      if changed:
        self.refuse(f"must hold this run's target, got one with {changed}.")
      link.settimeout(LONGEST)
      failed.pop_all()
    return link

  def received(self, link: socket.socket) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A message of the remote; ValueError where it is none, or says what is wrong."""
    try:
      said, arrays = receive(link)
    except (ValueError, LookupError, TypeError) as error:
      self.refuse(f"must be a process that gives states: {_reason(error)}.")
    if "error" in said:
      self.refuse(f"says: {said['error']}")
    return said, arrays

  def features(self, link: socket.socket, batch: Batch) -> Features:
    """The states that come next, which must be those of a batch."""
    _, (hidden, *layers) = self.received(link)
    shape, dtype = (*batch.examples.tokens.shape, self._width), self._key["dtype"]
    got = [(x.shape, x.dtype.name) for x in (hidden, *layers)]
    if got != [(shape, dtype)] * (1 + len(self.layers)):
      self.refuse("gives states of another shape than it was asked for.")
    return Features(hidden, tuple(layers))  # type: ignore[arg-type]  # numpy until it is on the device

  def filled(self, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Batches with their features, in order; see `_Asking` for what happens meanwhile.

    Raises:
      ValueError: the remote does not answer after all of WAITS, or holds another target now.
    """
    asking = _Asking(self, iter(batches))
    threading.Thread(target=asking.run, daemon=True).start()  # does not hold up an end
    try:
      while (found := asking.found.get()) is not None:
        if isinstance(found, Exception):
          raise found
        asking.room.release()
        yield found
    finally:
      asking.end()


class _Asking:
  """A thread's asking for batches in order. Those that were asked for and not taken are counted by
  `room`; where the connection breaks, they are asked for again."""

  def __init__(self, remote: Remote, batches: Iterator[Batch]):
    self._remote, self._batches = remote, batches
    self.room, self._ended = threading.Semaphore(AHEAD), threading.Event()
    self.found: queue.SimpleQueue[Batch | Exception | None] = queue.SimpleQueue()
    self._link: socket.socket | None = None
    self._sent = 0  # of those that are asked for, on this connection

  def run(self) -> None:
    asked: collections.deque[Batch] = collections.deque()
    left = True
    try:
      while True:
        while left and self.room.acquire(blocking=not asked):
          batch = None if self._ended.is_set() else next(self._batches, None)
          if left := batch is not None:
            asked.append(batch)
        if not asked or self._ended.is_set():
          break
        features = self._first(asked)
        batch = asked.popleft()
        self.found.put(batch._replace(examples=batch.examples._replace(features=features)))
      self.found.put(None)
    except Exception as error:
      self.found.put(error)
    finally:
      self._close()

  def end(self) -> None:
    """Lets the thread go, wherever it is."""
    self._ended.set()
    self.room.release()
    if link := self._link:
      with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)

  def _close(self) -> None:
    if self._link is not None:
      self._link.close()
    self._link = None

  def _first(self, asked: collections.deque[Batch]) -> Features:
    """The states of the first batch, once the others are asked for, too."""
    lost = False
    for seconds in (*WAITS, None):
      try:
        if self._link is None:
          self._link, self._sent = self._remote.connected(), 0
        for batch in itertools.islice(asked, self._sent, None):
          x = batch.examples
          send(self._link, {}, [np.asarray(y, np.int32) for y in (x.tokens, x.position, x.segment)])
          self._sent += 1
        features = self._remote.features(self._link, asked[0])
        self._sent -= 1
        if lost:
          print(f"{self._remote.address} gives states again.", file=sys.stderr)
        return features
      except OSError as error:
        reason, lost = _reason(error), True
        self._close()
      if seconds is None or self._ended.is_set():
        break
      print(
        f"{self._remote.address} gives no states ({reason}): it is asked again in {seconds:g} s.",
        file=sys.stderr,
      )
      self._ended.wait(seconds)
    self._remote.refuse(
      f"gives no states after {len(WAITS) + 1} tries ({reason}): what is saved is kept, and the "
      "same command continues."
    )


class RemoteSource(PositionSource):
  """Batches whose states a remote gives."""

  def __init__(self, rows: PackedRows, remote: Remote, depth: int, points: int, seed: int):
    super().__init__(rows, None, depth, points, seed)
    self._remote = remote

  def stepped(self, order: Callable[[int], np.ndarray], steps: int) -> Callable[[int], Batch]:
    plain = super().stepped(order, steps)
    coming: Iterator[Batch] = iter(())
    after = -1

    def batch(step: int) -> Batch:
      nonlocal coming, after
      if step != after:  # the first step that this process takes
        coming = self._remote.filled(map(plain, range(step, steps)))
      after = step + 1
      return next(coming)

    return batch

  def judged(self, count: int) -> Batch:
    return next(self._remote.filled([super().judged(count)]))

  def every(self, batch: int) -> Iterator[Batch]:
    return self._remote.filled(super().every(batch))


def _reason(error: Exception) -> str:
  said = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
  return said.rstrip(".")
