"""Of several drafters, the first that has something to say drafts alone.

Letters: B batch, N nodes, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Draft, Drafter
from specjax.drafters.sources import check, own_log_probs, together
from specjax.trees.structure import rows_where


def _widened(draft: Draft, nodes: int) -> Draft:
  """The draft with padding up to N nodes."""

  def pad(x: Array) -> Array:
    return jnp.pad(x, [(0, 0), (0, nodes - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])

  return jax.tree.map(pad, draft)


@functools.cache
def first_of(*drafters: Drafter) -> Drafter:
  """In each round a row takes the draft of the first source that guessed a token.

  This is how SAM decoding (Hu et al. 2024, arXiv 2411.10666) chooses between a long copy from the
  text and a tree of another drafter: a sure source with a high bar stands in front of one that
  always guesses. A later source runs only where a row of the batch needs it, unless it draws.

  N and D are the largest of the sources'. For what a source may do see `sources.together`.

  Args:
    drafters: one or more, of the proposals `sources.KINDS`; all but the last choose their tokens,
      so whether they guess one is no matter of chance.

  Raises:
    ValueError: no drafter, another proposal, a drawn one before the last, or one that replaces the
      target's evaluation.
  """
  check("a choice", drafters)
  *front, last = drafters
  for source in front:
    if source.proposal != "deterministic":
      raise ValueError(f"drafter={source.name!r} draws its tokens: only the last source of a "
                       "choice may.")  # fmt: skip
  nodes = max(source.nodes for source in drafters)
  drawn = last.proposal != "deterministic" and last.depth > 0

  def join(guess, context):
    drawing = guess(len(front)) if drawn else None  # outside any condition, as all draws are

    def whole(i: int) -> Draft:
      draft = guess(i) if i < len(front) or drawing is None else drawing
      if drawing is not None:
        size = drawing.log_probs.shape[-1]
        draft = draft._replace(log_probs=own_log_probs(draft, drafters[i].proposal, size))
      return _widened(draft, nodes)

    chosen = whole(0)
    for i in range(1, len(drafters)):
      silent = ~chosen.valid[:, 1:].any(1)

      def ask(i: int = i, silent: Array = silent, chosen: Draft = chosen) -> Draft:
        return rows_where(silent, whole(i), chosen)

      chosen = lax.cond(silent.any(), ask, lambda chosen=chosen: chosen)
    return chosen

  name = "|".join(source.name for source in drafters)
  return together(name, drafters, "independent" if drawn else "deterministic", nodes, join)
