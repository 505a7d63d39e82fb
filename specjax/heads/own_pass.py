"""What heads share that draft in a pass of their own, after the target has verified.

Letters: B batch, T row length, M drafting positions of a row, W nodes of one level, D depth.
"""

import abc
import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Context, Draft, Drafter, Evaluation, Params, Verdict
from specjax.heads import draft_vocabulary, prefix
from specjax.heads.base import Examples, Head
from specjax.heads.prefix import RunText
from specjax.models.transformer import attention_mask
from specjax.sampling import NoiseSource, Settings
from specjax.trees.base import Counts, Guesser, Sampling, Step, Tree
from specjax.trees.structure import gather


@dataclasses.dataclass(frozen=True)
class OwnPass(Head):
  """A head whose drafter has the state that `memory` keeps; its kinds say how it guesses from that.

  Attributes:
    memory: layers over the committed text, whose cache and newest output are kept; None keeps the
      target's newest state [B, E] after its final norm.
  """

  memory: RunText | None = dataclasses.field(default=None, kw_only=True)

  @abc.abstractmethod
  def begin(
    self, params: Params, target_params: Params, state: Any, context: Context, depth: int
  ) -> tuple[Step, Any, Any]:
    """(step, carry, memory) of a `Guesser` at the root, from the state of `memory`."""

  def behind(self, state: Any) -> RunText | None:
    """`memory` over tokens that follow those of its state, as `update` runs it."""
    return self.memory

  def ids(self, params: Params) -> Array | None:
    """i32[W'], the target ids of the guesses, None where they are the target's."""
    return draft_vocabulary.ids(params)

  def guesser(
    self,
    params: Params,
    target_params: Params,
    state: Any,
    context: Context,
    depth: int,
    settings: Settings,
    noise: NoiseSource,
  ) -> Guesser:
    """The head at the root of a tree of `depth` (static), from the state of `memory`."""
    ids, sampling = self.ids(params), Sampling(settings, noise, self.target.vocab_size)
    return Guesser(*self.begin(params, target_params, state, context, depth), ids, sampling)

  def drafter(self, tree: Tree, counts: Counts | None = None) -> Drafter:
    if counts is not None:
      raise ValueError(
        f"`counts` must be None for {self.name}, which has no pseudo rows, got {counts}."
      )

    def propose(
      params: Params,
      target_params: Params,
      state: Any,
      context: Context,
      settings: Settings,
      noise: NoiseSource,
    ) -> tuple[Draft, Any]:
      guesser = self.guesser(params, target_params, state, context, tree.depth, settings, noise)
      return tree.fill(context.root, guesser), state

    def update(
      params: Params,
      target_params: Params,
      state: Any,
      draft: Draft,
      evaluation: Evaluation,
      verdict: Verdict,
      rows: Array,
    ) -> Any:
      memory = self.behind(state)
      return prefix.update(memory, params, target_params, state, evaluation, verdict, rows)

    return Drafter(
      self.name,
      tree.proposal,
      tree.nodes,
      tree.depth,
      functools.partial(prefix.start, self.memory),
      propose,
      update,
      hidden_layers=self.hidden_layers,
      by_pieces=True,
    )

  def roots(
    self, params: Params, target_params: Params, examples: Examples
  ) -> tuple[Array, Array, Array, KV | None]:
    """Where the head drafts along texts, whose rows are run once.

    Returns:
      (last [B, M, any], what `memory` keeps there; position i32[B, M] of the newest row of text;
      sees bool[B, M, T], the rows of text that it sees; their KV in the layers of `memory`.)
    """
    at, segment = examples.at, examples.segment
    mask = attention_mask(segment, causal=True)
    text, kv = prefix.over_text(self.memory, params, target_params, examples, mask)
    sees = gather(segment, at)[:, :, None] == segment[:, None]
    sees = sees & (jnp.arange(segment.shape[1])[None, None] <= at[:, :, None])
    return gather(text, at), gather(examples.position, at), sees, kv


def token_at(examples: Examples, ahead: int) -> Array:
  """i32[B, M]: the token `ahead` places after each drafting position, 0 past the row."""
  T = examples.tokens.shape[1]
  index = examples.at + ahead
  return jnp.where(index < T, gather(examples.tokens, jnp.minimum(index, T - 1)), 0)
