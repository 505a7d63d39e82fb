"""The masked half of an engine: rows that fill blocks, see `decoding.diffusion_decoder`.

Rows stand at blocks of their own, and take and leave requests between rounds. A request's noise
follows from its seed, its number and its slots alone. Its first pass, which reads its prompt, is
made alone; then its state takes the place of a free row. Canvases have one of a few lengths, the
shortest that holds what all rows need; a row of a denoiser that is causal over blocks needs its
text so far and the next blocks, others the slots that they were asked for.

Letters: B batch, L canvas length, W window.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks, distributed, switches
from specjax.decoding.batching import Rounds
from specjax.decoding.diffusion_decoder import FIRST, DiffusionDecoder
from specjax.decoding.scores import Score
from specjax.diffusion.base import Canvas
from specjax.diffusion.denoise import DenoiseRequest, Weights
from specjax.diffusion.loops import State, resized
from specjax.names.build.processors import Used
from specjax.processors import Penalties
from specjax.sampling import SamplingParams
from specjax.serving.half import Progress, Seen
from specjax.serving.paging import Paging
from specjax.serving.pieces import Pieces
from specjax.serving.ticket import Ticket
from specjax.trees.structure import rows_where

WHY = "for a denoiser, whose tokens do not come one after the other"
LACKS = dict.fromkeys((
  "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens",
  "logprobs", "top_logprobs", "response_format", "tools", "tool_choice",
), WHY)  # fmt: skip


@jax.jit(donate_argnums=0)
def _put(
  state: State, request: DenoiseRequest, alone: State, own: DenoiseRequest, b: Array
) -> tuple[State, DenoiseRequest]:
  """A state and a request of B rows, of which row b is now that of `alone` and `own`."""

  def put(x: Array, row: Array) -> Array:
    return x.at[b].set(row[0])

  return jax.tree.map(put, state, alone), jax.tree.map(put, request, own)


@jax.jit
def _taken(
  state: State, request: DenoiseRequest, free: State, index: Array
) -> tuple[State, DenoiseRequest]:
  """The rows index[b] i32[B] of a state and its request; where it is negative, that of `free`."""
  at = jnp.maximum(index, 0)
  taken, chosen = jax.tree.map(lambda x: x[at], (state, request))
  return rows_where(index >= 0, taken, free), chosen


@switches.hold
class DenoiseRows:
  """Rows that fill blocks, see `half.Rows`.

  Args:
    decoder: the method and the weights.
    lengths: the numbers of slots that canvases have room for, rising.
    count: B.
  """

  def __init__(self, decoder: DiffusionDecoder, lengths: Sequence[int], count: int):
    self.decoder, self.lengths = decoder, lengths
    self._place = 0  # of the canvases' length among these
    self._held: dict[int, Ticket] = {}
    self._settled: dict[int, int] = {}  # of these, the slots that will not change
    self._request = decoder.request([0] * count)
    self._weights, canvas = self._begun()
    self._state = decoder.loop.start(self._weights, canvas)

  @property
  def count(self) -> int:
    return len(self._request.temperature)

  def _begun(self) -> tuple[Weights, Canvas]:
    """The weights, and the canvases that the rows began with, in the length of now."""
    texts = [self._held.get(b) for b in range(self.count)]
    ids = [[] if x is None else x.ids for x in texts]
    budgets = [0 if x is None else x.budget for x in texts]
    return self.decoder.canvas(ids, budgets, self._request.key, self._room)

  @property
  def _room(self) -> int:
    return self.decoder.room(self.lengths[self._place])

  def _alone(self, ids: list[int], budget: int, request: DenoiseRequest) -> tuple[Weights, State]:
    weights, canvas = self.decoder.canvas([ids], [budget], request.key, self._room)
    return weights, self.decoder.loop.start(weights, canvas)

  def _need(self, b: int, rounds: int) -> int:
    """How many slots row b needs in the next rounds, each of which ends a block at most."""
    ticket, loop = self._held[b], self.decoder.loop
    given = len(ticket.ids)
    most = given + ticket.budget
    if not loop.grows:
      return most
    return min(most, max(given, self._settled[b]) + (rounds + 1) * loop.window)

  def _fit(self, rounds: int) -> None:
    """Makes canvases as long as the rows need, one length after the other."""
    need = max((self._need(b, rounds) for b in self._held), default=1)
    self._resize(next(i for i, length in enumerate(self.lengths) if length >= need))

  def _resize(self, place: int) -> None:
    while self._place != place:
      self._place += 1 if self._place < place else -1
      self._weights, canvas = self._begun()
      self._state = resized(self.decoder.loop, self._weights, self._state, canvas)

  def admit(self, b: int, ticket: Ticket, following: Ticket | None = None) -> bool:
    loop = self.decoder.loop
    self._held[b], self._settled[b] = ticket, 0
    self._fit(1)
    own = self.decoder.request([ticket.number], sampling=ticket.sampling, seed=ticket.seed)
    weights, state = self._alone(ticket.ids, ticket.budget, own)
    self._into(b, loop.advance(weights, own, state, jnp.int32(1)), own)
    self._weights, _ = self._begun()
    return True

  def _into(self, b: int, alone: State, own: DenoiseRequest) -> None:
    self._state, self._request = _put(self._state, self._request, alone, own, jnp.int32(b))

  def read_on(self, b: int, ticket: Ticket, decoding: int) -> Progress:
    return "read"

  def prepare(self, held: Mapping[int, Ticket], rounds: int) -> list[int]:
    return []

  def look(self, held: Mapping[int, Ticket], rounds: int) -> dict[int, Seen]:
    self._fit(rounds)
    loop, stop = self.decoder.loop, self.decoder.model.stop
    self._state = loop.advance(self._weights, self._request, self._state, jnp.int32(rounds))
    said = loop.filled(self._state)
    tokens, settled, passes, done = distributed.fetch(
      (said.tokens, said.settled, said.passes, said.done)
    )
    found = {}
    for b, ticket in held.items():
      self._settled[b] = int(settled[b])
      new = tokens[b, len(ticket.ids) + len(ticket.tokens) : self._settled[b]].tolist()
      ends = [i for i, token in enumerate(new) if token in stop]
      if ends:  # whatever else is filled behind it
        new = new[: ends[0] + 1]
      found[b] = Seen(new, int(passes[b]), Rounds(), bool(ends or done[b]))
    return found

  def free(self, b: int) -> None:
    self._held.pop(b, None)
    nothing = self.decoder.request([0])
    self._into(b, self._alone([], 0, nothing)[1], nothing)

  def leave(self, ticket: Ticket) -> None:
    """It has its row alone."""

  def take(self, index: Sequence[int]) -> None:
    kept = {i: b for i, b in enumerate(index) if b in self._held}
    self._settled = {i: self._settled[b] for i, b in kept.items()}
    self._held = {i: self._held[b] for i, b in kept.items()}
    key = self.decoder.request([0] * len(index)).key
    free = self.decoder.loop.start(*self.decoder.canvas([], [], key, self._room))
    order = jnp.asarray(index, jnp.int32)
    self._state, self._request = _taken(self._state, self._request, free, order)
    self._weights, _ = self._begun()

  def compile(self) -> None:
    loop = self.decoder.loop
    for place in range(len(self.lengths)):
      self._resize(place)
      self.free(0)
      self._state = loop.advance(self._weights, self._request, self._state, jnp.int32(1))
    self._resize(0)


class DenoisedHalf:
  """A `DiffusionDecoder` as an engine runs it, see `half.Half`.

  Args:
    max_length: the most tokens of a prompt and its answer together.
    prefixes, pages: 0.

  Raises:
    ValueError: other `prefixes` or `pages`.
  """

  lacks: Mapping[str, str] = LACKS
  unscored = WHY
  pieces: Pieces | None = None
  paging: Paging | None = None
  by_load = False
  stop_words: Sequence[str] = ()

  def __init__(self, decoder: DiffusionDecoder, max_length: int, prefixes: int = 0, pages: int = 0):
    if prefixes:
      checks.refuse("prefixes", prefixes, "0 for a denoiser, whose prompts are read as a whole")
    if pages:
      checks.refuse("pages", pages, "0 for a denoiser, which has no cache that grows with a text")
    self.decoder = decoder
    powers = (FIRST << i for i in itertools.count())
    self.lengths = [*itertools.takewhile(max_length.__gt__, powers), max_length]
    self.names = {"policy": decoder.name}

  @property
  def examples(self) -> list[tuple[list[int], int]]:
    token = int(self.decoder.model.mask == 0)
    return [([token] * max(1, n - 1), 1) for n in (*self.lengths, 2)]

  def checked(
    self,
    ids: Sequence[int],
    budget: int,
    sampling: SamplingParams,
    json_schema: str | Mapping[str, Any] | None,
    penalties: Penalties | None,
    stop: Sequence[int],
  ) -> Sequence[Used] | None:
    for name, value in (("json_schema", json_schema), ("penalties", penalties)):
      if value is not None:
        checks.refuse(name, value, f"left out {WHY}")
    for i, token in enumerate(ids):
      if token == self.decoder.model.mask:
        wanted = "another token than the mask, whose holes `specjax denoise` fills"
        checks.refuse(f"prompt[{i}]", token, wanted)
    self.decoder.check_sampling(sampling)
    return None

  def time(self, sizes: Sequence[int]) -> None:
    """Nothing here depends on it."""

  def rows(self, count: int) -> DenoiseRows:
    return DenoiseRows(self.decoder, self.lengths, count)

  def reset(self) -> None:
    """All is in the rows."""

  def stopped(self, ticket: Ticket) -> bool:
    return len(ticket.tokens) < ticket.budget or ticket.tokens[-1] in self.decoder.model.stop

  def closing(self, ticket: Ticket) -> int | None:
    return None

  def scores(self, ticket: Ticket, count: int, whole: bool) -> list[Score]:
    raise ValueError(f"log-probabilities must be left out {WHY}.")
