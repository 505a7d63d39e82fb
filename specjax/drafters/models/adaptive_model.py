"""A small language model drafts a chain, whose length a policy decides row by row."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import (
  Cache,
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  Params,
  Proposal,
  Target,
  Verdict,
)
from specjax.draft_length.base import DraftLength, Observation, kept
from specjax.heads.prefix import prefilled, reread
from specjax.models.cache import append_one, cut
from specjax.sampling import DRAFT, NoiseSource, Settings, warp
from specjax.trees.structure import chain, rows_where


class AdaptiveModelState(NamedTuple):
  """cache: the draft model's; policy: the state of the policy, arrays [B, ..]."""

  cache: Cache
  policy: Any


@functools.cache
def adaptive_model(lm: Target, policy: DraftLength, nodes: int = 9) -> Drafter:
  """A chain is sampled from an independent LM until a policy ends it, row by row.

  Leviathan et al. 2023 (arXiv 2211.17192) with the policies of `specjax.draft_length`. q is warped
  by the settings of the target's p; for greedy rows the policy sees it at temperature 1. The draft
  model runs until the last row has ended its draft. Where the policy drops the token at which it
  stopped, the proposal is "truncated". Params are (the draft model's, the policy's).

  Args:
    lm: the small LM; its vocabulary must be the target's.
    policy: asked once per draft token.
    nodes: the root and D tokens drafted per round at most.
  """
  depth = nodes - 1
  if nodes < 2:
    raise ValueError(
      f"`nodes` must be at least 2, so that a draft model drafts a token, got {nodes}."
    )

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    cache = prefilled(lm, params[0], context, features, capacity)
    return AdaptiveModelState(cache, policy.init(context.length.shape[0]))

  def propose(
    params: Params,
    target_params: Params,
    state: AdaptiveModelState,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    cache, policy_state = state
    model_params, policy_params = params
    token = context.root
    zero, alone = jnp.zeros_like(token), jnp.ones((*token.shape, 1), bool)
    positive = jnp.where(settings.temperature == 0, 1.0, settings.temperature)
    sampled = settings._replace(temperature=positive)

    def run(cache: Cache, token: Array) -> Evaluation:
      return lm.evaluate(model_params, cache, token, zero, alone)

    evaluation = run(cache, token)
    tokens, valid, distributions = [token], [jnp.ones_like(alone[:, :, 0])], []
    going = valid[0][:, 0]
    # The last step draws nothing; it caches the last token, which may be accepted.
    for step in range(depth + 1):
      if step > 0:  # where no row has a token here, the old result stands in and is not read
        evaluation = lax.cond(valid[-1].any(), run, lambda *_, old=evaluation: old, cache, token)
      log_probs = warp(evaluation.logits, settings)[:, 0]
      cache = append_one(lm, cache, evaluation)
      if step == depth:
        distributions.append(jnp.full_like(log_probs, -jnp.inf))  # nothing is drawn there
        break
      token = noise.draw(DRAFT + step, log_probs)[:, None]
      observation = Observation(
        step,
        warp(evaluation.logits, sampled)[:, 0],
        token[:, 0] if policy.looks_at_token else None,
        evaluation.features.hidden[:, 0],
      )
      ends, after = policy.stop(policy_params, policy_state, observation)
      if policy.drops:
        keeps = kept(policy, policy_params, policy_state, observation)
        log_probs = jnp.where(keeps, log_probs, -jnp.inf)
      distributions.append(log_probs)
      # A row that has ended keeps its state; how long it runs on depends on its neighbours.
      policy_state = rows_where(going, after, policy_state)
      has_token = going if policy.looks_at_token and not policy.drops else going & ~ends
      going = going & ~ends
      tokens.append(token)
      valid.append(has_token[:, None])
    nodes = jnp.concatenate(tokens, 1), jnp.concatenate(valid, 1)
    return chain(*nodes, jnp.stack(distributions, 1)), AdaptiveModelState(cache, policy_state)

  def update(
    params: Params,
    target_params: Params,
    state: AdaptiveModelState,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    drafted = draft.valid[:, 1:].sum(1, dtype=jnp.int32)
    after = policy.update(state.policy, verdict.count, drafted)
    cache = cut(state.cache, state.cache.length - (depth + 1) + rows)
    return AdaptiveModelState(cache, rows_where(rows > 0, after, state.policy))

  def read(
    params: Params,
    target_params: Params,
    state: AdaptiveModelState,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return AdaptiveModelState(
      reread(lm, params[0], state.cache, draft, verdict, rows), state.policy
    )

  proposal: Proposal = "truncated" if policy.drops else "chain"
  return Drafter(
    "adaptive_model",
    proposal,
    depth + 1,
    depth,
    init,
    propose,
    update,
    read=read,
    varies=True,
    by_pieces=True,
  )
