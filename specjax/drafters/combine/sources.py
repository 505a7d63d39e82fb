"""Several drafters as one, which all see every round's verdict.

Letters: B batch, N nodes, D depth, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import (
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  Params,
  Proposal,
  UpdateDrafter,
  Verdict,
)
from specjax.sampling import DRAFT, NoiseSource, Settings
from specjax.trees.structure import gather

KINDS = frozenset({"deterministic", "chain", "iid", "independent"})
"""Proposals in which no child's distribution depends on its siblings."""


class Share:
  """The noise of source number `place` (from 0) among `among`: streams that no other one has."""

  def __init__(self, noise: NoiseSource, place: int, among: int):
    self.noise, self.place, self.among = noise, place, among

  def _own(self, stream: int) -> int:
    return DRAFT + (stream - DRAFT) * self.among + self.place

  def draw(self, stream: int, log_probs: Array) -> Array:
    return self.noise.draw(self._own(stream), log_probs)

  def children(self, stream: int, log_probs: Array, count: int, distinct: bool) -> Array:
    return self.noise.children(self._own(stream), log_probs, count, distinct)

  def gumbel(self, stream: int, shape: tuple[int, ...]) -> Array:
    return self.noise.gumbel(self._own(stream), shape)


class Join(Protocol):
  """One draft of those of the sources; `guess(i)` (static) makes that of source i."""

  def __call__(self, guess: Callable[[int], Draft], context: Context) -> Draft: ...


def check(kind: str, drafters: Sequence[Drafter]) -> None:
  """Raises ValueError for sources that cannot share a draft; `kind` is what they are joined to."""
  if not drafters:
    raise ValueError(f"drafters=(): {kind} has one source or more.")
  for source in drafters:
    if source.proposal not in KINDS:
      raise ValueError(
        f"drafter={source.name!r} has the proposal {source.proposal!r}: {kind} takes "
        f"{', '.join(sorted(KINDS))}, where no child's distribution depends on its siblings."
      )
    if source.evaluate is not None:
      raise ValueError(
        f"drafter={source.name!r} replaces the target's evaluation: {kind} "
        "verifies all its sources in one plain pass."
      )


def own_log_probs(draft: Draft, proposal: Proposal, size: int) -> Array:
  """f32[B, N, V], from which each node but the root was drawn; one-hot for a chosen node."""
  if draft.log_probs is None:
    return jnp.where(jax.nn.one_hot(draft.tokens, size) > 0, 0.0, -jnp.inf)
  if proposal == "independent":
    return draft.log_probs
  return gather(draft.log_probs, draft.parent)


def together(
  name: str, drafters: Sequence[Drafter], proposal: Proposal, nodes: int, join: Join
) -> Drafter:
  """One drafter of several; params and state are tuples, one entry per source.

  After verification each source gets the joint draft and verdict, in the joint node numbers, and
  the layers it asked for; its `update` may read the accepted path, whichever source guessed it, and
  the tokens and logits of valid nodes, but may not take any node for its own. All heads,
  `draft_tree`, `prompt_lookup`, `token_recycling`, `jacobi` and `lookahead` do so. A source that
  writes its state while it drafts, as `draft_model` does, relies on its own chain being accepted
  and is refused when it is traced; `draft_tree` with a chain for a tree drafts the same.
  """
  hidden_layers = tuple(sorted({layer for source in drafters for layer in source.hidden_layers}))

  def seen_by(source: Drafter, features: Features) -> Features:
    return features._replace(
      hidden_layers=tuple(
        features.hidden_layers[hidden_layers.index(i)] for i in source.hidden_layers
      )
    )

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    return tuple(
      source.init(own, target_params, context, seen_by(source, features), capacity)
      for source, own in zip(drafters, params, strict=True)
    )

  def propose(
    params: Params,
    target_params: Params,
    state: Any,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    def guess(i: int) -> Draft:
      source, before = drafters[i], state[i]
      share: Any = Share(noise, i, len(drafters))  # no coins: only verifiers toss them
      draft, after = source.propose(params[i], target_params, before, context, settings, share)
      pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
      if not all(a is b for a, b in pairs):
        raise ValueError(
          f"drafter={source.name!r} writes its state while it drafts: in a union, where another "
          "source may win, a draft model drafts with draft_tree."
        )
      return draft

    return join(guess, context), state

  def after(
    writes: Sequence[UpdateDrafter],
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return tuple(
      write(
        own,
        target_params,
        before,
        draft,
        evaluation._replace(features=seen_by(source, evaluation.features)),
        verdict,
        rows,
      )
      for write, source, own, before in zip(writes, drafters, params, state, strict=True)
    )

  def update(
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    writes = [source.update for source in drafters]
    return after(writes, params, target_params, state, draft, evaluation, verdict, rows)

  def read(
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    writes = [source.read or source.update for source in drafters]
    return after(writes, params, target_params, state, draft, evaluation, verdict, rows)

  def keep(params: Params, state: Any, context: Context) -> Params:
    triples = zip(drafters, params, state, strict=True)
    return tuple(own if s.keep is None else s.keep(own, left, context) for s, own, left in triples)

  learns = any(source.keep for source in drafters)
  return Drafter(
    name,
    proposal,
    nodes,
    max(source.depth for source in drafters),
    init,
    propose,
    update,
    hidden_layers=hidden_layers,
    read=read,
    keep=keep if learns else None,
    varies=any(source.varies for source in drafters),
    by_pieces=all(source.by_pieces for source in drafters),
  )
