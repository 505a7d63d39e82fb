"""Traversal verification goes from the leaves to the root until a node passes."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Features, Params, Proposal, Verdict, Verifier
from specjax.sampling import COIN, RESIDUAL, NoiseSource
from specjax.trees.structure import connected, ending_at, gather, upwards
from specjax.verifiers import siblings


def _leaves_first(draft: Draft, depth: int) -> Array:
  """i32[B, N]: nodes in depth-first post-order, siblings in order; invalid nodes come last."""
  above = upwards(draft.parent, depth)  # [B, N, A], the node itself first
  step = jnp.arange(depth + 1, dtype=jnp.int32)[None, None]
  from_top = jnp.maximum(draft.depth[..., None] - step, 0)
  path = jnp.take_along_axis(above, from_top, 2)  # the node at each depth on the way down
  end = draft.tokens.shape[1]  # sorts a node behind what hangs below it
  path = jnp.where(step <= draft.depth[..., None], path, end)
  reached = connected(draft.valid, draft.parent, depth)
  keys = [path[..., d] for d in range(depth, -1, -1)]
  return jnp.lexsort((*keys, ~reached), axis=-1).astype(jnp.int32)


@functools.cache
def traversal() -> Verifier:
  """EXACT for drawn trees, and accepts no less than `recursive` in expectation.

  Weng et al. 2025 (arXiv 2505.12398). A node v under u starts with a_v = min(1, a_u P_u(x) / D(x)),
  a_root = 1. Once all children of v have failed, v is accepted with probability a_v, and a token
  from P_v follows. Otherwise v has failed too, and with R = max(a_u P_u - D, 0) and Z its mass
  P_u becomes R / Z and a_u becomes Z / (Z + 1 - a_u). D is the distribution x was drawn from, given
  the siblings before it. On a chain this is block verification.

  Measured: 5.1 % of a pass (verifiers)
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
    b = jnp.arange(B)
    order = _leaves_first(draft, depth)
    above = upwards(draft.parent, depth)
    reached = connected(draft.valid, draft.parent, depth)
    first = siblings.first_child(draft, proposal, V)
    p, row = jnp.exp(log_probs), first
    a = jnp.ones((B, N))
    entered = jnp.zeros((B, N), bool).at[:, 0].set(True)
    leaf, done = jnp.zeros(B, jnp.int32), jnp.zeros(B, bool)

    def drawn_from(node: Array) -> Array:
      chosen = None if draft.chosen is None else draft.chosen[b, node]
      at_parent = row[b, draft.parent[b, node]]
      return siblings.child(draft.tokens[b, node], chosen, at_parent, first[b, node], proposal)

    for k in range(N - 1):
      node = order[:, k]
      for up in range(depth, -1, -1):  # nodes above that were not entered yet start here
        v = above[b, node, up]
        u, token = draft.parent[b, v], draft.tokens[b, v]
        q = siblings.mass_at(drawn_from(v), token)
        have = a[b, u] * p[b, u, token]
        start = jnp.where(have <= 0, 0.0, jnp.minimum(1.0, have / jnp.where(q > 0, q, have)))
        a = a.at[b, v].set(jnp.where(entered[b, v], a[b, v], start))
        entered = entered.at[b, v].set(True)
      live = reached[b, node] & (node > 0) & ~done
      passed = live & noise.accept(COIN + k, a[b, node][:, None], jnp.ones((B, 1)))[:, 0]
      leaf, done = jnp.where(passed, node, leaf), done | passed
      u, failed = draft.parent[b, node], live & ~passed
      q = drawn_from(node)
      left = jnp.maximum(a[b, u][:, None] * p[b, u] - q, 0.0)
      mass = left.sum(-1)
      new_a = mass / jnp.where(mass > 0, mass + 1 - a[b, u], 1.0)
      a = a.at[b, u].set(jnp.where(failed & (u > 0), new_a, a[b, u]))
      new_p = jnp.where((mass > 0)[:, None], siblings.normalise(left), p[b, u])
      p = p.at[b, u].set(jnp.where(failed[:, None], new_p, p[b, u]))
      rest = siblings.without(row[b, u], draft.tokens[b, node], proposal)
      row = row.at[b, u].set(jnp.where(failed[:, None], rest, row[b, u]))
    extra = noise.draw(RESIDUAL, jnp.log(p[b, leaf]))
    count = gather(draft.depth, leaf[:, None])[:, 0]
    return ending_at(draft, leaf, count, extra, depth)

  return Verifier("traversal", "EXACT", siblings.KNOWN, "any", verify)
