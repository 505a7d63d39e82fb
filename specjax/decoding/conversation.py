"""A conversation whose caches are kept from turn to turn.

New tokens are read by the rounds of the loop itself: they lie behind the committed text, a chain of
them is the draft, and a verifier accepts all of it. The target's cache and the drafter's memory
then follow as after any round, whatever the drafter is.

Letters: B batch, S capacity, N nodes of a chain that is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, speculate, switches
from specjax.base import PROPOSALS, Draft, Verdict, Verifier
from specjax.decoding.decoder import Decoder
from specjax.names.load import Model
from specjax.trees.structure import chain, gather

CHUNK = 32  # N, the newest token and 31 that are read in one pass
LEAST = 1024  # rows of the first cache; each growth compiles anew


class Piece(NamedTuple):
  """What a few rounds add to an answer.

  Attributes:
    tokens: the new ids.
    drafted: how many of them were drafted, the first ones.
    passes: of the model, which gave them.
  """

  tokens: list[int]
  drafted: int
  passes: int = 1


def _propose(params, target_params, state, context, settings, noise):
  """Drafts the tokens that lie behind the committed text."""
  step = jnp.arange(CHUNK, dtype=jnp.int32)[None]
  return chain(gather(context.tokens, context.length[:, None] - 1 + step)), state


def _verify(params, draft: Draft, log_probs, features, noise, *, depth, proposal):
  """Accepts the whole chain; its last token stands where the target's own would."""
  step = jnp.broadcast_to(jnp.arange(depth + 1, dtype=jnp.int32), draft.tokens.shape)
  count = jnp.full(len(step), depth - 1, jnp.int32)
  return Verdict(jnp.minimum(step, depth - 1), count, jnp.roll(draft.tokens, -1, 1))


_ALL = Verifier("all", "EXACT", PROPOSALS, "any", _verify)


def reading(method: speculate.Method) -> speculate.Method:
  """The method whose rounds commit what lies behind the text, up to the request's limit."""
  reader = method.drafter._replace(
    proposal="deterministic",
    nodes=CHUNK,
    depth=CHUNK - 1,
    propose=_propose,
    evaluate=None,
    update=method.drafter.read or method.drafter.update,
  )
  return speculate.Method(method.target, reader, _ALL)


Text = Sequence[int] | Sequence[Mapping[str, str]]  # ids, or turns


def asked(model: Model, prompt: Text, max_new_tokens: int) -> tuple[list[int], int]:
  """The ids of a prompt, and how many tokens its answer may have; see `Conversation.ask`."""
  held = checks.sequence("prompt", prompt, "a list of turns or of token ids")
  turns = len(held) > 0 and isinstance(held[0], Mapping)
  ids = model.encode(model.chat(prompt) if turns else prompt)  # type: ignore[arg-type]  # turns, if any, are known now
  checks.whole("max_new_tokens", max_new_tokens, 1)
  room = model.config.max_length - len(ids)
  if room < 1:
    raise ValueError(
      f"the conversation is full: it has {len(ids)} tokens, and {model.name} has "
      f"{model.config.max_length} positions; reset it to begin anew."
    )
  return ids, min(max_new_tokens, room)


