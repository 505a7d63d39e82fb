"""Batch-scheduled sampling: a model reads some of its own tokens in place of the text's.

Cen et al. 2024 (Bridging the Training-Inference Gap by Self-Generated Tokens, arXiv 2410.14655,
section 3.1). Each token of an answer is replaced, with some probability, by one that the model
itself draws after what stands before it, replaced tokens included, and the text's tokens are what
is learned. Such a context comes of as many passes as it has replaced tokens in a row of influence:
with fixed noise every pass redraws all of them, as in parallel scheduled sampling (Duckworth et al.
2019, arXiv 1906.04331), and a few passes are enough where few tokens are replaced.

Letters: B rows, T tokens of a row, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.base import Params
from specjax.data.packing import PackedRows, pack
from specjax.models.transformer import Transformer
from specjax.train.recipe import forward
from specjax.train.recipe.config import Count, Share
from specjax.train.recipe.texts import Document


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheduled:
  """How much of its own a model reads.

  Attributes:
    own_tokens: share of the answers' tokens that the model's own replace in what it reads; of a
      record without question, of all its tokens.
    own_passes: passes that draw them.
  """

  own_tokens: Share = 0.0
  own_passes: Count = 2


class Replaceable(NamedTuple):
  """`PackedRows`, and bool[R, T] which tokens may be replaced."""

  tokens: np.ndarray
  position: np.ndarray
  segment: np.ndarray
  mask: np.ndarray
  said: np.ndarray


class Drawn(NamedTuple):
  """What is drawn for a step: which tokens are replaced bool[B, T], and noise f32[B, T] in 0..1."""

  replaced: Array
  noise: Array


def replaceable(rows: PackedRows, documents: Sequence[Document], length: int) -> Replaceable:
  """Rows packed of texts with, of the same texts, `documents` that say which tokens are said."""
  return Replaceable(*rows, pack(documents, length).mask)


def draw(rows: Replaceable, key: Array, options: Scheduled) -> tuple[PackedRows, Drawn]:
  """Draws for a batch of rows."""
  which, noise = jax.random.split(key)
  chosen = jax.random.uniform(which, rows.tokens.shape) < options.own_tokens
  return PackedRows(*rows[:-1]), Drawn(
    chosen & rows.said, jax.random.uniform(noise, rows.tokens.shape)
  )


def read(
  network: Transformer, params: Params, rows: PackedRows, drawn: Drawn, passes: int
) -> Array:
  """i32[B, T], the tokens of rows of which some are the model's own."""
  tokens = jnp.asarray(rows.tokens)

  def again(_, mixed: Array) -> Array:
    hidden = forward.read(network, params, rows._replace(tokens=mixed)).hidden  # type: ignore[arg-type]  # traced
    logits = jnp.asarray(network.apply(params, hidden, method="head"))
    mass = jnp.cumsum(jax.nn.softmax(logits.astype(jnp.float32)), -1)
    # What is drawn by the noise of its own place after the token before it.
    noise = jnp.roll(drawn.noise, -1, 1)[..., None]
    own = (mass < noise * mass[..., -1:]).sum(-1).astype(jnp.int32)
    return jnp.where(drawn.replaced, jnp.roll(own, 1, 1), tokens)

  return lax.stop_gradient(lax.fori_loop(0, passes, again, tokens))
