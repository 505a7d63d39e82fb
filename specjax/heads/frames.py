"""Heads whose guesses are frames of CTC, some of which say nothing."""

import dataclasses

from specjax.heads import draft_vocabulary
from specjax.heads.parallel import Parallel
from specjax.trees.folded import Folded


@dataclasses.dataclass(frozen=True)
class Frames(Parallel):
  """A `Parallel` head of D frames; `ctc.py` is one.

  The last of the W' + 1 logits that `read` gives says nothing. All depths are trained together, and
  `trees.folded` folds the drafts, so that many hold fewer tokens than the tree has nodes.
  """

  def ids(self, params):
    return draft_vocabulary.with_blank(super().ids(params), self.target.vocab_size)

  def drafter(self, tree, counts=None):
    return super().drafter(Folded(tree), counts)._replace(varies=True)
