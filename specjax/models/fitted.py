"""A language model whose vocabulary is cut or filled up to another's length.

Published vocabularies are padded to lengths of their own, behind the tokens that they share.

Letters: B batch, N nodes, V the vocabulary that is asked for.
"""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import Evaluation, Params, StatesTarget, Target


@functools.cache
def fitted(lm: Target, vocab_size: int) -> Target:
  """The model with logits f32[..., V], V = `vocab_size`: it never says the tokens that it lacks.

  A token that it has no row for is read as its last.
  """
  shared = min(vocab_size, lm.vocab_size)

  def known(tokens: Array) -> Array:
    return jnp.minimum(tokens, lm.vocab_size - 1)

  def fit(logits: Array) -> Array:
    ends = [(0, 0)] * (logits.ndim - 1) + [(0, vocab_size - shared)]
    return jnp.pad(logits[..., :shared], ends, constant_values=-jnp.inf)

  def prefill(params: Params, tokens: Array, *rest: Any, **more: Any):
    return lm.prefill(params, known(tokens), *rest, **more)

  def evaluate(params: Params, cache: Any, tokens: Array, *rest: Any, **more: Any) -> Evaluation:
    found = lm.evaluate(params, cache, known(tokens), *rest, **more)
    return found._replace(logits=fit(found.logits))

  own = dataclasses.replace(
    lm,
    vocab_size=vocab_size,
    prefill=prefill,
    evaluate=evaluate,
    head=lambda params, hidden: fit(lm.head(params, hidden)),
  )
  if not isinstance(own, StatesTarget):
    return own
  embed = own.embed
  return dataclasses.replace(own, embed=lambda params, tokens: embed(params, known(tokens)))