@switches.hold
class Conversation:
  """One text that prompts and answers continue, in the first row of a decoder's batch.

  An answer has the tokens that a new `Decoder` gives after the whole prompt. The caches begin with
  1024 rows and grow in powers of two, up to the positions of the model. A draft-length policy keeps
  what it has learned.

  Attributes:
    decoder: the method.
    read: how many tokens of the last prompt were read; those before them were in the cache.

  Raises:
    ValueError: a model whose layers skip tokens, which reads prompts and answers in two ways.
  """

  decoder: Decoder
  read: int

  def __init__(self, decoder: Decoder):
    if (chosen := decoder.model.skipping) is not None:
      raise ValueError(f"`model` must have no skipping in a conversation, got {chosen.name!r}.")
    self.decoder, self.read = decoder, 0
    self._number = 0  # of this conversation among all requests, which decides its noise
    self._state: speculate.DecodeState | None = None

  @property
  def label(self) -> str:
    """The decoder's."""
    return self.decoder.label

  @property
  def stop_words(self) -> Sequence[str]:
    """The decoder's."""
    return self.decoder.stop_words

  @property
  def ids(self) -> list[int]:
    """The text so far: the last prompt, and what has been said of its answer."""
    if self._state is None:
      return []
    text = self._state.context
    return np.asarray(text.tokens)[0, : int(text.length[0])].tolist()

  def reset(self) -> None:
    """Forgets the text; what follows is another request, whose noise is its own."""
    self._number, self._state = self._number + 1, None

  def ask(self, prompt: Text, max_new_tokens: int = 128) -> Iterator[Piece]:
    """The answer, a round at a time. It may be left early; the text then ends with the last piece.

    Where the prompt does not continue the text so far, all of it is read again. An answer is
    shorter than `max_new_tokens` where the positions of the model end.

    Args:
      prompt: all turns, the new question the last, see `Model.chat`; or all ids.

    Raises:
      ValueError: a prompt that `Model` refuses, or one that leaves no room for an answer.
      FloatingPointError: the model's logits became NaN.
    """
    ids, budget = asked(self.decoder.model, prompt, max_new_tokens)
    self.decoder.check_budgets([budget])
    return self._answer(ids, budget)

  def _answer(self, ids: list[int], budget: int) -> Iterator[Piece]:
    method, B = self.decoder.method, self.decoder.batch
    limit = np.ones(B, np.int32)  # the other rows have a token each and are done
    limit[0] = len(ids) + budget
    request = self.decoder.request(np.arange(self._number, self._number + B), limit)
    state = self._read(ids, budget, request)
    self._state = state._replace(
      processors=speculate.begun(method.processors, request, state.context),
      log_probs=jnp.zeros_like(state.log_probs),
      done=state.context.length >= request.limit,
      stats=_nothing_counted(B, method.drafter.depth),
    )
    accepted = np.zeros(method.drafter.depth + 1)
    while not bool(self._state.done[0]):
      state = self._advance(method, request, self._state, 1)
      before, ids = len(ids), self.ids
      total = np.asarray(state.stats.accepted)[0]
      drafted, accepted = int(np.argmax(total - accepted)), total
      yield Piece(ids[before:], min(drafted, len(ids) - before))

  def _read(
    self, ids: list[int], budget: int, request: speculate.DecodeRequest
  ) -> speculate.DecodeState:
    """The state whose text is `ids`, with caches that have room for the answer."""
    method, held = self.decoder.method, self.ids
    depth = max(method.drafter.depth, CHUNK)
    rows = speculate.capacity_for(len(ids), budget, depth)
    most = speculate.capacity_for(self.decoder.model.config.max_length, 0, depth)
    capacity = min(max(LEAST, 1 << (rows - 1).bit_length()), -(-most // 64) * 64)
    alone = jnp.ones(self.decoder.batch, jnp.int32)
    begin = (method, self.decoder.weights, alone[:, None] * ids[0], alone, request)
    if self._state is None or ids[: len(held)] != held:
      held, state = ids[:1], speculate.compiled_start(*begin, capacity)
    elif capacity > self._state.context.tokens.shape[1]:
      larger = speculate.compiled_start.eval_shape(*begin, capacity)
      state = jax.tree.map(_grown, self._state, larger)
    else:
      state = self._state
    self.read = len(ids) - len(held)
    if not self.read:
      return state
    tokens = np.array(state.context.tokens)
    tokens[0, len(held) : len(ids)] = ids[len(held) :]
    limit = jnp.where(request.limit > 1, len(ids), 1)
    state = state._replace(
      context=state.context._replace(tokens=jnp.asarray(tokens)),
      processors=(),
      done=state.context.length >= limit,
      stats=_nothing_counted(len(tokens), CHUNK - 1),
    )
    request = request._replace(limit=limit, stop=jnp.full(1, -1, jnp.int32), processors=())
    return self._advance(reading(method), request, state, np.iinfo(np.int32).max)

  def _advance(
    self,
    method: speculate.Method,
    request: speculate.DecodeRequest,
    state: speculate.DecodeState,
    rounds: int,
  ) -> speculate.DecodeState:
    # A round overwrites its state. Where it breaks off, the next prompt is read from its beginning.
    self._state, weights = None, self.decoder.weights
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(rounds))
    self.decoder.check_logits(state, np.zeros(self.decoder.batch, int))
    self._state = state
    return state


def _nothing_counted(rows: int, depth: int) -> speculate.Stats:
  of_rows, of_depths = (rows,), (rows, depth + 1)  # arrays of their own: the loop takes each over
  return speculate.Stats(
    *(jnp.zeros(shape, jnp.int32) for shape in (of_rows, of_rows, of_depths, of_depths))
  )


def _grown(x: jax.Array, larger: jax.ShapeDtypeStruct) -> jax.Array:
  """x with zeros behind it, in the shape of `larger`."""
  return jnp.pad(x, [(0, b - a) for a, b in zip(x.shape, larger.shape, strict=True)])
