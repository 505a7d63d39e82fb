"""The causal half of an engine: rounds that draft and verify, see `decoding.decoder`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specjax import checks, speculate
from specjax.decoding.batching import Rounds
from specjax.decoding.decoder import Decoder
from specjax.decoding.scores import Score, scores
from specjax.decoding.texts import cut
from specjax.names.build.cache import DENSE
from specjax.names.build.processors import Used
from specjax.processors import Penalties
from specjax.sampling import SamplingParams
from specjax.serving.half import Progress, Seen
from specjax.serving.paging import Paging, over_pages
from specjax.serving.pieces import Pieces, Reading
from specjax.serving.prefixes import BLOCK
from specjax.serving.rows import DecodeRows, padded_lengths
from specjax.serving.ticket import Ticket
from specjax.serving.timing import prices


class CausalRows:
  """Rows that draft and verify, see `half.Rows`."""

  def __init__(self, half: "CausalHalf", count: int):
    self._half = half
    pool = None if half.paging is None else half.paging.pool
    self._rows = DecodeRows(half.decoder, half.capacity, half.lengths[0], count, pool)
    self._reading: tuple[Ticket, Reading] | None = None  # whose prompt is read in pieces

  @property
  def count(self) -> int:
    return self._rows.count

  def admit(self, b: int, ticket: Ticket, following: Ticket | None) -> bool:
    if self._half.pieces is not None:
      return False
    T = min(T for T in self._half.lengths if len(ticket.ids) <= T)
    again = following is not None and following.ids == ticket.ids
    self._rows.admit(b, ticket.ids, T, self._half.request(ticket), again)
    return True

  def read_on(self, b: int, ticket: Ticket, decoding: int) -> Progress:
    pieces, paging = self._half.pieces, self._half.paging
    assert pieces is not None
    if self._reading is None or self._reading[0] is not ticket:
      self._leave_off()
      if paging is not None and not paging.has_room(ticket, decoding):
        return "waits"
      self._reading = ticket, pieces.begin(ticket.ids + ticket.tokens)
      if not ticket.tokens:
        ticket.reused = self._reading[1].reused
    reading = self._reading[1]
    if not reading.done:
      if paging is not None and not paging.has_free():
        return "waits"
      pieces.go_on(reading)
    if not reading.done:
      return "more"
    request = self._half.request(ticket)
    alone = pieces.ready(reading, request)
    if paging is not None:
      alone = paging.admit(ticket, reading, alone)
    self._rows.place(b, alone, request)
    self._reading = None
    return "read"

  def _leave_off(self) -> None:
    """Forgets what is read of a prompt that is not read."""
    if self._half.paging is not None and self._reading is not None:
      self._half.paging.drop(self._reading[1].chain)
    self._reading = None

  def prepare(self, held: Mapping[int, Ticket], rounds: int) -> list[int]:
    if (paging := self._half.paging) is None:
      return []
    most = rounds * (self._half.decoder.method.drafter.depth + 1)
    left = dict(held)
    for b, ticket in sorted(held.items(), key=lambda item: item[1].begun):  # the oldest first
      new = min(len(ticket.tokens) + most, ticket.budget + paging.ahead)
      needed = len(ticket.ids) + new - 1
      while b in left and not paging.has_grown(ticket, needed):
        self._put_back(left, paging)
    self._rows.chains = [paging.chain(left[b]) if b in left else [] for b in range(self.count)]
    return [*(held.keys() - left.keys())]

  def _put_back(self, left: dict[int, Ticket], paging: Paging) -> None:
    """Takes its pages from the youngest request that has some."""
    last = max(left, key=lambda b: left[b].begun)
    if self._reading is not None and self._reading[0].begun > left[last].begun:
      self._leave_off()
    else:
      paging.set_aside(left.pop(last), self._rows.out(last))

  def look(self, held: Mapping[int, Ticket], rounds: int) -> dict[int, Seen]:
    seen, decoder = self._rows.advance(rounds), self._half.decoder
    found = {}
    for b, ticket in held.items():
      first = len(ticket.ids) + len(ticket.tokens)
      found[b] = Seen(
        seen.context.tokens[b, first : seen.context.length[b]].tolist(),
        int(seen.stats.passes[b]),
        Rounds(seen.stats.accepted[b].tolist(), seen.stats.offered[b].tolist()),
        bool(seen.done[b]),
        decoder.failure(seen, b, f"prompt {ticket.number}") if seen.failed[b] else None,
      )
    return found

  def free(self, b: int) -> None:
    self._rows.free(b)

  def leave(self, ticket: Ticket) -> None:
    if self._reading is not None and self._reading[0] is ticket:
      self._leave_off()
    if self._half.paging is not None:
      self._half.paging.end(ticket)

  def take(self, index: Sequence[int]) -> None:
    self._rows.take(index)

  def compile(self) -> None:
    one = self._half.decoder.request(np.zeros(1, int), np.full(1, 2))
    self._rows.admit(0, [0], self._half.lengths[0], one)
    self._rows.compile()


class CausalHalf:
  """A `Decoder` as an engine runs it, see `half.Half`.

  Args:
    max_length: the most tokens of a prompt and its answer together; every cache is that long.
    prefixes: bytes in which beginnings of prompts are kept; 0 reads each prompt as a whole.
    pages: in which target and drafter keep all texts, see `serving.paging`; 0 gives each row caches
      of full length.

  Raises:
    ValueError: `prefixes` or `pages` with a decoder that does not go with them, or both.
  """

  paging: Paging | None
  lacks: Mapping[str, str] = {}

  def __init__(self, decoder: Decoder, max_length: int, prefixes: int, pages: int):
    if pages and prefixes:
      checks.refuse("prefixes", prefixes, "0 with `pages`, which texts that begin alike share")
    decoder = over_pages(decoder, max_length, pages) if pages else decoder
    self.decoder, self._max_length = decoder, max_length
    self.capacity = decoder.capacity(max_length, 0)
    self.lengths = padded_lengths(decoder, max_length, self.capacity)
    self._pieces = Pieces(decoder, self.capacity, prefixes) if prefixes else None
    self.paging = Paging(decoder, self.capacity, pages) if pages else None
    self.by_load = decoder.method.drafter.chooser is not None
    self.names = {"drafter": decoder.name, "verifier": decoder.label}
    self.stop_words: Sequence[str] = decoder.stop_words
    self.unscored = "" if decoder.cache == DENSE else "over a cache that is not dense"

  @property
  def pieces(self) -> Pieces | None:
    """What reads prompts in pieces, None where nothing does."""
    return self._pieces if self.paging is None else self.paging.pieces

  @property
  def examples(self) -> list[tuple[list[int], int]]:
    """A prompt of three pieces, twice, takes every way in which pieces are read and put back."""
    budget = self.decoder.least_budget
    lengths = self.lengths if self.pieces is None else [3 * BLOCK] * 2
    return [([0] * max(1, min(T, self._max_length - budget)), budget) for T in lengths]

  def checked(
    self,
    ids: Sequence[int],
    budget: int,
    sampling: SamplingParams,
    json_schema: str | Mapping[str, Any] | None,
    penalties: Penalties | None,
    stop: Sequence[int],
  ) -> Sequence[Used] | None:
    decoder = self.decoder
    if sampling.temperature > 0 and decoder.method.verifier.temperature == "zero":
      raise ValueError(
        f"`temperature` must be 0 with the verifier {decoder.verifier!r}, got "
        f"{sampling.temperature}; target_only takes any."
      )
    if penalties is not None:
      checks.whole("min_tokens", penalties.min_tokens, 0, budget, "max_new_tokens at most")
    own = json_schema is not None or penalties is not None
    processors = decoder.processors_with(json_schema, penalties, stop) if own else None
    decoder.check_budgets([budget], processors)
    return processors

  def time(self, sizes: Sequence[int]) -> None:
    if self.by_load:
      self.decoder.prices = prices(self.decoder, sizes, self.lengths[0], self.capacity)

  def rows(self, count: int) -> CausalRows:
    return CausalRows(self, count)

  def reset(self) -> None:
    if self.paging is not None:
      self.paging.reset()

  def request(self, ticket: Ticket) -> speculate.DecodeRequest:
    """What a row asks for."""
    return self.decoder.request(
      np.array([ticket.number]),
      np.array([len(ticket.ids) + ticket.budget]),
      sampling=ticket.sampling,
      seed=ticket.seed,
      processors=ticket.params,
    )

  def stopped(self, ticket: Ticket) -> bool:
    tokens, decoder = ticket.tokens, self.decoder
    if len(tokens) < ticket.budget or tokens[-1] in decoder.stop:
      return True
    text = decoder.model.decode(tokens, ticket.ids) if decoder.stop_words else ""
    return cut(text, decoder.stop_words) != text

  def closing(self, ticket: Ticket) -> int | None:
    return self.decoder.closing(ticket.tokens, ticket.budget, ticket.processors)

  def scores(self, ticket: Ticket, count: int, whole: bool) -> list[Score]:
    T = min(T for T in self.lengths if len(ticket.ids) + count <= T)
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
