"""Prompts that are read in pieces of 64 tokens, which are kept for prompts that begin alike.

What a piece leaves depends on the tokens up to its end alone, and one program reads every piece:
from the same rows it makes the same bits. So a piece that was kept and is put back is bit for bit
what reading it again gives, whatever else is in the store.

A piece is a chain that is accepted as a whole, so the drafter's state follows as after any round.

Of caches in pages a piece fills one page. That is not copied: whoever begins alike has the same
page in its tables. What a drafter has besides is kept as it is beside dense caches.

Letters: B batch, N = 64 tokens of a piece, S capacity.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax import checks, speculate, switches
from specjax.base import Context, Verdict
from specjax.decoding.decoder import Decoder
from specjax.models.cache import Newest, zero_after
from specjax.models.pages import bare
from specjax.serving.pool import Pool
from specjax.serving.prefixes import BLOCK, Block, Prefixes
from specjax.trees.structure import chain

Axes = tuple[int | None, ...]


class Read(NamedTuple):
  """What reading the first n tokens of a prompt leaves, n - 1 of them a whole number of pieces.

  Attributes:
    cache: the target's, of n - 1 rows.
    drafter: the drafter's state.

  Between programs caches in pages are `bare`.
  """

  cache: Any
  drafter: Any


def begin(
  method: speculate.Method, weights: speculate.Weights, token: Array, capacity: int
) -> Read:
  """The first token i32[1, 1] of a prompt is read."""
  alone = jnp.ones(1, jnp.int32)
  _, cache, state = speculate.prefilled(method, weights, token, alone, capacity)
  return bare(Read(cache, state))


def piece(
  method: speculate.Method,
  weights: speculate.Weights,
  read: Read,
  tokens: Array,
  rows: Array,
  place: Array,
  axes: Axes,
) -> tuple[Read, list[Array]]:
  """Reads one piece more.

  Args:
    tokens: i32[1, N + 1], the newest token that is read and those of the piece.
    rows: i32[1], how many of the piece count; fewer than N at the prompt's end.
    place: i32[], the rows of the cache so far.
    axes: of each array of `read` the axis that is S long, None where it has none (static).

  Returns:
    What is read now, and what is to be kept of it: of each array its N rows, or all of it. Caches
    are there with their pages, if they have such; these are not among what is to be kept.
  """
  target, drafter = method.target, method.drafter
  draft = chain(tokens[:, :-1])
  seen = jnp.tril(jnp.ones((1, BLOCK, BLOCK), bool))
  # Nobody asks for its logits, so they are not worked out.
  evaluation = target.evaluate(
    weights.target, read.cache, draft.tokens, draft.depth, seen, drafter.hidden_layers
  )
  verdict = Verdict(draft.depth, jnp.full(1, BLOCK - 1, jnp.int32), tokens[:, 1:])
  update = drafter.read or drafter.update
  state = update(
    weights.drafter,
    weights.target,
    read.drafter,
    draft=draft,
    evaluation=evaluation,
    verdict=verdict,
    rows=rows,
  )
  written = rows + zero_after(evaluation.features.hidden[:, 0, 0])
  found = Read(target.commit(read.cache, evaluation.kv, verdict.path, written), state)

  def kept(x: Array, axis: int | None) -> Array:
    return jnp.copy(x) if axis is None else lax.dynamic_slice_in_dim(x, place, BLOCK, axis)

  return found, list(map(kept, jax.tree.leaves(bare(found)), axes))


def put(read: Read, kept: Sequence[Array], place: Array, axes: Axes) -> Read:
  """`piece` in another way: what was kept of the piece is put back."""

  def back(x: Array, own: Array, axis: int | None) -> Array:
    return jnp.copy(own) if axis is None else lax.dynamic_update_slice_in_dim(x, own, place, axis)

  leaves, tree = jax.tree.flatten(read)
  return jax.tree.unflatten(tree, map(back, leaves, kept, axes))


compiled_begin = jax.jit(begin, static_argnames=("method", "capacity"))
compiled_piece = jax.jit(piece, static_argnames=("method", "axes"), donate_argnames="read")
_put = jax.jit(put, static_argnames="axes", donate_argnames="read")
_ready = jax.jit(speculate.ready, static_argnames="method")


def refused(decoder: Decoder) -> str:
  """Why a decoder's prompts cannot be read in pieces, "" where they can."""
  if decoder.method.target is not decoder.model.target:
    return f"the cache {decoder.cache!r} and the verifier {decoder.verifier!r}"
  if decoder.model.skipping is not None:
    return f"the skipping {decoder.model.skipping.name!r}"
  return "" if decoder.method.drafter.by_pieces else f"the drafter {decoder.name!r}"


def check_pieces(decoder: Decoder, capacity: int, budget: int) -> Axes:
  """`axes_of` a decoder.

  Raises:
    ValueError: a decoder whose prompts cannot be read in pieces, or a budget below a piece.
  """
  why = refused(decoder)
  axes, size, why = ((), 0, why) if why else axes_of(decoder, capacity)
  if why:
    checks.refuse("prefixes", budget, f"0 with {why}: prompts are then read as a whole")
  if budget < size:
    checks.refuse("prefixes", budget, f"at least {size} bytes, which {BLOCK} tokens take here")
  return axes


