"""A language model that says some tokens only, for drafting: its head multiplies with their rows.

Letters: B batch, N nodes, V vocabulary, W tokens that are said, E width.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Cache, Evaluation, Features, LayeredTarget, Params, Target, showing
from specjax.models.linear import linear, take
from specjax.models.weights import Matrix


class Trimmed(NamedTuple):
  """lm: the model's params; rows: [W, E] of its LM head; ids: i32[W], the tokens they say."""

  lm: Params
  rows: Matrix
  ids: Array


def trim(model: Target, params: Params, ids: Array) -> Trimmed:
  """The params of `trimmed(model)` that says the tokens i32[W]."""
  lm = showing(LayeredTarget, model, "a smaller vocabulary")
  return Trimmed(params, take(lm.lm_head(params), ids), ids)


@functools.cache
def trimmed(model: Target) -> LayeredTarget:
  """A transformer with the logits of W tokens, -inf for all others; its params are `Trimmed`.

  VocabTrim (Goel et al. 2025, arXiv 2506.22694). A small model spends most of a pass in its LM
  head, and hardly ever drafts a rare token rightly.

  Raises:
    ValueError: a model that shows no layers.
  """
  lm = showing(LayeredTarget, model, "a smaller vocabulary")

  def head(params: Trimmed, hidden: Array) -> Array:
    said = lm.logits(linear(hidden, params.rows))
    every = jnp.full((*hidden.shape[:-1], lm.vocab_size), -jnp.inf)
    return every.at[..., params.ids].set(said)

  def check(hidden_layers) -> None:
    if hidden_layers:
      raise ValueError(
        "`hidden_layers` must be () for a trimmed model, which shows no layers, got "
        f"{hidden_layers}."
      )

  def prefill(params: Trimmed, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    check(hidden_layers)
    return lm.prefill(params.lm, tokens, length, capacity)

  def evaluate(
    params: Trimmed, cache: Cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    check(hidden_layers)
    x = lm.embed(params.lm, tokens)
    x, kv = lm.run_layers(params.lm, x, cache.length[:, None] + depth, mask, cache)
    hidden = lm.norm(params.lm, x)
    return Evaluation(head(params, hidden), Features(hidden), kv)

  def of_lm(function: Callable) -> Callable:
    return lambda params, *arguments, **more: function(params.lm, *arguments, **more)

  return dataclasses.replace(
    lm,
    prefill=prefill,
    evaluate=evaluate,
    head=head,
    embed=of_lm(lm.embed),
    lm_head=of_lm(lm.lm_head),
    run_layers=of_lm(lm.run_layers),
    run_some=of_lm(lm.run_some),
    norm=of_lm(lm.norm),
    last_layer=of_lm(lm.last_layer),
  )
