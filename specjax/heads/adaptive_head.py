"""A draft head guesses a chain, whose length a policy decides row by row.

Letters: B batch, D depth, W' draft vocabulary.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Params, Verdict
from specjax.draft_length.base import DraftLength, Observation
from specjax.heads import drafting
from specjax.heads.base import Head
from specjax.heads.own_pass import OwnPass
from specjax.heads.parallel import Frames
from specjax.sampling import NoiseSource, Settings, most_likely
from specjax.trees.static import Static
from specjax.trees.structure import rows_where


class AdaptiveHeadState(NamedTuple):
  """head: what the head keeps; policy: the state of the policy, arrays [B, ..]."""

  head: Any
  policy: Any


@functools.cache
def adaptive_head(head: Head, policy: DraftLength, nodes: int = 6) -> Drafter:
  """The best guesses of a head, one per level, until a policy of `specjax.draft_length` ends them.

  The policy sees what the head says over its own vocabulary, at temperature 1. Guesses are chosen,
  not drawn, so the draft stays deterministic even where the policy drops a token it has looked at.
  Once the drafts of all rows have ended the head is not asked any more, and the pass that verifies
  is narrower. Beside other drafters the policy learns from their rounds, too.

  Args:
    head: without pseudo rows, since these are drafted in the pass before, and without a blank.
    policy: asked once per draft token.
    nodes: the root and D tokens drafted per round at most.

  Raises:
    ValueError: a head with pseudo rows or a blank, a policy that reads a draft model's states, or a
      depth beyond the head's.
  """
  if not isinstance(head, OwnPass) or isinstance(head, Frames):
    why = "guesses frames" if isinstance(head, Frames) else "guesses in the pass that verifies"
    raise ValueError(
      f"`head` must have no pseudo rows and no blank before a draft length, got {head.name!r} "
      f"{why}."
    )
  if policy.name == "specdecpp":
    raise ValueError("draft_length='specdecpp' reads the states of a draft model: a head has none.")
  depth = nodes - 1
  chain = Static([(0,) * d for d in range(1, nodes)])
  whole = drafting.drafter(head, chain)

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    own = whole.init(params, target_params, context=context, features=features, capacity=capacity)
    return AdaptiveHeadState(own, policy.init(context.length.shape[0]))

  def propose(
    params: Params,
    target_params: Params,
    state: AdaptiveHeadState,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    guesser = head.guesser(params, target_params, state.head, context, depth, settings, noise)
    going, policy_state = jnp.ones(len(context.root), bool), state.policy
    valid = [going]

    def step(*asked: Any) -> tuple[Array, Any, Any]:
      nonlocal going, policy_state

      def ask() -> tuple[Any, Array | None]:
        chance = guesser.chance
        return guesser.step(*asked), None if chance is None else chance(*asked[:4])[:, 0]

      def nothing() -> Any:  # of the same shapes, where every draft has ended
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(ask))

      level = asked[0]
      answer, chance = ask() if level == 0 else lax.cond(going.any(), ask, nothing)
      log_probs = jax.nn.log_softmax(answer[0][:, 0])
      token = most_likely(log_probs) if policy.looks_at_token else None
      ends, after = policy.stop(
        (), policy_state, Observation(level, log_probs, token, chance=chance)
      )
      policy_state = rows_where(going, after, policy_state)
      valid.append(going if policy.looks_at_token and not policy.drops else going & ~ends)
      going = going & ~ends
      return answer

    draft = chain.fill(context.root, guesser._replace(step=step))
    return draft._replace(valid=jnp.stack(valid, 1)), state

  def update(
    params: Params,
    target_params: Params,
    state: AdaptiveHeadState,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    drafted = draft.valid[:, 1:].sum(1, dtype=jnp.int32)
    after = policy.update(state.policy, verdict.count, drafted)
    own = whole.update(
      params,
      target_params,
      state.head,
      draft=draft,
      evaluation=evaluation,
      verdict=verdict,
      rows=rows,
    )
    return AdaptiveHeadState(own, rows_where(rows > 0, after, state.policy))

  return whole._replace(
    init=init, propose=propose, update=update, read=None, varies=True, by_pieces=False
  )
