"""A request that an engine has taken, as the one who asked sees it."""

import collections
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from specjax.base import Params
from specjax.decoding.batching import Rounds
from specjax.names.build.processors import Used
from specjax.sampling import SamplingParams

Reason = Literal["stop", "length", "cancelled"]


class Ticket:
  """A request that an engine has taken. Iterating over it gives its new ids in pieces.

  Attributes:
    ids, budget, sampling, seed, number, processors: what was asked for.
    tokens: the new ids so far.
    closing: see `Result.closing`; it is known once the answer has ended.
    passes: passes of the model so far, prefill excluded; a stop id of the request's own is seen
      after the rounds in which it was said.
    reused: tokens of the prompt whose reading had been kept, see `serving.pieces`.
    rounds: how many rounds so far had a draft of each depth, and accepted so many of it.
    begun, first, finished: the times (`time.monotonic`) at which it was taken, had its first token,
      and ended; None, and `begun`, before that.
    reason: how the answer ended: with a stop token or a stop word of the decoder's, with its
      budget, or cancelled; None before that, and where it failed.
    given_up: whether somebody cancelled it.
    error: what ended it instead, such as FloatingPointError where the model's logits became NaN.
  """

  ids: list[int]
  budget: int
  sampling: SamplingParams
  seed: int | None
  number: int
  processors: Sequence[Used] | None
  tokens: list[int]
  closing: int | None
  passes: int
  reused: int
  rounds: Rounds
  begun: float
  first: float | None
  finished: float
  reason: Reason | None
  given_up: bool
  error: Exception | None

  def __init__(
    self,
    ids: list[int],
    budget: int,
    sampling: SamplingParams,
    seed: int | None,
    number: int,
    processors: Sequence[Used] | None,
    stop: frozenset[int],
    tell: Callable[[], None],
    give_up: Callable[["Ticket"], None],
  ):
    self.ids, self.budget, self.sampling, self.seed, self.number, self.processors = (
      ids, budget, sampling, seed, number, processors,
    )  # fmt: skip
    self.tokens, self.closing, self.passes = [], None, 0
    self.reused, self.rounds = 0, Rounds()
    self.begun = self.finished = time.monotonic()
    self.first = None
    self.reason, self.given_up, self.error = None, False, None
    self._stop, self._tell, self._give_up = stop, tell, give_up
    self._pieces = queue.SimpleQueue[list[int] | None]()

  @property
  def params(self) -> tuple[Params, ...] | None:
    """Those of `processors`, where the request brings some."""
    return None if self.processors is None else tuple(one.params for one in self.processors)

  @property
  def ended(self) -> bool:
    """Whether nothing more will come."""
    return self.reason is not None or self.error is not None

  def __iter__(self) -> Iterator[list[int]]:
    """The pieces as they come; it raises `error` where there is one."""
    while (piece := self._pieces.get()) is not None:
      yield piece
    self._pieces.put(None)
    if self.error is not None:
      raise self.error

  def wait(self) -> list[int]:
    """All new ids, once the answer has ended; it raises `error` where there is one."""
    collections.deque(self, maxlen=0)
    return self.tokens

  def cancel(self) -> None:
    """Gives the request up: it leaves the queue, or its row within a few rounds."""
    self._give_up(self)

  def add(self, new: list[int]) -> bool:
    """Hands out new ids up to a stop id of the request's own, and says whether there was one."""
    stops = [i for i, token in enumerate(new) if token in self._stop]
    new = new[: stops[0] + 1] if stops else new
    self.tokens += new
    if new:
      self.first = time.monotonic() if self.first is None else self.first
      self._pieces.put(new)
      self._tell()
    return bool(stops)

  def end(self, reason: Reason | None, error: Exception | None = None) -> None:
    """Hands out how the answer ended; the engine calls it, as it does `add`."""
    self.reason, self.error, self.finished = reason, error, time.monotonic()
    self._pieces.put(None)
    self._tell()
