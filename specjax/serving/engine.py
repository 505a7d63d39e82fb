"""Requests that come one by one, answered by one compiled loop that takes them in while it decodes.

A thread owns the rows, see `serving.half`. Every few rounds it hands out what is new, frees the
rows that are done or given up, and fills them from a queue. All requests share a few shapes of the
loop: lengths to which prompts are padded, or pieces in which they are read, see `serving.pieces`;
with a denoiser, lengths of canvases. What a request asks for is traced, so it compiles nothing.

Letters: B batch.
"""

import atexit
import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from specjax import checks, switches
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.scores import Score
from specjax.names.load import Prompt
from specjax.processors import Penalties
from specjax.sampling import SamplingParams, changed
from specjax.serving.causal import CausalHalf
from specjax.serving.denoised import DenoisedHalf
from specjax.serving.fitting import Fitting, powers
from specjax.serving.half import Half, Rows
from specjax.serving.paging import Paging
from specjax.serving.pieces import Pieces
from specjax.serving.ticket import Reason, Ticket

LOG = logging.getLogger(__name__)
BYTES = 2**50  # more than any machine has


class Busy(RuntimeError):
  """The engine takes no request now, for its queue is full."""


class Closed(RuntimeError):
  """The engine takes no request any more."""


@switches.hold
class Engine:
  """A decoder that answers requests of any thread, B at a time.

  A request draws the tokens that a decoder of its seed and settings draws for its prompt alone,
  whoever its neighbours are and whenever it is admitted. For requests of any temperature a
  `Decoder` needs a verifier such as target_only: with it, greedy ones get plain greedy decoding's
  tokens.

  Args:
    decoder: the method, of a causal model or of a denoiser. Its settings, seed, JSON Schema and
      penalties are those of requests that bring none; its stop tokens, stop words and other
      processors are everyone's.
    max_length: the most tokens of a prompt and its answer together; None is all positions of the
      model. Every cache of a causal model is that long.
    queue: how many requests may wait for a row.
    rounds: rounds between two looks at what is new; one where a prompt is read in pieces, so that
      rows that decode wait for one piece at a time.
    prefixes: bytes in which beginnings of prompts are kept for those that begin alike. Prompts are
      then read in pieces; with 0, each as a whole.
    pages: of 64 tokens, in which a causal model and its drafter keep all texts; texts that begin
      alike share them. With 0 each row has caches of full length. Where pages run out, requests
      wait or are put back, see `serving.paging`; their texts stay the same.
    fewer: numbers of rows below B for which the loop is compiled, too. Where fewer requests run,
      the rounds are those of so many rows. With a drafter by load None is the powers of two, and
      what rounds cost is timed, see `serving.timing`; else it is none.

  Attributes:
    half: what runs the decoder.
    decoder, lengths, pieces, paging: see `half.Half`.
    sizes: the numbers of rows that are compiled, rising, B the last.
    watchers: each is called with every request that has ended, by the thread that ended it.

  Raises:
    ValueError: a length beyond the positions of the model, a number that is not accepted, or
      `prefixes` or `pages` with a decoder that does not go with them.
  """

  half: Half
  decoder: Decoder | DiffusionDecoder
  lengths: list[int]
  paging: Paging | None
  sizes: list[int]
  watchers: list[Callable[[Ticket], None]]

  def __init__(
    self,
    decoder: Decoder | DiffusionDecoder,
    *,
    max_length: int | None = None,
    queue: int = 64,
    rounds: int = 4,
    prefixes: int = 0,
    pages: int = 0,
    fewer: Sequence[int] | None = None,
  ):
    positions = decoder.model.config.max_length
    length = positions if max_length is None else max_length
    self.max_length = checks.whole("max_length", length, 2, positions, "the model's positions")
    self.queue = checks.whole("queue", queue)
    self.rounds = checks.whole("rounds", rounds, 1)
    checks.whole("prefixes", prefixes, 0, BYTES)
    if isinstance(decoder, DiffusionDecoder):
      self.half = DenoisedHalf(decoder, self.max_length, prefixes, pages)
    else:
      self.half = CausalHalf(decoder, self.max_length, prefixes, pages)
    self.decoder, self.lengths = self.half.decoder, self.half.lengths
    self.paging = self.half.paging
    B = decoder.batch
    self._mesh = jax.sharding.get_mesh()  # the thread would have none
    if fewer is None:  # a mesh shares out the rows of whole batches
      fewer = powers(B) if self.half.by_load and self._mesh.empty else []
    self.sizes = sorted({checks.whole(f"fewer[{i}]", n, 1, B) for i, n in enumerate(fewer)} | {B})
    self.half.time(self.sizes)
    self.watchers = []
    self._fitting = Fitting(self.sizes)
    self._waiting = collections.deque[Ticket]()
    self._held: dict[int, Ticket] = {}  # by row; the thread changes it, under the lock
    # The rows of these whose prompts are not read yet, in order, and whether the first waits.
    self._unread = collections.deque[int]()
    self._waits = False
    self._changed = threading.Condition()
    self._closed = self._finishing = False
    # At the interpreter's end a thread that computes must have ended.
    atexit.register(self.close)
    self._thread = threading.Thread(target=self._work, name="specjax engine", daemon=True)
    self._thread.start()

  def __enter__(self) -> "Engine":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  @property
  def pieces(self) -> Pieces | None:
    """See `half.Half`; other ones after a failure."""
    return self.half.pieces

  @property
  def closed(self) -> bool:
    """Whether it takes no request any more."""
    return self._closed or self._finishing

  @property
  def load(self) -> tuple[int, int]:
    """(requests that hold a row, requests that wait)."""
    with self._changed:
      return len(self._held), len(self._waiting)

  def submit(
    self,
    prompt: Prompt,
    max_new_tokens: int = 128,
    *,
    sampling: SamplingParams | None = None,
    seed: int | None = None,
    number: int = 0,
    json_schema: str | Mapping[str, Any] | None = None,
    penalties: Penalties | None = None,
    stop: Sequence[int] = (),
    tell: Callable[[], None] = lambda: None,
    **changes: Any,
  ) -> Ticket:
    """Takes a request.

    Args:
      prompt: text, or ids.
      sampling, seed: None is the decoder's.
      number: of the prompt among those of its seed: a decoder's prompt of that index has its noise.
      json_schema: of this text, in place of the decoder's; for a decoder whose processors have one,
        or the name `json_schema` without a schema.
      penalties: of this text, as numbers and a mapping of ids to biases, in place of the decoder's;
        for a decoder whose processors have `penalties`.
      stop: ids that end this text, besides the decoder's.
      tell: is called after every piece and at the end, from another thread. It must not block.
      changes: fields of `sampling` by name, such as temperature=0.7.

    Raises:
      ValueError: a prompt without room for the answer, or a setting that is not accepted.
      Busy: the queue is full.
      Closed: the engine has been closed, or has failed.
    """
    ids = self.decoder.model.encode(prompt)
    checks.whole("max_new_tokens", max_new_tokens, 1)
    if len(ids) + max_new_tokens > self.max_length:
      raise ValueError(
        f"a prompt's tokens and `max_new_tokens` must be together at most {self.max_length}, got "
        f"{len(ids)} and {max_new_tokens}."
      )
    own = changed(self.decoder.sampling if sampling is None else sampling, **changes)
    if seed is not None:
      checks.whole("seed", seed, 0, checks.SEED)
    checks.whole("number", number)
    ends = frozenset(checks.ids("stop", stop, self.decoder.model.config.vocab_size))
    processors = self.half.checked(ids, max_new_tokens, own, json_schema, penalties, [*ends])
    ticket = Ticket(ids, max_new_tokens, own, seed, number, processors, ends, tell, self._give_up)
    with self._changed:
      if self.closed:
        raise Closed("the engine is closed: it takes no more requests.")
      if len(self._held) + len(self._waiting) >= self.decoder.batch + self.queue:
        raise Busy(f"the queue is full: {len(self._waiting)} requests wait; try again later.")
      self._waiting.append(ticket)
      self._changed.notify()
    return ticket

  def scores(self, ticket: Ticket, count: int, whole: bool = False) -> list[Score]:
    """Of the first `count` tokens of an answer, and of its prompt; see `decoding.scores`.

    Any thread may ask, while others decode.
    """
    with self._on_mesh():
      return self.half.scores(ticket, count, whole)

  def _on_mesh(self) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if self._mesh.empty else jax.set_mesh(self._mesh)

  def cut(self) -> None:
    """Takes no more requests and gives up all that it has; it does not wait."""
    with self._changed:
      self._closed = True
      self._changed.notify()

  def close(self, finish: bool = False) -> None:
    """Takes no more requests and returns when the thread has ended.

    Args:
      finish: whether the requests that it has are answered, or given up.
    """
    with self._changed:
      self._finishing, self._closed = True, self._closed or not finish
      self._changed.notify()
    self._thread.join()
    atexit.unregister(self.close)

  def _give_up(self, ticket: Ticket) -> None:
    with self._changed:
      ticket.given_up = True
      if ticket in self._waiting:
        self._waiting.remove(ticket)
        self._end(ticket, "cancelled")

  def _end(self, ticket: Ticket, reason: Reason | None, error: Exception | None = None) -> None:
    ticket.end(reason, error)
    for watch in self.watchers:
      watch(ticket)

  def _work(self) -> None:
    failure: Exception | None = None
    try:
      with self._on_mesh():
        rows = self.half.rows(self.sizes[0])
        self._fitting.compile(rows)
        going = True
        while going:
          try:
            going = self._admit(rows)
            if going:
              self._read(rows)
              self._hand_out(rows)
          except Exception as error:  # a device's, say
            LOG.exception("a round has failed, and with it the requests that held a row")
            self._fail(error)
            rows = self.half.rows(self.sizes[0])
    except Exception as error:  # there are no rows, and none can be made
      failure = error
      raise
    finally:
      with self._changed:
        self._closed = True
        left = [*self._held.values(), *self._waiting]
        self._held.clear()
        self._waiting.clear()
      for ticket in left:
        self._end(ticket, None if failure else "cancelled", failure)

  def _fail(self, error: Exception) -> None:
    """Ends all requests that hold a row; where none does, the one that would have been next."""
    with self._changed:
      held = [*self._held.values()]
      if not held and self._waiting:
        held = [self._waiting.popleft()]
      self._held.clear()
    self._unread.clear()
    for ticket in held:
      self._end(ticket, None, error)
    self.half.reset()

  def _admit(self, rows: Rows) -> bool:
    """Waits until there is something to do and fills the free rows; False is the end."""
    with self._changed:
      while not (self._held or self._waiting or self.closed):
        self._changed.wait()
      if self._closed or not (self._held or self._waiting):
        return False
      self._fit(rows)
      free = sorted(set(range(rows.count)) - self._held.keys())
      fresh = [(b, self._waiting.popleft()) for b in free[: len(self._waiting)]]
      self._held.update(fresh)
      coming = [*(ticket for _, ticket in fresh[1:]), self._waiting[0] if self._waiting else None]
    for (b, ticket), following in zip(fresh, coming, strict=False):
      if not rows.admit(b, ticket, following):
        self._unread.append(b)
    return True

  def _fit(self, rows: Rows) -> None:
    """Has as many rows as requests need."""
    requests = len(self._held) + len(self._waiting)
    if (place := self._fitting.fit(rows, self._held, requests)) is not None:
      self._held = {place[b]: ticket for b, ticket in self._held.items()}
      self._unread = collections.deque(place[b] for b in self._unread)

  def _read(self, rows: Rows) -> None:
    """Reads a piece of the first prompt that is not read, or, where no row decodes, all of it."""
    while self._unread:
      ticket = self._held[b := self._unread[0]]
      if ticket.given_up:
        self._unread.popleft()
        self._release(rows, b)
        self._end(ticket, "cancelled")
        continue
      progress = rows.read_on(b, ticket, len(self._held) - len(self._unread))
      self._waits = progress == "waits"
      if progress == "read":
        self._unread.popleft()
      if len(self._held) > len(self._unread):
        return

  def _release(self, rows: Rows, b: int) -> None:
    """Frees the place of a request that ends."""
    with self._changed:
      ticket = self._held.pop(b)
    rows.leave(ticket)

  def _busy(self) -> dict[int, Ticket]:
    """The requests that decode, by row."""
    return {b: ticket for b, ticket in self._held.items() if b not in self._unread}

  def _hand_out(self, rows: Rows) -> None:
    """Runs some rounds, hands out what is new, and frees the rows that have ended."""
    rounds = 1 if self._unread and not self._waits else self.rounds
    if back := rows.prepare(self._busy(), rounds):
      unread = sorted([*self._unread, *back], key=lambda b: self._held[b].begun)
      self._unread = collections.deque(unread)
    if not (busy := self._busy()):  # all have been given up
      return
    for b, seen in rows.look(busy, rounds).items():
      ticket = busy[b]
      ticket.passes, ticket.rounds = seen.passes, seen.rounds
      stopped = ticket.add(seen.new)
      if not (stopped or seen.done or ticket.given_up):
        continue
      if seen.error is None:
        rows.free(b)
      self._release(rows, b)
      ticket.closing = self.half.closing(ticket)
      if seen.error is not None and not stopped:
        self._end(ticket, None, seen.error)
      elif stopped or (seen.done and self.half.stopped(ticket)):
        self._end(ticket, "stop")
      else:
        self._end(ticket, "length" if seen.done else "cancelled")
