"""A draft model that was trained with masks says all tokens of a draft in one pass.

Letters: B batch, D depth.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import Cache, Context, Draft, Drafter, Params, Target
from specjax.drafters.models.draft_tree import draft_tree
from specjax.sampling import NoiseSource, Settings
from specjax.trees.base import Guesser, Sampling, Tree, independent


@functools.cache
def masks(lm: Target, tree: Tree, mask: int) -> Drafter:
  """The draft model says all tokens at once, from masks after the root.

  PARD as published, An et al. 2025 (arXiv 2504.18583): a small model of the target's family, whose
  config.json names its mask by `pard_token`. One pass reads the root and D - 1 masks, and guesses
  of different depths are independent of each other; another reads what was accepted, so that masks
  leave no trace. The published program does both in one pass.

  Measured: 2.76 tokens per pass (draft_models)
  Train: python -m specjax.train.pard

  Args:
    lm: the small LM; its vocabulary must be the target's.
    tree: static; drawn or filled from the distributions of each depth.
    mask: id of its mask.
  """
  inner = draft_tree(lm, tree)

  def propose(
    params: Params,
    target_params: Params,
    cache: Cache,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    B, D = len(context.root), tree.depth
    hidden = jnp.full((B, D - 1), mask, jnp.int32)
    step = jnp.broadcast_to(jnp.arange(D, dtype=jnp.int32), (B, D))
    sees = jnp.broadcast_to(jnp.tril(jnp.ones((D, D), bool)), (B, D, D))
    tokens = jnp.concatenate([context.root, hidden], 1)
    logits: Array = lm.evaluate(params, cache, tokens, step, sees).logits
    sampling = Sampling(settings, noise, lm.vocab_size)
    guesser = Guesser(independent(logits), (), (), None, sampling)
    return tree.fill(context.root, guesser), cache

  return inner._replace(name="masks", propose=propose)
