"""A small language model drafts a tree, level by level, from its own distribution."""

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
from specjax.sampling import NoiseSource, Settings
from specjax.trees.base import Guesser, Sampling, Tree


@functools.cache
def draft_tree(lm: Target, tree: Tree) -> Drafter:
  """A tree is drawn from an independent LM, with q at every node, or filled with its best guesses.

  By its tree this is SpecInfer (Miao et al. 2023, arXiv 2305.09781), RSD-C or RSD-S (Jeon et al.
  2024, arXiv 2402.14160), DySpec (Xiong et al. 2025, arXiv 2410.11744), greedy drafting (Hu et al.
  2025, arXiv 2502.18779), or a draft that is chosen. q is warped by the settings of the target's p.
  Each level is one pass over the nodes so far, behind a cache of committed text; after verification
  a pass over the accepted path adds to that cache.

  Args:
    lm: the small LM; its vocabulary must be the target's.
    tree: static.
  """

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
    def step(level: int, tokens: Array, carry, memory, mask):
      depths, old = jnp.full(tokens.shape, level, jnp.int32), 0
      if memory is not None:  # the nodes above: their tokens, depths and masks
        old = memory[0].shape[1]
        above = jnp.pad(memory[2], ((0, 0), (0, 0), (0, tokens.shape[1])))
        joined = zip((*memory[:2], above), (tokens, depths, mask), strict=True)
        tokens, depths, mask = (jnp.concatenate(pair, 1) for pair in joined)
      evaluation = lm.evaluate(params, cache, tokens, depths, mask)
      return evaluation.logits[:, old:], carry, (tokens, depths, mask)

    sampling = Sampling(settings, noise, lm.vocab_size)
    return tree.fill(context.root, Guesser(step, (), None, None, sampling)), cache

  def update(
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
    "draft_tree", tree.proposal, tree.nodes, tree.depth, init, propose, update, by_pieces=True
  )
