"""Trees of CTC frames, folded into trees of tokens: blanks go, and repeats of the frame before.

Letters: B batch, N nodes, D depth.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal
from specjax.trees.base import Guesser, Tree
from specjax.trees.structure import ancestors, gather, merge

SILENT = -1  # the token of a blank frame


def fold(draft: Draft, depth: int) -> Draft:
  """The draft without nodes that say nothing, whose children hang below what was said before.

  A node says nothing where its token is SILENT or that of its parent, a root apart, which is no
  frame. Nodes that now say the same after the same are one. The N nodes keep their numbers, and
  those that are gone are not valid. `depth` is D.
  """
  frame = draft.parent > 0
  silent = (draft.tokens == SILENT) | (frame & (draft.tokens == gather(draft.tokens, draft.parent)))
  silent = silent & (draft.depth > 0)
  said = jnp.broadcast_to(jnp.arange(draft.tokens.shape[1], dtype=jnp.int32), draft.tokens.shape)
  for _ in range(depth):
    said = jnp.where(gather(silent, said), gather(draft.parent, said), said)
  above = gather(said, draft.parent)
  told = (ancestors(draft.parent, depth) & ~silent[:, None]).sum(2, dtype=jnp.int32) - 1
  level = jnp.where(draft.depth > 0, gather(told, above) + 1, 0)
  tokens = jnp.where(silent, 0, draft.tokens)
  return merge(Draft(tokens, above, level, draft.valid & ~silent), depth)


@dataclasses.dataclass(frozen=True)
class Folded:
  """The tree of frames of a head with a blank, as it is verified.

  The CTC transform of Wen et al. 2024 (arXiv 2412.00061, section 3.3): alignments that say the same
  are one path. What is folded was chosen, so the draft is deterministic.

  Attributes:
    frames: the tree that the head fills; its D counts frames, of which a text needs some for
      blanks.
  """

  frames: Tree

  def __post_init__(self) -> None:
    if self.frames.proposal != "deterministic":
      raise ValueError(
        f"`tree` must choose its nodes and draw none for frames that are folded, got {self.frames}."
      )

  @property
  def nodes(self) -> int:
    return self.frames.nodes

  @property
  def depth(self) -> int:
    return self.frames.depth

  @property
  def proposal(self) -> Proposal:
    return "deterministic"

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    return fold(self.frames.fill(root, guesser), self.depth)
