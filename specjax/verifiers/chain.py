"""What verifiers for drawn chains share: log q, coins, and the token after the accepted ones."""

import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal, Verdict
from specjax.sampling import COIN, RESIDUAL, NoiseSource
from specjax.trees.structure import gather


def log_q(draft: Draft, log_probs: Array) -> Array:
  """f32[B, N, V], log q; -inf where the draft has no distribution."""
  return draft.log_probs if draft.log_probs is not None else jnp.full_like(log_probs, -jnp.inf)


def of_drafted(draft: Draft, log_p: Array) -> Array:
  """f32[B, D]: log_p f32[B, N, V], a row for each node, at the token drafted after the node."""
  return jnp.take_along_axis(log_p[:, :-1], draft.tokens[:, 1:, None], -1)[..., 0]


def ending(draft: Draft, count: Array, extra: Array) -> Verdict:
  """Accepts the first `count` i32[B] tokens of a chain; the token `extra` i32[B] follows."""
  step = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)[None]
  tokens = jnp.concatenate([draft.tokens[:, 1:], extra[:, None]], 1)
  tokens = jnp.where(step < count[:, None], tokens, extra[:, None])
  return Verdict(jnp.minimum(step, count[:, None]), count, tokens)


def coins(draft: Draft, log_probs: Array, noise: NoiseSource) -> Array:
  """bool[B, D], independent: True with probability min(1, p(x) / q(x)); False behind the chain."""
  p, q = (jnp.exp(of_drafted(draft, x)) for x in (log_probs, log_q(draft, log_probs)))
  return noise.accept(COIN, p, q) & draft.valid[:, 1:]


def accept_until_rejection(
  draft: Draft, log_probs: Array, passed: Array, noise: NoiseSource, proposal: Proposal
) -> Verdict:
  """Accepts the tokens before the first that has not `passed` bool[B, D], as `coins` has it.

  The next token is drawn from norm(max(p - q, 0)), or from p at the end of a chain that is not
  "truncated", see `token`.
  """
  count = jnp.cumprod(passed.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)
  p, q = (jnp.exp(gather(x, count[:, None])[:, 0]) for x in (log_probs, log_q(draft, log_probs)))
  length = draft.valid[:, 1:].sum(1, dtype=jnp.int32)
  proposed = (count < length) | (proposal == "truncated")
  residual = jnp.maximum(p - jnp.where(proposed[:, None], q, 0.0), 0.0)
  # A refusal has probability zero when p = q; rounding may still produce one.
  residual = jnp.where(residual.sum(-1, keepdims=True) > 0, residual, p)
  return ending(draft, count, noise.draw(RESIDUAL, jnp.log(residual)))