def axes_of(decoder: Decoder, capacity: int) -> tuple[Axes, int, str]:
  """(of each array of a `Read` the axis that is S long, None where it has none; the bytes of a
  piece; why prompts cannot be read in pieces, "" where they can).

  Of a layer's newest rows some move at a piece, so they are kept as a whole.
  """

  def shapes(S: int) -> list[Any]:
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    read = compiled_begin.eval_shape(decoder.method, decoder.weights, token, S)
    return jax.tree.leaves(read, is_leaf=lambda x: isinstance(x, Newest))

  axes, size, why = list[int | None](), 0, ""
  for own, longer in zip(shapes(capacity), shapes(capacity + BLOCK), strict=True):
    if isinstance(own, Newest):
      axes.append(None)
      size += own.rows.size * own.rows.dtype.itemsize
      continue
    axis = next((i for i, n in enumerate(own.shape) if n != longer.shape[i]), None)
    if axis is not None and own.shape[axis] != capacity:  # it has more than a row a token
      why = f"the drafter {decoder.name!r}"
    share = 1 if axis is None else own.shape[axis] // BLOCK
    size += own.size * own.dtype.itemsize // share
    axes.append(axis)
  return tuple(axes), size, why


class Reading:
  """A prompt of which n tokens are read.

  Attributes:
    ids, n: the prompt, and how many of its tokens are read.
    reused: of these, how many had been kept.
    chain: of caches in pages those that hold them, in order.
  """

  ids: list[int]
  n: int
  reused: int
  chain: list[int]

  def __init__(self, ids: list[int], read: Read):
    self.ids, self.n, self.reused, self.chain = ids, 1, 0, []
    self.read, self.blocks = read, list[Block]()

  @property
  def done(self) -> bool:
    """Whether all of it is read."""
    return self.n == len(self.ids)


@switches.hold
class Pieces:
  """Reads prompts, one row each.

  Args:
    decoder: the method and the weights.
    capacity: S, a whole number of pieces.
    budget: bytes in which pieces are kept.
    pool: the pages of caches in such, of which each piece takes one that must be there; see
      `serving.paging`.

  Attributes:
    kept: the store.

  Raises:
    ValueError: a decoder whose prompts cannot be read in pieces, or a budget below a piece.
  """

  kept: Prefixes

  def __init__(self, decoder: Decoder, capacity: int, budget: int, pool: Pool | None = None):
    self.decoder, self.capacity, self._pool = decoder, capacity, pool
    if pool is None:
      self._axes = check_pieces(decoder, capacity, budget)
      self.kept = Prefixes(budget)
    else:
      self._axes, *_ = axes_of(decoder, capacity)
      self.kept = Prefixes(budget, lambda block: pool.drop(block.page))

  def begin(self, ids: list[int]) -> Reading:
    """A prompt of which the longest beginning that was kept is put back."""
    method, weights = self.decoder.method, self.decoder.weights
    first = jnp.asarray(np.array([ids[:1]], np.int32))
    reading = Reading(ids, compiled_begin(method, weights, first, self.capacity))
    for block in self.kept.find(ids):
      place = jnp.int32(reading.n - 1)
      reading.read = _put(reading.read, block.held, place, axes=self._axes)
      reading.blocks.append(block)
      reading.n += BLOCK
    reading.reused = len(reading.blocks) * BLOCK
    if self._pool is not None:
      reading.chain = [self._pool.hold(block.page) for block in reading.blocks]
    return reading

  def go_on(self, reading: Reading) -> None:
    """Reads the next piece, and keeps it."""
    n, ids = reading.n, reading.ids
    tokens = np.zeros((1, BLOCK + 1), np.int32)
    own = ids[n - 1 : n + BLOCK]
    tokens[0, : len(own)] = own
    rows, place = jnp.full(1, len(own) - 1, jnp.int32), jnp.int32(n - 1)
    method, weights, read, page = self.decoder.method, self.decoder.weights, reading.read, 0
    if self._pool is not None:
      reading.chain.append(page := self._pool.take())
      read = self._pool.lent(read, [reading.chain])
    arguments = method, weights, read, jnp.asarray(tokens), rows, place
    read, held = compiled_piece(*arguments, axes=self._axes)
    if self._pool is not None:
      read = self._pool.back(read)
    reading.read = read
    reading.n += len(own) - 1
    if len(own) == BLOCK + 1:
      if self._pool is not None:
        self._pool.hold(page)
      reading.blocks.append(self.kept.add(reading.blocks, ids, held, page))

  def ready(self, reading: Reading, request: speculate.DecodeRequest) -> speculate.DecodeState:
    """The state of one row, with its prompt read."""
    tokens = np.zeros((1, self.capacity), np.int32)
    tokens[0, : reading.n] = reading.ids
    context = Context(jnp.asarray(tokens), jnp.full(1, reading.n, jnp.int32))
    return _ready(self.decoder.method, request, context, *reading.read)
