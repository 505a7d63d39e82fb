"""Of several drafters, the first that expects enough of its draft drafts alone.

Letters: B batch, N nodes, V vocabulary.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Params, Proposal, Verdict
from specjax.drafters.combine.sources import check, own_log_probs, together
from specjax.sampling import NoiseSource, Settings
from specjax.trees.structure import rows_where


def _widened(draft: Draft, nodes: int) -> Draft:
  """The draft with padding up to N nodes."""

  def pad(x: Array) -> Array:
    return jnp.pad(x, [(0, 0), (0, nodes - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])

  return jax.tree.map(pad, draft)


class Choice(NamedTuple):
  """What is kept between rounds.

  Attributes:
    sources: their states.
    rounds: i32[B], rounds so far and one more.
    tokens: i32[B], what these brought, the one more round one token.
  """

  sources: tuple[Any, ...]
  rounds: Array
  tokens: Array


@functools.cache
def fallback(*drafters: Drafter) -> Drafter:
  """In each round a row takes the draft of the first source that expects enough of it.

  A source that does not say what it expects (`Drafter.expects`) expects enough of whatever it
  guesses; one that does must expect as many tokens as a round of this text has brought on average.
  Where no source expects enough, the last that guessed a token drafts.

  SAM decoding (Hu et al. 2024, arXiv 2411.10666) chooses so between a long copy from the text and a
  tree of another drafter, by a fixed length of the match, and suffix decoding (Oliaro et al. 2024,
  arXiv 2411.04975) by its score; that the bar is what other rounds brought is ours. A later source
  runs only where a row of the batch needs it, unless it draws.

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
      raise ValueError(
        f"drafter={source.name!r} draws its tokens: only the last source of a choice may."
      )
  nodes = max(source.nodes for source in drafters)
  drawn = last.proposal != "deterministic" and last.depth > 0
  name = "|".join(source.name for source in drafters)
  proposal: Proposal = "independent" if drawn else "deterministic"

  def join(params, bar, guess, context):
    drawing = guess(len(front)) if drawn else None  # outside any condition, as all draws are

    def whole(i: int) -> tuple[Draft, Array, Array]:
      """A source's draft, the rows where it guesses, and those where it expects enough."""
      source, draft = drafters[i], guess(i) if i < len(front) or drawing is None else drawing
      speaks = sure = draft.valid[:, 1:].any(1)
      if source.expects is not None:
        sure = speaks & (source.expects(params[i], context, draft) >= bar)
      if drawing is not None:
        size = drawing.log_probs.shape[-1]
        draft = draft._replace(log_probs=own_log_probs(draft, source.proposal, size))
      return _widened(draft, nodes), speaks, sure

    chosen, _, settled = whole(0)
    for i in range(1, len(drafters)):

      def ask(i: int = i, chosen: Draft = chosen, settled: Array = settled) -> tuple[Draft, Array]:
        draft, speaks, sure = whole(i)
        return rows_where(speaks & ~settled, draft, chosen), settled | sure

      def kept(chosen: Draft = chosen, settled: Array = settled) -> tuple[Draft, Array]:
        return chosen, settled

      chosen, settled = lax.cond(settled.all(), kept, ask)
    return chosen

  def joined(params: Params = (), bar: Array | None = None) -> Drafter:
    return together(name, drafters, proposal, nodes, functools.partial(join, params, bar))

  sources = joined()
  learns = sources.keep

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    one = jnp.ones_like(context.length)
    return Choice(sources.init(params, target_params, context, features, capacity), one, one)

  def propose(
    params: Params,
    target_params: Params,
    state: Any,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    bar = state.tokens.astype(jnp.float32) / state.rounds.astype(jnp.float32)
    own = state.sources
    draft, _ = joined(params, bar).propose(params, target_params, own, context, settings, noise)
    return draft, state

  def update(
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    own = sources.update(params, target_params, state.sources, draft, evaluation, verdict, rows)
    return Choice(own, state.rounds + (rows > 0).astype(jnp.int32), state.tokens + rows)

  def read(
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    given = sources.read or sources.update
    own = given(params, target_params, state.sources, draft, evaluation, verdict, rows)
    return state._replace(sources=own)

  def keep(params: Params, state: Any, context: Context) -> Params:
    return learns(params, state.sources, context) if learns else params

  return sources._replace(
    init=init, propose=propose, update=update, read=read, keep=learns and keep
  )
