"""Rules that read a drawn chain token by token share its coins, and where it is left."""

import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal, Verdict
from specjax.sampling import COIN, RESIDUAL, Source


def log_q(draft: Draft, log_probs: Array) -> Array:
  """f32[B, N, V], log q; nothing can be drawn where there is no draft."""
  return draft.log_probs if draft.log_probs is not None else jnp.full_like(log_probs, -jnp.inf)


def of_drafted(draft: Draft, log_p: Array) -> Array:
  """f32[B, D]: log_p f32[B, N, V], a row after each node, at the token that was drafted there."""
  return jnp.take_along_axis(log_p[:, :-1], draft.tokens[:, 1:, None], -1)[..., 0]


def ending(draft: Draft, count: Array, extra: Array) -> Verdict:
  """Accepts the first `count` i32[B] tokens of a chain; the token `extra` i32[B] follows."""
  step = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)[None]
  tokens = jnp.concatenate([draft.tokens[:, 1:], extra[:, None]], 1)
  tokens = jnp.where(step < count[:, None], tokens, extra[:, None])
  return Verdict(jnp.minimum(step, count[:, None]), count, tokens)


def coins(draft: Draft, log_probs: Array, noise: Source) -> Array:
  """bool[B, D], independent: True with probability min(1, p(x) / q(x)), False past the chain's end.

  Args:
    draft: a chain, node i at depth i.
    log_probs: f32[B, N, V], the target's after every node.
    noise: of the round.
  """

  p, q = (jnp.exp(of_drafted(draft, x)) for x in (log_probs, log_q(draft, log_probs)))
  return noise.accept(COIN, p, q) & draft.valid[:, 1:]


def leave(
  draft: Draft, log_probs: Array, passed: Array, noise: Source, proposal: Proposal
) -> Verdict:
  """Accepts the tokens before the first that did not pass; one from norm(max(p - q, 0)) follows.

  After a chain's end it comes from p: no token was proposed there. The q of a "truncated" chain
  counts there too, see `token`.

  Args:
    draft, log_probs, noise: see `coins`.
    passed: bool[B, D], False past the chain's end.
    proposal: the drafter's (static).
  """
  count = jnp.cumprod(passed.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)
  last = count[:, None, None]
  p = jnp.exp(jnp.take_along_axis(log_probs, last, 1)[:, 0])
  q = jnp.exp(jnp.take_along_axis(log_q(draft, log_probs), last, 1)[:, 0])
  length = draft.valid[:, 1:].sum(1, dtype=jnp.int32)
  proposed = (count < length) | (proposal == "truncated")
  residual = jnp.maximum(p - jnp.where(proposed[:, None], q, 0.0), 0.0)
  # A refusal has probability zero when p = q; rounding may still produce one.
  residual = jnp.where(residual.sum(-1, keepdims=True) > 0, residual, p)
  return ending(draft, count, noise.draw(RESIDUAL, jnp.log(residual)))
