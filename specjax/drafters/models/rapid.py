"""A draft model reads a shortened prompt, which makes its passes cheap behind a long one.

Letters: B batch, T prompt length, C tokens of a chunk, G chunks.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Drafter, Features, Params
from specjax.trees.structure import gather

SATURATION = 1.5  # k1 of BM25


def bm25(tokens: Array, length: Array, size: int) -> Array:
  """f32[B, G]: how much each chunk of tokens i32[B, G C] tells about the last C tokens.

  Okapi BM25 (Robertson and Zaragoza 2009, section 3) with the chunks, which are equally long, as
  documents and tokens as words. Positions from `length` i32[B] on are no words.
  """
  B, S = tokens.shape
  place = jnp.arange(S, dtype=jnp.int32)[None]
  words = jnp.where(place < length[:, None], tokens, -1).reshape(B, -1, size)
  asked = length[:, None] - 1 - jnp.arange(size, dtype=jnp.int32)[None]
  query = jnp.where(asked >= 0, gather(tokens, jnp.maximum(asked, 0)), -2)
  times = (words[..., None] == query[:, None, None]).sum(2, dtype=jnp.float32)  # [B, G, C]
  real = ((length[:, None, None] - 1) // size + 1).astype(jnp.float32)
  within = (times > 0).sum(1, keepdims=True, dtype=jnp.float32)
  rare = jnp.log1p((real - within + 0.5) / (within + 0.5))
  return (rare * times * (SATURATION + 1) / (times + SATURATION)).sum(-1)


def shortened(tokens: Array, length: Array, chunks: int, size: int) -> Context:
  """The likeliest `chunks` chunks of tokens i32[B, T] in their order, as [B, chunks size].

  The first chunk stays, where a chat template begins, and so do the last two, where the question
  stands; `bm25` chooses the others. A text of no more chunks stays whole.
  """
  padded = jnp.pad(tokens, ((0, 0), (0, -tokens.shape[1] % size)))
  B, S = padded.shape
  chunk = jnp.arange(S // size, dtype=jnp.int32)[None]
  last = (length[:, None] - 1) // size
  kept = (chunk == 0) | (chunk >= last - 1)
  score = jnp.where(kept, jnp.inf, bm25(padded, length, size))
  score = jnp.where(chunk <= last, score, -jnp.inf)
  best = jnp.argsort(-score, axis=1)[:, :chunks].astype(jnp.int32)
  best = jnp.sort(jnp.where(best <= last, best, S // size), 1)  # what is behind the text goes last
  text = gather(padded.reshape(B, -1, size), jnp.minimum(best, S // size - 1)).reshape(B, -1)
  left_out = jnp.maximum(last[:, 0] + 1 - chunks, 0)
  return Context(text, length - left_out * size)


def rapid(drafter: Drafter, chunks: int = 8, size: int = 512) -> Drafter:
  """The draft model reads only those chunks of a long prompt that matter for its end.

  RAPID (Chen et al. 2025, arXiv 2502.20330) without its rule, which is `transfer`: under any other
  verifier nothing changes but the speed. The chunks are chosen once per request, on the device. The
  draft model's cache is as long as what it reads and what is generated, and its positions are those
  of the shortened text.

  They are the first, the last two, and those that BM25 finds for the end. The figure is of drafts
  by the target itself.

  Measured: 2.53 tokens per pass (without_training)

  Args:
    drafter: one whose state is made of the prompt's tokens alone: `draft_model`, `draft_tree` or
      `adaptive_model`.
    chunks: of a prompt, the first and the last two included.
    size: C, tokens in a chunk.

  Raises:
    ValueError: less than 3 chunks, or chunks of no token.
  """
  if chunks < 3 or size < 1:
    raise ValueError(f"`chunks` must be at least 3 and `size` at least 1, got {chunks} and {size}.")

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    T = features.hidden.shape[1]
    if chunks * size >= T:
      return drafter.init(params, target_params, context, features, capacity)
    short = shortened(context.tokens[:, :T], context.length, chunks, size)
    features = features._replace(hidden=features.hidden[:, : chunks * size])
    return drafter.init(params, target_params, short, features, capacity - (T - chunks * size))

  return drafter._replace(init=init, by_pieces=False)
