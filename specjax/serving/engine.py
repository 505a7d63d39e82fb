"""Requests that come one by one, answered by one compiled loop that takes them in while it decodes.

A thread owns the rows, see `decoding.rows`. Every few rounds it hands out what is new, frees the
rows that are done or given up, and fills them from a queue. All requests share the shapes of the
loop: one cache length, and a few lengths to which prompts are padded, or pieces in which they are
read, see `serving.pieces`. What a request asks for is traced, so nothing is compiled for it.

Letters: B batch, S cache length, T padded length of a prompt.
"""

import atexit
import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax import checks, speculate, switches
from specjax.decoding.batching import Rounds
from specjax.decoding.decoder import Decoder
from specjax.decoding.scores import Score, scores
from specjax.decoding.texts import cut
from specjax.names.load import Prompt
from specjax.processors import Penalties
from specjax.sampling import SamplingParams, changed
from specjax.serving.fitting import Fitting, powers
from specjax.serving.paging import Paging, over_pages
from specjax.serving.pieces import Pieces, Reading
from specjax.serving.rows import DecodeRows, padded_lengths
from specjax.serving.ticket import Reason, Ticket
from specjax.serving.timing import prices

LOG = logging.getLogger(__name__)
BYTES = 2**50  # more than any machine has


class Busy(RuntimeError):
  """The engine takes no request now, for its queue is full."""


class Closed(RuntimeError):
  """The engine takes no request any more."""


