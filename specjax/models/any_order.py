"""Any-order transformer: in one pass, every slot's distribution given any other slots.

The two streams are XLNet's (Yang et al. 2019, arXiv 1906.08237, section 2.3); Guo and Ermon 2025
(arXiv 2504.20456) use them as a model of any subset. Each slot has two rows at one position. Its
content row reads its token and sees the content of no higher rank; its query row reads the mask
token, sees the content of lower rank, and gives the slot's distribution:

    rank     0 1 2     content rows      query rows
    slot 0   1         sees 0, 1, 2      content 1, 2, and itself
    slot 1   0         sees 1, 2         content 2, and itself
    slot 2  -1         sees 2            (the slot is given, so nothing is asked)

Content never changes once its slot is filled, whatever comes later. One pass over a filled canvas
therefore gives the distributions that a pass per slot would have given. Both streams are rows of
one network with one set of weights. A query row also sees itself, so that the first slot of an
empty canvas sees something.

Letters: B batch, L canvas length, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import Features, Params
from specjax.diffusion.any_subset import AnyOrder
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer


@functools.cache
def any_order(config: Config, mask: int) -> AnyOrder:
  """The network as the functions of the contract; one object per config, so jit caches hit.

  A training loss is the mean of `-joint` at the tokens of slots to fill, over random orders. No
  filled slot holds the mask token; see `denoiser` for the arguments and the errors.
  """
  checks.whole("mask", mask, 0, config.vocab_size - 1)
  head = denoiser(config, mask).head  # it refuses a network that cannot see both sides
  features: Callable[..., Any] = functools.partial(Transformer(config).apply, method="features")

  def log_probs(params: Params, tokens: Array, content: Array, query: Array) -> Array:
    """f32[B, L, V] of the query rows; content, query: bool[B, L, L], row i sees content j."""
    L = tokens.shape[1]
    both = jnp.concatenate([tokens, jnp.full_like(tokens, mask)], 1)
    position = jnp.broadcast_to(jnp.tile(jnp.arange(L, dtype=jnp.int32), 2), both.shape)
    itself = jnp.broadcast_to(jnp.eye(L, dtype=bool), content.shape)
    sees = jnp.block([[content, jnp.zeros_like(content)], [query, itself]])
    states: Features = features(params, both, position, sees)[0]
    logits = head(params, states.hidden[:, L:])
    logits = jnp.where(jnp.arange(config.vocab_size)[None, None] == mask, -jnp.inf, logits)
    return jax.nn.log_softmax(logits)

  def no_higher(rank: Array) -> Array:
    return rank[:, None, :] <= rank[:, :, None]

  def draft(params: Params, tokens: Array, known: Array, rank: Array) -> Array:
    query = jnp.broadcast_to(known[:, None, :], (*tokens.shape, tokens.shape[1]))
    return log_probs(params, tokens, no_higher(rank), query)

  def joint(params: Params, tokens: Array, known: Array, rank: Array) -> Array:
    return log_probs(params, tokens, no_higher(rank), rank[:, None, :] < rank[:, :, None])

  return AnyOrder(draft, joint)
