"""A draft model of another vocabulary drafts a text, which is split into the target's tokens.

Letters: B batch, D draft depth, U bytes of a drafted text, L the most bytes of a token, V tokens of
the target, X tokens of the draft model, W tokens of the target that are text.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import (
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  Params,
  Target,
  Verdict,
)
from specjax.drafters.stateless import chain_of
from specjax.heads.prefix import prefilled, reread
from specjax.models.cache import append_one, cut
from specjax.models.common_tokens import Bridge, packed, reading
from specjax.sampling import NoiseSource, Settings

FACTOR = 0x9E3779B1  # of the hash, odd


class Words(NamedTuple):
  """Tokens of the target by what they say.

  Attributes:
    code: u32[W], the hashes of their bytes, rising.
    ids: i32[W].
    said: u8[W, L], their bytes, then 0.
    size: i32[W], how many.
  """

  code: Array
  ids: Array
  said: Array
  size: Array


class Text(NamedTuple):
  """The params of `by_text`; `data.bridge` makes them of two tokenizers.

  Attributes:
    bridge: how the draft model reads the target's tokens.
    said: u8[X, L], the bytes that each token of the draft model says, then 0.
    size: i32[X], how many; 0 for tokens that end a draft, being no text or too long a one.
    words: the target's tokens.
  """

  bridge: Bridge
  said: Array
  size: Array
  words: Words


def codes(said: Array) -> Array:
  """u32[.., L]: the hashes of the first 1 to L bytes of said u8[.., L]."""

  def longer(code: Array, byte: Array) -> tuple[Array, Array]:
    code = code * jnp.uint32(FACTOR) + byte.astype(jnp.uint32) + jnp.uint32(1)
    return code, code

  begun = jnp.zeros(said.shape[:-1], jnp.uint32)
  return jnp.moveaxis(lax.scan(longer, begun, jnp.moveaxis(said, -1, 0))[1], 0, -1)


def looked_up(words: Words, text: Array) -> Array:
  """i32[B, U, L]: which token says the bytes u .. u + l of text u8[B, U], -1 where none does."""
  L = words.said.shape[1]
  ahead = jnp.arange(text.shape[1])[:, None] + jnp.arange(L)[None]
  said = jnp.pad(text, ((0, 0), (0, L)))[:, ahead]
  code = codes(said)
  at = jnp.minimum(jnp.searchsorted(words.code, code, method="scan_unrolled"), len(words.code) - 1)
  size = jnp.arange(1, L + 1, dtype=jnp.int32)
  mine = jnp.arange(L)[None] < size[:, None]  # [L, L], the bytes of a text of each size
  own = jnp.where(mine[None, None], said[..., None, :], 0) == words.said[at]
  found = (words.code[at] == code) & (words.size[at] == size[None, None]) & own.all(-1)
  return jnp.where(found, words.ids[at], -1)


def split(words: Words, text: Array, length: Array, count: int) -> Array:
  """The first `count` of the fewest tokens that say text u8[B, U], its first length i32[B] bytes.

  Of equally few, a longer one comes later, as spaces go with the word behind them. -1 stands where
  there is no more text, or no token for it.
  """
  B, U = text.shape
  ids = looked_up(words, text)
  L, none = ids.shape[2], jnp.int32(U + 1)

  def step(ahead: Array, here: tuple[Array, Array]) -> tuple[Array, Array]:
    place, ids = here  # ahead i32[B, L]: the fewest tokens from the next places on
    cost = jnp.where(ids < 0, none, jnp.minimum(ahead + 1, none))
    size = jnp.argmin(cost, 1).astype(jnp.int32)
    fewest = jnp.where(place == length, 0, jnp.where(place > length, none, cost.min(1)))
    return jnp.concatenate([fewest[:, None], ahead[:, :-1]], 1), size

  begun = jnp.full((B, L), none).at[:, 0].set(jnp.where(length == U, 0, none))
  places = jnp.arange(U, dtype=jnp.int32)
  found, sizes = lax.scan(step, begun, (places, jnp.moveaxis(ids, 1, 0)), reverse=True)
  row, said = jnp.arange(B), []
  at, ends = jnp.zeros(B, jnp.int32), found[:, 0] >= none
  for _ in range(count):
    here = jnp.minimum(at, U - 1)
    size = sizes[here, row]
    ends |= at >= length
    said.append(jnp.where(ends, -1, ids[row, here, size]))
    at += size + 1
  return jnp.stack(said, 1)


@functools.cache
def by_text(lm: Target, nodes: int) -> Drafter:
  """A draft model of another vocabulary writes a text, greedily, which is split into tokens.

  Universal assisted decoding (Timor et al. 2025, arXiv 2502.05202, algorithm 2, string-level exact
  match): the tokens are compared with the target's, so the draft is one fixed chain and no
  distribution has to be corrected for. It may say what no token of its own says. The text is split
  on the device, into the fewest tokens of the target.

  Args:
    lm: the draft model, whose params are a `Text`.
    nodes: the root and D tokens drafted per round, of either vocabulary.
  """
  depth = nodes - 1
  if nodes < 2:
    raise ValueError(
      f"`nodes` must be at least 2, so that a draft model drafts a token, got {nodes}."
    )
  reader = reading(lm)

  def init(
    params: Text, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    return prefilled(reader, params.bridge, context, features, capacity)

  def propose(
    params: Text,
    target_params: Params,
    cache: Any,  # a SpelledCache
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    zero, alone = jnp.zeros_like(context.root), jnp.ones((*context.root.shape, 1), bool)
    evaluation = reader.evaluate(params.bridge, cache, context.root, zero, alone)
    read: Any = append_one(reader, cache, evaluation)
    own = read.own
    tokens = []
    for step in range(depth):
      tokens.append(jnp.argmax(evaluation.logits, -1).astype(jnp.int32))
      if step < depth - 1:
        evaluation = lm.evaluate(params.bridge.lm, own, tokens[-1], zero, alone)
        own = append_one(lm, own, evaluation)
    drafted = jnp.concatenate(tokens, 1)
    size = params.size[drafted]
    size = jnp.where(jnp.cumprod(size > 0, 1) > 0, size, 0)
    text = packed(params.said[drafted], size)
    draft = chain_of(context, split(params.words, text, size.sum(1, dtype=jnp.int32), depth))
    # What was drafted stays behind the cache's rows, where nothing reads it.
    return draft, cache._replace(kv=cut(own, own.length).kv)

  def update(
    params: Text,
    target_params: Params,
    cache: Any,  # a SpelledCache
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return reread(reader, params.bridge, cache, draft, verdict, rows)

  return Drafter("by_text", "deterministic", depth + 1, depth, init, propose, update, varies=True)
