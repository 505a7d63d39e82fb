"""A small language model drafts a tree, level by level, from its own distribution."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.base import Cache, Drafter, Target
from specjax.trees.grow import Sampling, Tree, grow, proposal_of, size_of
from specjax.trees.structure import at

_DEEPEST = 1000  # a language model may guess as far as it likes


@functools.cache
def draft_tree(draft: Target, tree: Tree) -> Drafter:
  """A tree drawn from an independent LM, with its distribution q at every node, or its best guesses.

  By the tree: SpecInfer (Miao et al. 2023, arXiv 2305.09781), RSD-C and RSD-S (Jeon et al. 2024,
  arXiv 2402.14160), DySpec (Xiong et al. 2025, arXiv 2410.11744), greedy drafting (Hu et al. 2025,
  arXiv 2502.18779), and whatever is chosen. q is warped by the settings of the target's p. Each
  level is one pass over the nodes so far, behind a cache of committed text, to which a last pass
  over the accepted path adds.

  Args:
    draft: the small LM; its vocabulary must be the target's.
    tree: static.
  """
  nodes, depth = size_of(tree, _DEEPEST)

  def init(params, target_params, context, features, capacity):
    prompt = context.tokens[:, : features.hidden.shape[1]]
    return draft.prefill(params, prompt, context.length, capacity)[0]

  def propose(params, target_params, cache: Cache, context, settings, noise):
    root = at(context.tokens, context.length[:, None] - 1)

    def step(level: int, tokens: Array, carry, memory, mask):
      fed = tokens if memory is None else jnp.concatenate([memory[0], tokens], 1)
      level_of = jnp.full(tokens.shape, level, jnp.int32)
      depths = level_of if memory is None else jnp.concatenate([memory[1], level_of], 1)
      old = 0 if memory is None else memory[2].shape[1]
      rows = mask if memory is None else jnp.concatenate(
        [jnp.pad(memory[2], ((0, 0), (0, 0), (0, tokens.shape[1]))), mask], 1
      )  # fmt: skip
      evaluation = draft.evaluate(params, cache, fed, depths, rows)
      return evaluation.logits[:, old:], carry, (fed, depths, rows)

    sampling = Sampling(settings, noise, draft.vocab_size)
    return grow(tree, root, step, (), None, None, sampling), cache

  def update(params, target_params, cache: Cache, tree_drafted, evaluation, verdict, rows):
    B, A = verdict.path.shape
    tokens = at(tree_drafted.tokens, verdict.path)
    step = jnp.broadcast_to(jnp.arange(A, dtype=jnp.int32), (B, A))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((A, A), bool)), (B, A, A))
    accepted = draft.evaluate(params, cache, tokens, step, mask)
    return draft.commit(cache, accepted.kv, step, rows)

  return Drafter("draft_tree", proposal_of(tree), nodes, depth, init, propose, update)
