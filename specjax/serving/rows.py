"""The rows of one compiled loop, each of which is free or holds a request of its own.

Between rounds a prompt is prefilled alone, and its state takes the place of a free row. The rounds
are those of `speculate.advance`, whatever the drafter is. Requests with one prompt that follow each
other share its prefill.

Letters: B batch, T padded length of a prompt.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import distributed, speculate, switches
from specjax.decoding.batching import timed
from specjax.decoding.decoder import Decoder, pad_to_bucket
from specjax.models.pages import bare
from specjax.serving.pool import Pool


@jax.jit(static_argnames=("method", "capacity"))
def start_without_pages(
  method: speculate.Method,
  weights: speculate.Weights,
  tokens: jax.Array,
  length: jax.Array,
  request: speculate.DecodeRequest,
  capacity: int,
) -> speculate.DecodeState:
  """`speculate.start` of prompts of one token, of which a cache holds nothing yet."""
  state = speculate.start(method, weights, tokens, length, request, capacity)
  return bare(state)


@jax.jit(donate_argnums=0)
def _replaced(
  state: speculate.DecodeState,
  request: speculate.DecodeRequest,
  alone: speculate.DecodeState,
  own: speculate.DecodeRequest,
  b: jax.Array,
) -> tuple[speculate.DecodeState, speculate.DecodeRequest]:
  """A state and a request of B rows, of which row b is now that of `alone` and `own`."""

  def put(x: jax.Array, row: jax.Array) -> jax.Array:
    return x.at[b].set(row[0])

  rows = {name: getattr(request, name) for name in ("settings", "key", "limit")}
  replaced = jax.tree.map(put, rows, {name: getattr(own, name) for name in rows})
  return jax.tree.map(put, state, alone), request._replace(**replaced)


@jax.jit
def _taken(
  state: speculate.DecodeState, request: speculate.DecodeRequest, index: jax.Array
) -> tuple[speculate.DecodeState, speculate.DecodeRequest]:
  """The rows index[b] i32[B] of a state and its request; where it is negative, one that is done."""
  at = jnp.maximum(index, 0)
  taken = jax.tree.map(lambda x: x[at], state)
  rows = {name: getattr(request, name) for name in ("settings", "key", "limit")}
  chosen = jax.tree.map(lambda x: x[at], rows)
  return taken._replace(done=taken.done | (index < 0)), request._replace(**chosen)


@jax.jit(donate_argnums=0)
def _inside(larger: speculate.DecodeState, state: speculate.DecodeState) -> speculate.DecodeState:
  """`state`, each array of it at the beginning of that of `larger`."""

  def put(x: jax.Array, part: jax.Array) -> jax.Array:
    return part if x.shape == part.shape else x.at[tuple(slice(n) for n in part.shape)].set(part)

  return jax.tree.map(put, larger, state)


@switches.hold
class DecodeRows:
  """B rows, all of them free at first.

  Args:
    decoder: the method and the weights.
    capacity: S of the caches.
    T: to which a text is padded that fills the free rows.
    count: B; None is the decoder's.
    pool: the pages of the caches, where these are in pages. Prompts are then read in pieces, and
      put into rows by `place`.

  Attributes:
    chains: which pages the text of each row has, in order; () for a free row.
  """

  chains: Sequence[Sequence[int]]

  def __init__(
    self,
    decoder: Decoder,
    capacity: int,
    T: int,
    count: int | None = None,
    pool: Pool | None = None,
  ):
    self.decoder, self.capacity, self._pool, self.chains = decoder, capacity, pool, ()
    B = decoder.batch if count is None else count
    # A free row holds a text of one token, which has reached its limit.
    self._request = self._empty = decoder.request(np.zeros(B, int), np.ones(B, np.int32))
    self._state = self._start([0], T, self._request)
    self._kept: tuple[list[int], int, speculate.DecodeState] | None = None  # a prompt, T, its state
    # What a drafter keeps of earlier texts is not the prompt's alone.
    self._sharing = decoder.method.drafter.keep is None
    if pool is not None:
      self.out(0)  # compiles what puts a row back

  def _start(
    self, prompt: list[int], T: int, request: speculate.DecodeRequest
  ) -> speculate.DecodeState:
    B, decoder = len(request.limit), self.decoder
    tokens = np.zeros((B, T), np.int32)
    tokens[:, : len(prompt)] = prompt
    length = jnp.full(B, len(prompt), jnp.int32)
    start = speculate.compiled_start if self._pool is None else start_without_pages
    return start(
      decoder.method, decoder.weights, jnp.asarray(tokens), length, request, self.capacity
    )

  def admit(
    self, b: int, prompt: list[int], T: int, request: speculate.DecodeRequest, again: bool = False
  ) -> float:
    """Puts a request of one row into row b; the seconds of its prefill.

    What a drafter keeps may be as long as T; then all prompts are padded to one T.

    Args:
      again: whether the next request has the same prompt, for which the prefill is then kept.
    """
    kept, self._kept = self._kept, None
    if kept is not None and kept[:2] == (prompt, T):
      alone, seconds = kept[2], 0.0
      own = speculate.compiled_begun(self.decoder.method.processors, request, alone.context)
      alone = alone._replace(processors=own, done=len(prompt) >= request.limit)
    else:
      alone, seconds = timed(self._start, prompt, T, request)
    if again and self._sharing:
      self._kept = prompt, T, alone
    self.place(b, alone, request)
    return seconds

  def place(self, b: int, alone: speculate.DecodeState, request: speculate.DecodeRequest) -> None:
    """Puts a request of one row, whose prompt is read, into row b."""
    self._state, self._request = _replaced(self._state, self._request, alone, request, jnp.int32(b))

  @property
  def count(self) -> int:
    """B."""
    return len(self._request.limit)

  def take(self, index: Sequence[int]) -> None:
    """Goes on with the rows index[b] of now; a negative one makes a free row."""
    order = jnp.asarray(index, jnp.int32)
    self._state, self._request = _taken(self._state, self._request, order)

  def compile(self) -> None:
    """Runs once each method whose rounds there may be, without a row that is busy."""
    self.take([-1] * self.count)
    if self._pool is not None:
      self.out(0)
    for method in self.decoder.methods:
      self._state = self._back(
        speculate.compiled_advance(
          method, self.decoder.weights, self._request, self._lent(), jnp.int32(1)
        )
      )

  def out(self, b: int) -> speculate.DecodeState:
    """Row b as a state of its own, which may be put back where its cache is read again; the row is
    free then."""
    alone, _ = _taken(self._state, self._request, jnp.full(1, b, jnp.int32))
    self._end(b)
    return alone

  def _lent(self) -> speculate.DecodeState:
    """The state with the pages that its rows have."""
    return self._state if self._pool is None else self._pool.lent(self._state, self.chains)

  def _back(self, state: speculate.DecodeState) -> speculate.DecodeState:
    return state if self._pool is None else self._pool.back(state)

  def _end(self, b: int) -> None:
    self._state = self._state._replace(done=self._state.done.at[b].set(True))

  def grow(self, capacity: int, T: int) -> None:
    """Makes room for longer requests beside those that are held; caches must be dense."""
    self.capacity, self._kept = capacity, None
    self._state = _inside(self._start([0], T, self._empty), self._state)

  def free(self, b: int) -> None:
    """Ends row b where it is; later requests begin with what its drafter has learnt."""
    self._end(b)
    if self.decoder.method.drafter.keep is not None:
      one = jax.tree.map(lambda x: x[b : b + 1], (self._state.drafter, self._state.context))
      self.decoder.learn(self._state._replace(drafter=one[0], context=one[1]))

  def advance(self, rounds: int) -> speculate.DecodeState:
    """`rounds` rounds at most; the state on the host, without caches and memories."""
    self._state = self._back(self.decoder.advance(self._request, self._lent(), rounds))
    return distributed.fetch(self._state._replace(cache=None, drafter=None, processors=()))


def padded_lengths(decoder: Decoder, max_length: int, capacity: int) -> list[int]:
  """The T that are compiled, rising: powers of two, and one for the longest prompt.

  Some drafters keep what is as long as the padded prompt, such as `aggressive`, whose source it is.
  Their rows agree only where all prompts are padded to the longest.
  """
  powers = (pad_to_bucket(1) << i for i in itertools.count())
  every = [*itertools.takewhile(max_length.__gt__, powers), max_length]

  def shapes(T: int) -> list[tuple[tuple[int, ...], jnp.dtype]]:
    tokens, length = jax.ShapeDtypeStruct((1, T), jnp.int32), jnp.ones(1, jnp.int32)
    request = decoder.request(np.zeros(1, int), np.ones(1, np.int32))
    state = speculate.compiled_start.eval_shape(
      decoder.method, decoder.weights, tokens, length, request, capacity
    )
    return [(x.shape, x.dtype) for x in jax.tree.leaves(state)]

  longest = shapes(max_length)
  return [T for T in every if shapes(T) == longest]
