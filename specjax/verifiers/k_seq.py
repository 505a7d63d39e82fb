"""K-SEQ accepts each of several independent drafts of a token by one fixed ratio."""

import functools

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Draft, Features, Params, Proposal, Verdict, Verifier
from specjax.sampling import COIN, RESIDUAL, NoiseSource
from specjax.trees.structure import ending_at, gather, same_prefix
from specjax.verifiers import siblings

_HALVINGS = 30  # of an interval for rho, a few numbers for each


def ratio(p: Array, q: Array, count: Array) -> tuple[Array, Array]:
  """(rho, beta) of k = `count` siblings: the smallest rho with 1 - (1 - beta)^k <= rho beta.

  beta is the mass of min(q, p / rho), p and q f32[..., V]. With the tokens fixed that give q, of
  mass Q, and the others of p, of mass P, beta is Q + P / rho, which is no less than it is of any
  rho: the rho of that is at most the one wanted, and at it more tokens give p. So rho rises, by few
  passes over the vocabulary, to the last bits of float32, and ends where no token changes sides.
  """
  k = jnp.maximum(count, 1).astype(jnp.float32)

  def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
    rho, _ = state
    by_q = rho[..., None] * q <= p
    Q, P = jnp.where(by_q, q, 0.0).sum(-1), jnp.where(by_q, 0.0, p).sum(-1)

    def enough(rho: Array) -> Array:
      beta = Q + P / rho
      return 1 - jnp.maximum(1 - beta, 0.0) ** k <= rho * beta

    def halve(_, ends: tuple[Array, Array]) -> tuple[Array, Array]:
      low, high = ends
      middle = (low + high) / 2
      there = enough(middle)
      return jnp.where(there, low, middle), jnp.where(there, middle, high)

    there = enough(rho)
    higher = jnp.where(there, rho, lax.fori_loop(0, _HALVINGS, halve, (rho, k))[1])
    return higher, ~there & (higher < k)  # k is always enough

  begin = jnp.ones_like(k), jnp.ones(k.shape, bool)
  rho, _ = lax.while_loop(lambda state: state[1].any(), step, begin)
  return rho, jnp.minimum(q, p / rho[..., None]).sum(-1)


@functools.cache
def k_seq() -> Verifier:
  """EXACT for independent siblings: the first with a coin below p / (rho q).

  SpecTr, Sun et al. 2023 (arXiv 2310.15141, algorithm 3), node by node. If none of the k drafts
  passes, norm(p - min(q, p / rho) (1 - (1 - beta)^k) / beta) gives the token. Sequences that begin
  alike stay together: behind a token, k counts the children of all nodes of the same text, also of
  those that were refused.

  Measured: 7.7 % of a pass (verifiers)
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
    B, N, V = log_probs.shape
    p, q = jnp.exp(log_probs), siblings.first_child(draft, "iid", V)
    node = jnp.arange(N, dtype=jnp.int32)[None, :, None]
    drafted = draft.valid & (draft.depth > 0)
    child = (draft.parent[:, None] == node) & drafted[:, None]
    own, same = child.sum(-1, dtype=jnp.int32), same_prefix(draft, depth)
    count = jnp.where(same, own[:, None], 0).sum(-1, dtype=jnp.int32)  # [B, N]
    parent = same & (own > 0)[:, None]  # a leaf has no distribution that children came from
    q = jnp.where(parent.any(-1)[..., None], gather(q, jnp.argmax(parent, -1)), q)
    rho, beta = ratio(p, q, count)
    share = jnp.where(
      beta > 0, (1 - (1 - beta) ** count.astype(jnp.float32)) / jnp.where(beta > 0, beta, 1.0), 0.0
    )
    taken = jnp.minimum(q, p / rho[..., None]) * share[..., None]
    left = siblings.residual(p, jnp.where((count > 0)[..., None], taken, 0.0))
    at_node, reached = jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.int32)
    b = jnp.arange(B)
    order = jnp.argsort(draft.depth, 1, stable=True).astype(jnp.int32)
    tokens, parents, valid = (gather(x, order) for x in (draft.tokens, draft.parent, draft.valid))
    for n in range(1, N):
      token = tokens[:, n]
      tried = valid[:, n] & same[b, at_node, parents[:, n]]
      have, need = p[b, at_node, token], rho[b, at_node] * q[b, at_node, token]
      passed = tried & noise.accept(COIN + n, have[:, None], need[:, None])[:, 0]
      at_node, reached = jnp.where(passed, order[:, n], at_node), reached + passed.astype(jnp.int32)
    extra = noise.draw(RESIDUAL, jnp.log(left[b, at_node]))
    return ending_at(draft, at_node, reached, extra, depth)

  return Verifier("k_seq", "EXACT", frozenset({"iid", "chain"}), "any", verify)
