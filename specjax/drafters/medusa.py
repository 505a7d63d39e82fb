"""Medusa: parallel heads on the last hidden state, their best guesses arranged as a tree."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Drafter, Target
from specjax.models.linear import linear_each
from specjax.trees.static import Choices, from_choices
from specjax.trees.structure import at


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
  """Shape of the heads.

  Attributes:
    vocab_size, width: V and E of the target.
    heads: how many tokens ahead; head d predicts depth d.
    blocks: residual blocks per head.
    shared: True reads all heads out through the target's own LM head (the layout of Medusa's
      legacy trainer) instead of a vocabulary matrix per head.
  """

  vocab_size: int
  width: int
  heads: int = 4
  blocks: int = 1
  shared: bool = False


class MedusaHeads(nn.Module):
  """z = h + SiLU(W h + b) per block, then a vocabulary matrix per head.

  Cai et al. 2024 (arXiv 2401.10774, section 2.1). Blocks start as the identity: W and b are zero.
  """

  config: MedusaConfig

  def setup(self):
    c = self.config
    zeros = nn.initializers.zeros
    shape = (c.heads, c.width, c.width)
    self.block = [
      (self.param(f"block_{i}", zeros, shape), self.param(f"bias_{i}", zeros, shape[:2]))
      for i in range(c.blocks)
    ]
    if not c.shared:
      self.vocabulary = self.param(
        "vocabulary", nn.initializers.normal(0.02), (c.heads, c.vocab_size, c.width)
      )

  def __call__(self, hidden: Array, target_head=None) -> list[Array]:
    """Logits of each head.

    Args:
      hidden: [P, E], the target's state after its final norm.
      target_head: maps [P, D, E] to logits; only where the heads share the target's.

    Returns:
      D arrays f32[P, V].
    """
    z = jnp.repeat(hidden[:, None], self.config.heads, 1)
    for w, b in self.block:
      z = z + nn.silu(linear_each(z, w) + b[None])
    if self.config.shared:
      logits = target_head(z)
    else:
      logits = linear_each(z, self.vocabulary).astype(jnp.float32)
    return [logits[:, i] for i in range(self.config.heads)]


def medusa(target: Target, config: MedusaConfig, choices: Choices) -> Drafter:
  """Drafts the top guesses of every head in a fixed tree.

  Carried between rounds: the hidden state [B, E] that predicted the root. Siblings are distinct
  and chosen without looking at noise, so "greedy" and "target_only" are exact; the product of
  the heads' laws is not the law of a path, so no q is offered.

  Args:
    target: supplies the LM head where it is shared.
    config: shape of the heads.
    choices: rank paths as `medusa_choices` are published.

  Raises:
    ValueError: a tree deeper than there are heads, wider than the vocabulary, or malformed.
  """
  return _medusa(target, config, tuple(map(tuple, choices)))


@functools.cache
def _medusa(target: Target, config: MedusaConfig, choices: tuple[tuple[int, ...], ...]) -> Drafter:
  tree = from_choices(choices)
  depth, width = int(tree.depth.max()), int(tree.rank.max()) + 1
  if depth > config.heads:
    raise ValueError(f"choices is {depth} deep: these heads predict {config.heads} tokens ahead.")
  if width > config.vocab_size:
    raise ValueError(f"choices has rank {width - 1}: the vocabulary has {config.vocab_size}.")
  module = MedusaHeads(config)

  def init(params, target_params, context, hidden, capacity):
    before_root = jnp.maximum(context.length - 2, 0)
    return jnp.take_along_axis(hidden, before_root[:, None, None], 1)[:, 0]

  def propose(params, target_params, hidden, context, settings, noise):
    root = at(context.tokens, context.length[:, None] - 1)
    if depth:
      logits = module.apply(params, hidden, lambda z: target.head(target_params, z))
      guesses = [jax.lax.top_k(x, width)[1].astype(jnp.int32) for x in logits[:depth]]
      flat = jnp.concatenate([root, *guesses], 1)
    else:
      flat = root
    index = jnp.asarray((tree.depth > 0) * (1 + (tree.depth - 1) * width + tree.rank), jnp.int32)
    shape = (root.shape[0], index.size)
    parent, node_depth, index = (
      jnp.broadcast_to(jnp.asarray(x), shape) for x in (tree.parent, tree.depth, index)
    )
    return Draft(at(flat, index), parent, node_depth, jnp.ones(shape, bool)), hidden

  def update(params, target_params, hidden, draft, evaluation, verdict, rows):
    last = at(verdict.path, jnp.maximum(rows[:, None] - 1, 0))
    newest = jnp.take_along_axis(evaluation.hidden, last[..., None], 1)[:, 0]
    return jnp.where(rows[:, None] > 0, newest, hidden)

  return Drafter("medusa", "point", len(tree.parent), depth, init, propose, update)
