"""A small language model drafts a chain, token by token, from its own distribution."""

import functools

import jax.numpy as jnp

from specjax.base import Cache, Draft, Drafter, Target
from specjax.sampling import DRAFT, warp
from specjax.trees.structure import at


@functools.cache
def draft_model(draft: Target, depth: int = 4) -> Drafter:
  """A chain sampled from an independent LM, with the distribution q of every step.

  Leviathan et al. 2023 (arXiv 2211.17192). q is warped by the same settings as the target's p.
  Its cache is written while drafting and cut back to the committed text after verification.

  Args:
    draft: the small LM; its vocabulary must be the target's.
    depth: D, tokens drafted per round.
  """
  if depth < 1:
    raise ValueError(f"depth={depth}: a draft model drafts 1 token or more.")

  def init(params, target_params, context, features, capacity):
    prompt = context.tokens[:, : features.hidden.shape[1]]
    return draft.prefill(params, prompt, context.length, capacity)[0]

  def propose(params, target_params, cache: Cache, context, settings, noise):
    token = at(context.tokens, context.length[:, None] - 1)
    zero, alone = jnp.zeros_like(token), jnp.ones((*token.shape, 1), bool)
    tokens, distributions = [token], []
    # One step more than there are drafts: if all are accepted, the last one must be cached too.
    for step in range(depth + 1):
      evaluation = draft.evaluate(params, cache, tokens[-1], zero, alone)
      distributions.append(warp(evaluation.logits, settings))
      # Always one row, but not a constant: so the write waits for the reads, see `cache.commit`.
      one = 1 + jnp.minimum((distributions[-1][:, 0, 0] > 0).astype(jnp.int32), 0)
      cache = draft.commit(cache, evaluation.kv, zero, one)
      if step < depth:
        tokens.append(noise.draw(DRAFT + step, distributions[-1][:, 0])[:, None])
    node = jnp.broadcast_to(jnp.arange(depth + 1, dtype=jnp.int32), (token.shape[0], depth + 1))
    chain = Draft(
      jnp.concatenate(tokens, 1), jnp.maximum(node - 1, 0), node, jnp.ones(node.shape, bool),
      jnp.concatenate(distributions, 1),
    )  # fmt: skip
    return chain, cache

  def update(params, target_params, cache: Cache, chain, evaluation, verdict, rows):
    return cache._replace(length=cache.length - (depth + 1) + rows)

  return Drafter("draft_model", "chain", depth + 1, depth, init, propose, update)
