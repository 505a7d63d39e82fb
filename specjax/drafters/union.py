"""A union puts the trees of several drafters side by side below one root.

Letters: B batch, N nodes, D depth, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Drafter, Features, Proposal
from specjax.sampling import DRAFT, Source
from specjax.trees.structure import at, below, connected, upwards

KINDS = frozenset({"deterministic", "chain", "iid", "independent"})
"""Proposals in which no child's distribution depends on its siblings."""


class Share(NamedTuple):
  """The noise of source number `place` (from 0) among `among`: streams that no other one has."""

  noise: Source
  place: int
  among: int

  def _own(self, stream: int) -> int:
    return DRAFT + (stream - DRAFT) * self.among + self.place

  def draw(self, stream: int, log_probs: Array) -> Array:
    return self.noise.draw(self._own(stream), log_probs)

  def children(self, stream: int, log_probs: Array, count: int, distinct: bool) -> Array:
    return self.noise.children(self._own(stream), log_probs, count, distinct)

  def gumbel(self, stream: int, shape: tuple[int, ...]) -> Array:
    return self.noise.gumbel(self._own(stream), shape)


def side_by_side(drafts: Sequence[Draft]) -> Draft:
  """One draft of all nodes below one root, source after source, without their distributions."""
  columns, first = [], 0
  for tokens, parent, depth, valid, *_ in drafts:
    parent = jnp.where(parent > 0, parent + first, 0)
    columns.append([x[:, 1:] for x in (tokens, parent, depth, valid)])
    first += tokens.shape[1] - 1
  parts = (jnp.concatenate(x, 1) for x in zip(*columns, strict=True))
  return below(drafts[0].tokens[:, :1], *parts)


def merge(draft: Draft, depth: int) -> Draft:
  """Of equal tokens below equal parents only the first stays valid, with the children of all.

  This is for chosen tokens only, since it looks at tokens to drop them. `depth` is D.
  """
  above = upwards(draft.parent, depth)
  B, N, A = above.shape
  way = at(draft.tokens, above.reshape(B, N * A)).reshape(B, N, A)
  reached = connected(draft.valid, draft.parent, depth)
  same = (way[:, :, None] == way[:, None]).all(-1) & reached[:, :, None] & reached[:, None]
  same = same & (draft.depth[:, :, None] == draft.depth[:, None])
  first = jnp.argmax(same, 2).astype(jnp.int32)
  node = jnp.arange(N, dtype=jnp.int32)[None]
  return draft._replace(parent=at(first, draft.parent), valid=reached & (first == node))


def _own_log_probs(draft: Draft, proposal: str, size: int) -> Array:
  """f32[B, N, V], from which each node but the root was drawn; one-hot for a chosen node."""
  if draft.log_probs is None:
    return jnp.where(jax.nn.one_hot(draft.tokens, size) > 0, 0.0, -jnp.inf)
  if proposal == "independent":
    return draft.log_probs
  return at(draft.log_probs, draft.parent)


@functools.cache
def union(*drafters: Drafter) -> Drafter:
  """All sources guess in every round, and one pass verifies what they guessed.

  Where all of them choose, siblings with equal tokens are merged and the result is "deterministic".
  Where one draws, the result is "independent": every child has the distribution of the source that
  made it, as for several draft models in SpecInfer (Miao et al. 2023, arXiv 2305.09781, section 4).
  Then nothing is merged, because dropping a drawn token after a look at its siblings is biased.
  Elder siblings are tried first, so cheap and sure sources belong in front.

  N = 1 + sum (N_i - 1) and D = max D_i. Params and state are tuples, one entry per source. After
  verification each source gets the union's draft and verdict, in the union's node numbers, and the
  layers it asked for; its `update` may read the accepted path, whichever source guessed it, and the
  tokens and logits of valid nodes, but may not take any node for its own. All heads, `draft_tree`,
  `prompt_lookup` and `token_recycling` do so. A source that writes its state
  while it drafts, as `draft_model` does, relies on its own chain being accepted and is refused when
  it is traced; `draft_tree` with a chain for a tree drafts the same.

  Args:
    drafters: one or more, of the proposals KINDS.

  Raises:
    ValueError: no drafter, another proposal, or one that replaces the target's evaluation.
  """
  if not drafters:
    raise ValueError("drafters=(): a union has one source or more.")
  for source in drafters:
    if source.proposal not in KINDS:
      raise ValueError(
        f"drafter={source.name!r} has the proposal {source.proposal!r}: a union takes "
        f"{', '.join(sorted(KINDS))}, where no child's distribution depends on its siblings."
      )
    if source.evaluate is not None:
      raise ValueError(f"drafter={source.name!r} replaces the target's evaluation: a union "
                       "verifies all its sources in one plain pass.")  # fmt: skip
  nodes = 1 + sum(source.nodes - 1 for source in drafters)
  depth = max(source.depth for source in drafters)
  drawn = any(source.proposal != "deterministic" and source.depth > 0 for source in drafters)
  hidden_layers = tuple(sorted({layer for source in drafters for layer in source.hidden_layers}))

  def seen_by(source: Drafter, features: Features) -> Features:
    return features._replace(
      hidden_layers=tuple(
        features.hidden_layers[hidden_layers.index(i)] for i in source.hidden_layers
      )
    )

  def init(params, target_params, context, features, capacity):
    return tuple(
      source.init(own, target_params, context, seen_by(source, features), capacity)
      for source, own in zip(drafters, params, strict=True)
    )

  def propose(params, target_params, state, context, settings, noise):
    drafts = []
    for i, (source, own, before) in enumerate(zip(drafters, params, state, strict=True)):
      share = Share(noise, i, len(drafters))
      draft, after = source.propose(own, target_params, before, context, settings, share)
      pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
      if not all(a is b for a, b in pairs):
        raise ValueError(
          f"drafter={source.name!r} writes its state while it drafts: in a union, where another "
          "source may win, a draft model drafts with draft_tree."
        )
      drafts.append(draft)
    joined = side_by_side(drafts)
    if not drawn:
      return merge(joined, depth), state
    size = next(draft.log_probs.shape[-1] for draft in drafts if draft.log_probs is not None)
    distributions = [
      _own_log_probs(d, s.proposal, size) for d, s in zip(drafts, drafters, strict=True)
    ]
    log_probs = jnp.concatenate([distributions[0][:, :1], *(x[:, 1:] for x in distributions)], 1)
    return joined._replace(log_probs=log_probs), state

  def update(params, target_params, state, draft, evaluation, verdict, rows):
    return tuple(
      source.update(
        own, target_params, before, draft,
        evaluation._replace(features=seen_by(source, evaluation.features)), verdict, rows,
      )
      for source, own, before in zip(drafters, params, state, strict=True)
    )  # fmt: skip

  name = "+".join(source.name for source in drafters)
  proposal: Proposal = "independent" if drawn else "deterministic"
  return Drafter(name, proposal, nodes, depth, init, propose, update, hidden_layers=hidden_layers)