@switches.hold
class Engine:
  """A decoder that answers requests of any thread, B at a time.

  A request draws the tokens that a `Decoder` of its seed and settings draws for its prompt alone,
  whoever its neighbours are and whenever it is admitted. For requests of any temperature the
  decoder needs a verifier such as target_only: with it, greedy ones get plain greedy decoding's
  tokens.

  Args:
    decoder: the method. Its settings, seed, JSON Schema and penalties are those of requests that
      bring none; its stop tokens, stop words and other processors are everyone's.
    max_length: the most tokens of a prompt and its answer together; None is all positions of the
      model. Every cache is that long.
    queue: how many requests may wait for a row.
    rounds: rounds between two looks at what is new; one where a prompt is read in pieces, so that
      rows that decode wait for one piece at a time.
    prefixes: bytes in which beginnings of prompts are kept for those that begin alike. Prompts are
      then read in pieces; with 0, each as a whole.
    pages: of 64 tokens, in which the target keeps all texts; texts that begin alike share them.
      With 0 each row has a cache of full length. Where pages run out, requests wait or are put
      back, see `serving.paging`; their texts stay the same.
    fewer: numbers of rows below B for which the loop is compiled, too. Where fewer requests run,
      the rounds are those of so many rows. With a drafter by load None is the powers of two, and
      what rounds cost is timed, see `serving.timing`; else it is none.

  Attributes:
    paging: who has which pages, None without such.
    sizes: the numbers of rows that are compiled, rising, B the last.
    watchers: each is called with every request that has ended, by the thread that ended it.

  Raises:
    ValueError: a length beyond the positions of the model, a number that is not accepted, or
      `prefixes` or `pages` with a decoder that does not go with them.
  """

  paging: Paging | None
  sizes: list[int]
  watchers: list[Callable[[Ticket], None]]

  def __init__(
    self,
    decoder: Decoder,
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
    if pages and prefixes:
      checks.refuse("prefixes", prefixes, "0 with `pages`, which texts that begin alike share")
    decoder = over_pages(decoder, self.max_length, pages) if pages else decoder
    self.decoder, self.capacity = decoder, decoder.capacity(self.max_length, 0)
    self.lengths = padded_lengths(decoder, self.max_length, self.capacity)
    checks.whole("prefixes", prefixes, 0, BYTES)
    self._pieces = Pieces(decoder, self.capacity, prefixes) if prefixes else None
    self.paging = Paging(decoder, self.capacity, pages) if pages else None
    B, by_load = decoder.batch, decoder.method.drafter.chooser is not None
    self._mesh = jax.sharding.get_mesh()  # the thread would have none
    if fewer is None:  # a mesh shares out the rows of whole batches
      fewer = powers(B) if by_load and self._mesh.empty else []
    self.sizes = sorted({checks.whole(f"fewer[{i}]", n, 1, B) for i, n in enumerate(fewer)} | {B})
    if by_load:
      decoder.prices = prices(decoder, self.sizes, self.lengths[0], self.capacity)
    self.watchers = []
    self._fitting = Fitting(self.sizes)
    self._waiting = collections.deque[Ticket]()
    self._held: dict[int, Ticket] = {}  # by row; the thread changes it, under the lock
    # The rows of these whose prompts are not read yet, in order, and what is read of the first.
    self._unread = collections.deque[int]()
    self._reading: Reading | None = None
    self._waits = False  # whether that waits for pages
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
    """What reads prompts in pieces, None where nothing does."""
    return self._pieces if self.paging is None else self.paging.pieces

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
    if own.temperature > 0 and self.decoder.method.verifier.temperature == "zero":
      raise ValueError(
        f"`temperature` must be 0 with the verifier {self.decoder.verifier!r}, got "
        f"{own.temperature}; target_only takes any."
      )
    if seed is not None:
      checks.whole("seed", seed, 0, checks.SEED)
    checks.whole("number", number)
    ends = frozenset(checks.ids("stop", stop, self.decoder.model.config.vocab_size))
    if penalties is not None:
      checks.whole("min_tokens", penalties.min_tokens, 0, max_new_tokens, "max_new_tokens at most")
    own_form = json_schema is not None or penalties is not None
    processors = self.decoder.processors_with(json_schema, penalties, [*ends]) if own_form else None
    self.decoder.check_budgets([max_new_tokens], processors)
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
    T = min(T for T in self.lengths if len(ticket.ids) + count <= T)
    with self._on_mesh():
      return scores(
        self.decoder,
        ticket.ids,
        ticket.tokens[:count],
        T,
        budget=ticket.budget,
        sampling=ticket.sampling,
        processors=ticket.params,
        whole=whole,
      )

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
        rows = self._rows()
        self._fitting.compile(rows, self.lengths[0])
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
            rows = self._rows()
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

  def _rows(self) -> DecodeRows:
    pool = None if self.paging is None else self.paging.pool
    return DecodeRows(self.decoder, self.capacity, self.lengths[0], self.sizes[0], pool)

  def _fail(self, error: Exception) -> None:
    """Ends all requests that hold a row; where none does, the one that would have been next."""
    with self._changed:
      held = [*self._held.values()]
      if not held and self._waiting:
        held = [self._waiting.popleft()]
      self._held.clear()
    self._unread.clear()
    self._reading = None
    if self.paging is not None:
      self.paging.reset()
    for ticket in held:
      self._end(ticket, None, error)

  def _admit(self, rows: DecodeRows) -> bool:
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
    if self.pieces is not None:
      self._unread.extend(b for b, _ in fresh)
      return True
    for (b, ticket), following in zip(fresh, coming, strict=False):
      T = min(T for T in self.lengths if len(ticket.ids) <= T)
      again = following is not None and following.ids == ticket.ids
      rows.admit(b, ticket.ids, T, self._request(ticket), again)
    return True

  def _fit(self, rows: DecodeRows) -> None:
    """Has as many rows as requests need."""
    requests = len(self._held) + len(self._waiting)
    if (place := self._fitting.fit(rows, self._held, requests)) is not None:
      self._held = {place[b]: ticket for b, ticket in self._held.items()}
      self._unread = collections.deque(place[b] for b in self._unread)

  def _request(self, ticket: Ticket) -> speculate.DecodeRequest:
    return self.decoder.request(
      np.array([ticket.number]),
      np.array([len(ticket.ids) + ticket.budget]),
      sampling=ticket.sampling,
      seed=ticket.seed,
      processors=ticket.params,
    )

  def _read(self, rows: DecodeRows) -> None:
    """Reads a piece of the first prompt that is not read, or, where no row decodes, all of it."""
    while self._unread:
      ticket = self._held[b := self._unread[0]]
      gone = ticket.given_up
      if gone:
        self._leave_off()
      if gone or self._has_read(rows, b, ticket):
        self._unread.popleft()
        self._reading = None
      if gone:
        self._release(b)
        self._end(ticket, "cancelled")
      elif len(self._held) > len(self._unread):
        return

  def _has_read(self, rows: DecodeRows, b: int, ticket: Ticket) -> bool:
    """Whether a prompt is read after one piece more; its request then is in row b."""
    pieces, paging = self.pieces, self.paging
    assert pieces is not None
    if self._reading is None:
      self._waits = paging is not None and not paging.has_room(ticket, len(self._busy()))
      if self._waits:
        return False
      self._reading = pieces.begin(ticket.ids + ticket.tokens)
      if not ticket.tokens:
        ticket.reused = self._reading.reused
    if not self._reading.done:
      self._waits = paging is not None and not paging.has_free()
      if self._waits:
        return False
      pieces.go_on(self._reading)
    if self._reading.done:
      request = self._request(ticket)
      alone = pieces.ready(self._reading, request)
      if paging is not None:
        alone = paging.admit(ticket, self._reading, alone)
      rows.place(b, alone, request)
    return self._reading.done

  def _leave_off(self) -> None:
    """Forgets what is read of the first prompt that is not read."""
    if self.paging is not None and self._reading is not None:
      self.paging.drop(self._reading.chain)
    self._reading = None

  def _release(self, b: int) -> None:
    """Frees row b, whose request ends, and its pages."""
    with self._changed:
      ticket = self._held.pop(b)
    if self.paging is not None:
      self.paging.end(ticket)

  def _find_pages(self, rows: DecodeRows, rounds: int) -> None:
    """Has each request that decodes take the pages of so many rounds, the oldest first."""
    if (paging := self.paging) is None:
      return
    most = rounds * (self.decoder.method.drafter.depth + 1)
    for b, ticket in sorted(self._busy().items(), key=lambda item: item[1].begun):
      needed = min(len(ticket.tokens) + most, ticket.budget) + len(ticket.ids) - 1
      while b not in self._unread and not paging.has_grown(ticket, needed):
        self._put_back(rows, paging)
    busy = self._busy()
    rows.chains = [paging.chain(busy[b]) if b in busy else [] for b in range(rows.count)]

  def _put_back(self, rows: DecodeRows, paging: Paging) -> None:
    """Takes its pages from the youngest request that has some; it is read again later."""
    busy = self._busy()
    last = max(busy, key=lambda b: busy[b].begun)
    if self._reading is not None and self._held[self._unread[0]].begun > busy[last].begun:
      self._leave_off()
      return
    paging.set_aside(busy[last], rows.out(last))
    first = [self._unread.popleft()] if self._reading is not None else []
    rest = sorted([*self._unread, last], key=lambda b: self._held[b].begun)
    self._unread = collections.deque([*first, *rest])

  def _busy(self) -> dict[int, Ticket]:
    """The requests that decode, by row."""
    return {b: ticket for b, ticket in self._held.items() if b not in self._unread}

  def _hand_out(self, rows: DecodeRows) -> None:
    """Runs some rounds, hands out what is new, and frees the rows that have ended."""
    rounds = 1 if self._unread and not self._waits else self.rounds
    self._find_pages(rows, rounds)
    if not (busy := self._busy()):  # all have been given up
      return
    seen = rows.advance(rounds)
    for b, ticket in busy.items():
      ticket.passes = int(seen.stats.passes[b])
      ticket.rounds = Rounds(seen.stats.accepted[b].tolist(), seen.stats.offered[b].tolist())
      first = len(ticket.ids) + len(ticket.tokens)
      stopped = ticket.add(seen.context.tokens[b, first : seen.context.length[b]].tolist())
      if not (stopped or seen.done[b] or ticket.given_up):
        continue
      if not seen.failed[b]:
        rows.free(b)
      self._release(b)
      ticket.closing = self.decoder.closing(ticket.tokens, ticket.budget, ticket.processors)
      if seen.failed[b] and not stopped:
        self._end(ticket, None, self.decoder.failure(seen, b, f"prompt {ticket.number}"))
      elif stopped or (seen.done[b] and self._stopped(ticket)):
        self._end(ticket, "stop")
      else:
        self._end(ticket, "length" if seen.done[b] else "cancelled")

  def _stopped(self, ticket: Ticket) -> bool:
    """Whether a text that is done ended before its budget, or with a stop at its end."""
    tokens, decoder = ticket.tokens, self.decoder
    if len(tokens) < ticket.budget or tokens[-1] in decoder.stop:
      return True
    text = decoder.model.decode(tokens, ticket.ids) if decoder.stop_words else ""
    return cut(text, decoder.stop_words) != text
