"""Token verification of a sampled chain (speculative sampling)."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Drafter, Features, Params, Verdict, Verifier
from specjax.sampling import COIN, RESIDUAL, Source


@functools.cache
def token() -> Verifier:
  """EXACT for a chain drawn from q: accept x with probability min(1, p(x) / q(x)).

  After the first refusal the token comes from norm(max(p - q, 0)), after D acceptances from p.
  Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1); Chen et al. 2023 (arXiv 2302.01318).

  A token that was dropped after a look is a child that p never says (derived): it is refused, and
  q without its like, of mass below 1, is what p is reduced by. So of a "kept" draft the row of q at
  the last node counts, child or not; where nothing was drawn it is 0 and the token comes from p.
  """

  def verify(
    params: Params, draft: Draft, law: Array, features: Features, noise: Source, drafter: Drafter
  ) -> Verdict:
    depth = drafter.depth
    drafted = draft.tokens[:, 1:]
    q_law = draft.law if draft.law is not None else jnp.full_like(law, -jnp.inf)

    def of_drafted(log_p: Array) -> Array:
      return jnp.exp(jnp.take_along_axis(log_p[:, :depth], drafted[..., None], -1)[..., 0])

    coin = noise.accept(COIN, of_drafted(law), of_drafted(q_law)) & draft.valid[:, 1:]
    count = jnp.cumprod(coin.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)
    last = count[:, None, None]
    p = jnp.exp(jnp.take_along_axis(law, last, 1)[:, 0])
    q = jnp.exp(jnp.take_along_axis(q_law, last, 1)[:, 0])
    # No token was proposed after a chain's end: the residual there is p itself.
    length = draft.valid[:, 1:].sum(1, dtype=jnp.int32)
    proposed = (count < length) | (drafter.proposal == "kept")
    residual = jnp.maximum(p - jnp.where(proposed[:, None], q, 0.0), 0.0)
    # A refusal has probability zero when p = q; rounding may still produce one.
    residual = jnp.where(residual.sum(-1, keepdims=True) > 0, residual, p)
    extra = noise.draw(RESIDUAL, jnp.log(residual))

    step = jnp.arange(depth + 1, dtype=jnp.int32)[None]
    tokens = jnp.concatenate([drafted, extra[:, None]], 1)
    tokens = jnp.where(step < count[:, None], tokens, extra[:, None])
    return Verdict(jnp.minimum(step, count[:, None]), count, tokens)

  return Verifier("token", "EXACT", frozenset({"chain", "kept"}), "any", verify)
