"""CTC: the loss of a head whose frames spell tokens together, and which of them were right.

Letters: B batch, M drafting positions, D frames, L tokens, W draft vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from specjax.train.recipe import losses


def leading(known: Array) -> Array:
  """bool[..., L]: the tokens before the first that is not known, of bool[..., L]."""
  return jnp.cumprod(known, -1, dtype=jnp.int32) > 0


def loss(logits: Array, labels: Array, known: Array) -> Array:
  """The mean, in nats, of -log P(tokens), the sum over all alignments with the frames.

  Graves et al. 2006, section 4. The tokens are the first L = (D + 1) // 2, as many as fit even
  where all are equal, before the first that is not known; a position without any does not count.

  Args:
    logits: f32[B, M, D, W + 1], of which the last is the blank's.
    labels, known: i32, bool[B, M, D], tokens in the draft vocabulary and whether each is learned.
  """
  *batch, D, symbols = logits.shape
  L, rows = (D + 1) // 2, batch[0] * batch[1]
  said = leading(known[..., :L]).reshape(rows, L)
  with jax.numpy_dtype_promotion("standard"):
    each = optax.ctc_loss(
      logits.reshape(rows, D, symbols),
      jnp.zeros((rows, D)),
      labels[..., :L].reshape(rows, L),
      1.0 - said,
      blank_id=symbols - 1,
    )
  return losses.mean(each, said[:, 0].astype(jnp.float32))


class Said(NamedTuple):
  """What frames have said of a text: the number i32[B, M] of its tokens, and whether the last frame
  was blank, bool[B, M]."""

  number: Array
  blank: Array


def follow(logits: Array, labels: Array, known: Array, said: Said) -> tuple[Array, Said]:
  """(what a frame says that keeps to the text i32[B, M], what has been said after it).

  Of the blank, the next token and, after a token, that token again, it is the likeliest. `logits`
  are those of the frame, f32[B, M, W + 1]; labels and known [B, M, D] are as in `loss`.
  """
  blank, D = logits.shape[-1] - 1, labels.shape[-1]

  def token(number: Array) -> Array:
    return jnp.take_along_axis(labels, jnp.clip(number, 0, D - 1)[..., None], -1)[..., 0]

  more = said.number < leading(known).sum(-1)
  following, last = token(said.number), token(said.number - 1)
  again = (said.number > 0) & ~said.blank
  fresh = more & ~(again & (following == last))
  choices = jnp.stack([jnp.full_like(following, blank), following, last], -1)
  allowed = jnp.stack([jnp.ones_like(more), fresh, again], -1)
  score = jnp.where(allowed, jnp.take_along_axis(logits, choices, -1), -jnp.inf)
  best = jnp.argmax(score, -1)
  symbol = jnp.take_along_axis(choices, best[..., None], -1)[..., 0]
  return symbol, Said(said.number + (best == 1).astype(jnp.int32), best == 0)
