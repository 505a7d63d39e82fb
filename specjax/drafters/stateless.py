"""Drafters that keep nothing between rounds: a draft is a function of the text."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Params, Verdict
from specjax.sampling import NoiseSource, Settings
from specjax.trees.structure import chain


def from_draft(
  name: str, nodes: int, depth: int, draft: Callable[[Params, Context], Draft]
) -> Drafter:
  """A drafter without a state, whose `draft` is a fixed rule of its weights and the text."""

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    return ()

  def propose(
    params: Params,
    target_params: Params,
    state: Any,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    return draft(params, context), state

  def update(
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return state

  return Drafter(
    name, "deterministic", nodes, depth, init, propose, update, varies=nodes > 1, by_pieces=True
  )


def chain_of(context: Context, guesses: Array) -> Draft:
  """The chain of guesses i32[B, D] after the root; a negative one ends it."""
  tokens = jnp.concatenate([context.root, guesses], 1)
  valid = jnp.cumprod(tokens >= 0, 1, dtype=jnp.int32) > 0
  return chain(jnp.maximum(tokens, 0), valid)


@functools.cache
def stateless(name: str, depth: int, guess: Callable[[Context], Array]) -> Drafter:
  """A chain of guesses that follow from the text, with no weights.

  Args:
    name: of the method.
    depth: D, tokens drafted per round.
    guess: (context) -> i32[B, D], the tokens after the root i32[B, 1]; a negative one ends the
      chain. Another shape is a ValueError.
  """

  def draft(params: Params, context: Context) -> Draft:
    guesses, want = guess(context), (len(context.length), depth)
    if jnp.shape(guesses) != want or not jnp.issubdtype(guesses.dtype, jnp.integer):
      raise ValueError(
        f"the guesses of drafter={name!r} must be i32[B, depth], here of the shape {want}, got "
        f"{jnp.result_type(guesses)} of the shape {jnp.shape(guesses)}."
      )
    return chain_of(context, guesses)

  return from_draft(name, depth + 1, depth, draft)


@functools.cache
def none() -> Drafter:
  """Drafts nothing: plain decoding, in the same loop.

  This is the loop with N = 1; its empty chain is exact under every verifier.

  Measured: 1.00 tokens per pass (gsm8k)
  """
  return stateless("none", 0, lambda context: jnp.zeros((len(context.length), 0), jnp.int32))
