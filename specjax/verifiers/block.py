"""Block verification decides on a drawn chain as a whole."""

import functools

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Draft, Features, Params, Proposal, Verdict, Verifier
from specjax.sampling import COIN, RESIDUAL, NoiseSource
from specjax.trees.structure import gather
from specjax.verifiers import chain, siblings

_LEAST = -1e9  # in place of log q = -inf, which a token of padding may have


@functools.cache
def block() -> Verifier:
  """EXACT for a chain drawn from q, and never accepts less than "token".

  Sun et al. 2025 (arXiv 2403.10444, algorithm 2). With c_0 = 1, c_i = min(1, c_{i-1} p_i / q_i) and
  Z_i the mass of max(c_i p_{i+1} - q_{i+1}, 0), position i passes with probability
  h_i = Z_i / (Z_i + 1 - c_i), at the chain's end with c_i. The last position that passes counts;
  the token after it is drawn from norm(max(c_i p_{i+1} - q_{i+1}, 0)), or from p at the end.

  A token that was dropped after a look counts as a token outside the vocabulary (derived), which q
  draws with the mass that its row lacks and p never. Then Z_i and h_i are the formulas above with
  the row as it is, and the dropped token's own ratio of 0 never passes. So the last node of a
  "truncated" draft is no end: h and the residual are those of its row. A row of 0, where nothing
  was drawn, gives Z_i = h_i = c_i and the residual p, as at a chain's end.

  With the sums S of log p / q, log c = S - cummax(max(S, 0)), so no loop over tokens is needed.

  It is the best such rule.

  Measured: 1.8 % of a pass (verifiers)
  """

  def verify(
    params: Params,
    draft: Draft,
    log_probs: Array,
    features: Features,
    noise: NoiseSource,
    *,
    depth: int,
    proposal: Proposal,
  ) -> Verdict:
    step = jnp.arange(depth + 1, dtype=jnp.int32)[None]
    length = jnp.cumprod(draft.valid[:, 1:].astype(jnp.int32), 1).sum(1, dtype=jnp.int32)[:, None]
    log_q = chain.log_q(draft, log_probs)
    # Behind a chain's end nothing was proposed, and the residual is p.
    proposed = (step < length) | (proposal == "truncated")
    p, q = jnp.exp(log_probs), jnp.where(proposed[..., None], jnp.exp(log_q), 0.0)
    drawn, target = chain.of_drafted(draft, log_q), chain.of_drafted(draft, log_probs)
    ratio = jnp.where(target > -jnp.inf, target - jnp.maximum(drawn, _LEAST), -jnp.inf)
    ratio = jnp.where(step[:, 1:] <= length, ratio, 0.0)
    walk = jnp.cumsum(jnp.pad(ratio, ((0, 0), (1, 0))), 1)
    ceiling = lax.cummax(jnp.maximum(walk, 0.0), axis=1)
    c = jnp.exp(walk - ceiling)  # c_0 .. c_D
    left = jnp.maximum(c[..., None] * p - q, 0.0)
    mass = left.sum(-1)
    whole = mass + 1 - c
    inner = jnp.where(whole > 0, mass / jnp.where(whole > 0, whole, 1.0), 1.0)
    h = jnp.where(proposed, inner, c)
    coins = noise.accept(COIN, h[:, 1:], jnp.ones_like(h[:, 1:])) & (step[:, 1:] <= length)
    count = jnp.where(coins, step[:, 1:], 0).max(1, initial=0)
    last = count[:, None]
    row, p_row = gather(left, last)[:, 0], gather(p, last)[:, 0]
    reduced = gather(proposed, last) & (row.sum(-1, keepdims=True) > 0)
    row = jnp.where(reduced, row, p_row)
    return chain.ending(draft, count, noise.draw(RESIDUAL, jnp.log(siblings.normalise(row))))

  return Verifier("block", "EXACT", frozenset({"chain", "truncated"}), "any", verify)
