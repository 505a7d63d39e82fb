"""A small language model drafts a chain, token by token, from its own distribution."""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import (
  Cache,
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  Params,
  Target,
  Verdict,
)
from specjax.heads.prefix import prefilled, reread
from specjax.models.cache import append_one, cut
from specjax.sampling import DRAFT, NoiseSource, Settings, warp
from specjax.trees.structure import chain


@functools.cache
def draft_model(lm: Target, nodes: int = 5) -> Drafter:
  """A chain drawn from a small model, with the distribution q of every step.

  Leviathan et al. 2023 (arXiv 2211.17192). q is warped by the settings of the target's p.
  The LM's cache is written while drafting and cut back to the committed text after verification.

  Measured: 0 tokens differ (lossless)
  Train: python -m specjax.train.draft_model

  Args:
    lm: the small LM; its vocabulary must be the target's.
    nodes: the root and D tokens drafted per round.
  """
  depth = nodes - 1
  if nodes < 2:
    raise ValueError(
      f"`nodes` must be at least 2, so that a draft model drafts a token, got {nodes}."
    )

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    return prefilled(lm, params, context, features, capacity)

  def propose(
    params: Params,
    target_params: Params,
    cache: Cache,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    tokens, log_probs = [context.root], []
    zero, alone = jnp.zeros_like(context.root), jnp.ones((*context.root.shape, 1), bool)
    # The last step draws nothing; it caches the last token, which may be accepted.
    for step in range(depth + 1):
      evaluation = lm.evaluate(params, cache, tokens[-1], zero, alone)
      log_probs.append(warp(evaluation.logits, settings))
      cache = append_one(lm, cache, evaluation)
      if step < depth:
        tokens.append(noise.draw(DRAFT + step, log_probs[-1][:, 0])[:, None])
    return chain(jnp.concatenate(tokens, 1), log_probs=jnp.concatenate(log_probs, 1)), cache

  def update(
    params: Params,
    target_params: Params,
    cache: Cache,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return cut(cache, cache.length - (depth + 1) + rows)

  def read(
    params: Params,
    target_params: Params,
    cache: Cache,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return reread(lm, params, cache, draft, verdict, rows)

  return Drafter(
    "draft_model", "chain", depth + 1, depth, init, propose, update, read=read, by_pieces=True
  )
