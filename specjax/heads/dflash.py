"""DFlash: layers that fill a block of masks in one pass, and see the target's states."""

import dataclasses
import functools

from specjax.base import LayeredTarget
from specjax.heads import context_block, draft_vocabulary
from specjax.heads.base import LossWeights
from specjax.heads.context_block import ContextBlockConfig
from specjax.heads.masked_block import MaskedBlock


@dataclasses.dataclass(frozen=True)
class DFlashConfig(ContextBlockConfig):
  """Shape of the head; mask d of a block guesses depth d."""


@functools.cache
def dflash(target: LayeredTarget, config: DFlashConfig) -> MaskedBlock:
  """Block diffusion in one step: the root and D masks, which see each other and the text.

  Chen et al. 2026 (arXiv 2602.06036). The text is seen through the target's states alone: a matrix
  and a norm make one vector of several layers, which every layer of the head maps to keys and
  values. The block's rows pass through the layers; what mask d becomes is read by the target's LM
  head as the token in its place. Guesses do not see each other's tokens, only that they are there.
  Embeddings are the target's; the mask's vector is learned, or that of a token, and the final norm
  starts as the target's.

  The loss is cross-entropy with the text, of which depth d weighs exp(-(d - 1) / 4), or
  0.78 ** (d - 1), as published for blocks of 8. The published heads have 5 layers, as many states
  of the target, and blocks of 8 to 16; here are 2, 3 and 6. The anchors of training are the
  drafting positions of every head, some at random in each step.

  `dflash-15[path/to/head]` is a published head of blocks of 16.

  Measured: 2.39 tokens per pass (heads_short)

  Raises:
    ValueError: the target lacks a layer or the mask's token, or a window is none.
  """
  parts = context_block.parts(target, config)
  return MaskedBlock(
    "dflash",
    target,
    config.depth,
    parts.init,
    draft_vocabulary.through(target),
    parts.block,
    loss=LossWeights(decay=0.78),
    memory=parts.memory,
    hidden_layers=parts.hidden_layers,
  )
