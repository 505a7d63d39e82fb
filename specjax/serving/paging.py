"""Who has which pages: requests, and the store of prompts' beginnings.

A request takes pages as its text grows. Where none is free, the store gives up what was not used
for the longest time; where it has nothing to give up, the youngest request is put back: its pages
are taken from it, and when there is room again its text so far is read anew. All else that its row
had was kept. So the oldest request goes on in any case, and nobody waits for ever.

On one CPU, where a pass over several tokens has the bits of passes over one, a text that is read
anew has the bits that it had. Elsewhere it has them but for rounding, as in another batch.

Letters: P pages, S capacity.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from specjax import checks, speculate
from specjax.decoding.decoder import Decoder, pad_to_bucket
from specjax.kernels.tree_attention import PAGE
from specjax.models import paged, pages
from specjax.serving.pieces import (
  Pieces,
  Reading,
  axes_of,
  compiled_begin,
  compiled_piece,
  refused,
)
from specjax.serving.pool import Pool
from specjax.serving.prefixes import Block
from specjax.serving.rows import start_without_pages
from specjax.serving.ticket import Ticket

STORE = 2**50  # bytes, more than there are: its pages are counted
MOST = 2**24  # pages

State = TypeVar("State")


def over_pages(decoder: Decoder, max_length: int, count: int) -> Decoder:
  """The decoder, whose target and drafter keep texts of up to `max_length` tokens in P = `count`
  pages; see `models.paged`.

  Raises:
    ValueError: a decoder or a model that does not go with pages, or too few pages for one text.
  """
  checks.whole("pages", count, 0, MOST)

  def check(why: str) -> None:
    if why:
      checks.refuse("pages", count, f"0 with {why}")

  in_pieces, what = refused(decoder), paged.unlike(decoder.model.config)
  check(in_pieces and f"{in_pieces}: prompts are then read as a whole")
  check(what and f"a model that has {what}")
  check("" if decoder.model.fit is None else "a model that says another one's tokens")
  check("" if jax.sharding.get_mesh().empty else "a mesh")
  own = paged.paged(decoder.model.config), paged.drafting(decoder.method.drafter)
  found, capacity = decoder.over(*own), decoder.capacity(max_length, 0)
  _, _, in_pieces = axes_of(found, capacity)
  check(in_pieces and f"{in_pieces}: prompts are then read as a whole")
  rows = max_length + ahead(found, shapes(found, capacity, count))
  if count < (least := -(-rows // PAGE)):
    checks.refuse("pages", count, f"at least {least}, which {max_length} tokens take")
  return found


def shapes(decoder: Decoder, capacity: int, count: int) -> list[Any]:
  """Of each cache of a decoder, the target's and then its drafter's, those of the arrays
  [P + 1, K, 64, C] in which it keeps P pages."""
  token, one = jax.ShapeDtypeStruct((1, 1), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)

  def begun(weights: speculate.Weights, token: jax.Array, one: jax.Array) -> list[Any]:
    found = speculate.prefilled(decoder.method, weights, token, one, capacity)
    return [cache.kv for cache in pages.caches(found)]

  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((count + 1, *x.shape[1:]), x.dtype),
    jax.eval_shape(begun, decoder.weights, token, one),
  )


def ahead(decoder: Decoder, caches: Sequence[Any]) -> int:
  """How many rows behind a text must lie in pages of its own: those of a draft, which a draft model
  writes before the target has seen it. Without `caches` of the drafter there are none."""
  return decoder.method.drafter.depth if len(caches) > 1 else 0


def state_shapes(
  decoder: Decoder, capacity: int, request: speculate.DecodeRequest, count: int
) -> speculate.DecodeState:
  """Those of what rests between rounds of so many rows as ask."""
  B, one = len(request.limit), pad_to_bucket(1)
  tokens, length = jax.ShapeDtypeStruct((B, one), jnp.int32), jax.ShapeDtypeStruct((B,), jnp.int32)
  asked = decoder.method, decoder.weights, tokens, length, request
  state = start_without_pages.eval_shape(*asked, capacity)
  return _in_pages(decoder, capacity, state, count)


def lowered_piece(decoder: Decoder, capacity: int, count: int) -> jax.stages.Lowered:
  """The program that reads a piece of a prompt."""
  token, row = jax.ShapeDtypeStruct((1, 1), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
  read = compiled_begin.eval_shape(decoder.method, decoder.weights, token, capacity)
  read = _in_pages(decoder, capacity, read, count)
  tokens = jax.ShapeDtypeStruct((1, PAGE + 1), jnp.int32)
  place = jax.ShapeDtypeStruct((), jnp.int32)
  asked, (axes, *_) = (decoder.method, decoder.weights, read), axes_of(decoder, capacity)
  return compiled_piece.lower(*asked, tokens, row, place, axes=axes)


def _in_pages(decoder: Decoder, capacity: int, state: State, count: int) -> State:
  """Shapes of a state whose caches have P pages."""
  kvs, width = shapes(decoder, capacity, count), capacity // PAGE
  tables = [
    jax.ShapeDtypeStruct((*cache.length.shape, width), jnp.int32) for cache in pages.caches(state)
  ]
  return pages.filled(state, kvs, tables)


class Paging:
  """The pages of an engine.

  Args:
    decoder: from `over_pages`.
    capacity: S.
    count: P.

  Attributes:
    pool, pieces: what counts pages, and what reads prompts into them.
    ahead: see the function.
    put_back: how many times a request was put back.
  """

  pool: Pool
  pieces: Pieces
  ahead: int
  put_back: int

  def __init__(self, decoder: Decoder, capacity: int, count: int):
    self._decoder, self._capacity = decoder, capacity
    self._shapes = shapes(decoder, capacity, count)
    self.ahead, self.put_back = ahead(decoder, self._shapes), 0
    self.reset()

  def reset(self) -> None:
    """Forgets all texts."""
    self._chains = dict[Ticket, list[int]]()
    self._aside = dict[Ticket, speculate.DecodeState]()
    if hasattr(self, "pool"):  # two of them might not fit
      del self.pool, self.pieces
    kvs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._shapes)
    self.pool = Pool(kvs, self._capacity // PAGE)
    self.pieces = Pieces(self._decoder, self._capacity, STORE, self.pool)

  def chain(self, ticket: Ticket) -> list[int]:
    """The pages of a request that decodes, in the order of its text."""
    return self._chains.get(ticket, [])

  def has_room(self, ticket: Ticket, decoding: int) -> bool:
    """Whether a request may be read beside so many that decode, each of which may need a page soon.

    Where none decodes it always may.
    """
    if not decoding:
      return True
    ids = ticket.ids + ticket.tokens
    shared = sum(not self._is_spare(block) for block in self.pieces.kept.find(ids))
    spare = sum(map(self._is_spare, self.pieces.kept))
    return -(-len(ids) // PAGE) - shared + decoding <= self.pool.free + spare

  def _is_spare(self, block: Block) -> bool:
    """Whether the store alone uses a block; then it alone uses those below it."""
    return self.pool.uses(block.page) == 1

  def has_free(self) -> bool:
    """Whether a page is free now; the store gives one up if it must, and can."""
    kept = self.pieces.kept
    if not self.pool.free and (block := next(filter(self._is_spare, kept), None)) is not None:
      kept.drop(block)
    return self.pool.free > 0

  def has_grown(self, ticket: Ticket, rows: int) -> bool:
    """Whether a request that decodes has pages for so many rows; it takes what it lacks."""
    chain = self._chains[ticket]
    while len(chain) * PAGE < rows:
      if not self.has_free():
        return False
      chain.append(self.pool.take())
    return True

  def admit(
    self, ticket: Ticket, reading: Reading, alone: speculate.DecodeState
  ) -> speculate.DecodeState:
    """The state of a request that is read: that with which it was put back, or else `alone`."""
    self._chains[ticket] = reading.chain
    return self._aside.pop(ticket, alone)

  def set_aside(self, ticket: Ticket, alone: speculate.DecodeState) -> None:
    """Puts a request back, of which `alone` is the state without what its pages hold."""
    self._aside[ticket] = alone
    self.put_back += 1
    self.drop(self._chains.pop(ticket))

  def drop(self, chain: Iterable[int]) -> None:
    """Somebody uses these pages no longer."""
    for page in chain:
      self.pool.drop(page)

  def end(self, ticket: Ticket) -> None:
    """A request has ended."""
    self.drop(self._chains.pop(ticket, ()))
    self._aside.pop(ticket, None)
