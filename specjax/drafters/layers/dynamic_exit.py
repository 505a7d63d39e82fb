"""DEL: after which layer the target drafts, and how many tokens, follow what was accepted.

Letters: B batch, D depth, N = D + 1 nodes, E width, L layers, X exits.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import (
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  LayeredTarget,
  Params,
  Verdict,
  showing,
)
from specjax.drafters.layers.layerskip import finished, first_layers
from specjax.drafters.layers.own_layers import LayerRows, drafted, nothing
from specjax.models.exits import exits_of
from specjax.sampling import NoiseSource, Settings, most_likely
from specjax.trees.structure import rows_where

DECAY = 0.95  # of what was seen in earlier rounds


class Shadows(NamedTuple):
  """f32[X], or [B, X] in the state: how often an exit would have drafted the target's token, and
  how often that was known; decayed."""

  hit: Array
  seen: Array


class DynamicExitState(NamedTuple):
  """What is kept between rounds.

  Attributes:
    rows: of the draft that is being verified, with the inputs of the exits.
    exit: i32[B], the layers that drafted it, the same in all rows.
    shadows: what is known of the exits.
  """

  rows: LayerRows
  exit: Array
  shadows: Shadows


def unseen(layers: int, every: int) -> Shadows:
  """What is known before the first request: nothing."""
  unknown = jnp.zeros(len(exits_of(layers, every)), jnp.float32)
  return Shadows(unknown, unknown)


def expected_tokens_per_layer(rate: Array, exits: Array, layers: int, depth: int) -> Array:
  """f32[X, A]: the expected tokens of a round over the layers that it loads, of d = 0..D tokens.

  A round of d tokens accepted at `rate` f32[X] each emits 1 + a + ... + a^d tokens. It loads the
  layers below the exit for each of the d tokens, and all L once more.
  """
  step = jnp.arange(depth + 1, dtype=jnp.float32)[None]
  tokens = jnp.cumsum(rate[:, None] ** step, 1)
  return tokens / (step * exits[:, None] + layers)


@functools.cache
def dynamic_exit(target: LayeredTarget, nodes: int = 8, every: int = 2) -> Drafter:
  """LayerSkip with the exit and the length that promise most tokens for their layers.

  This is DEL (Entezari Zarch et al. 2025, arXiv 2504.05598). Shadow tokens tell what every exit
  would have drafted: the head reads its state at each verified node, up to the first node that the
  target refused. A round takes the exit with the most expected tokens per loaded layer at its best
  length, by the shares of right shadow tokens of all rows of a batch and of earlier requests.
  A draft ends by confidence, as published; the threshold is ours. Another token costs the layers
  below the exit and is of use if all tokens before it are right. It is drafted while their joint
  probability, times the exit's share, exceeds what so many layers give on average.

  It was measured as `del-7,every=1` on a model so trained, slower than plain decoding.

  Measured: 1.76 tokens per pass (own_layers)
  Train: python -m specjax.train.lm --data questions.jsonl --out runs/exits --layer-dropout 0.1
  --exit-loss 1

  Args:
    nodes: the root and D tokens drafted at most; a round may draft none.
    every: an exit lies behind every so many layers, since each costs the head over D + 1 rows.

  Raises:
    ValueError: fewer than 2 nodes, or a step that leaves no exit.
  """
  depth = nodes - 1
  target = showing(LayeredTarget, target, "dynamic_exit")
  L = target.layers
  if nodes < 2 or not 1 <= every < L:
    raise ValueError(
      f"`nodes` must be at least 2 and `every` between 1 and {L - 1} layers for del, got {nodes} "
      f"and {every}."
    )
  exits = exits_of(L, every)
  behind = jnp.asarray(np.array(exits, np.int32))

  def init(
    params: Shadows, target_params: Params, /, context: Context, features: Features, capacity: int
  ) -> Any:
    B = context.length.shape[0]
    rows = nothing(target, target_params, B, depth + 1, len(exits))
    shadows = Shadows(*(jnp.broadcast_to(x[None], (B, *x.shape)) for x in params))
    return DynamicExitState(rows, jnp.full(B, every, jnp.int32), shadows)

  def propose(
    params: Params,
    target_params: Params,
    state: DynamicExitState,
    /,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    rate = (state.shadows.hit.sum(0) + 1) / (state.shadows.seen.sum(0) + 2)
    worth = expected_tokens_per_layer(rate, behind.astype(jnp.float32), L, depth)
    best = jnp.argmax(worth.reshape(-1)).astype(jnp.int32)
    chosen, length = best // (depth + 1), best % (depth + 1)
    exit = behind[chosen]
    enough = worth.reshape(-1)[best] * exit.astype(jnp.float32) / rate[chosen]
    draft, rows = drafted(
      target,
      target_params,
      context,
      first_layers(L, exit),
      depth,
      longest=jnp.where(length > 0, depth, 0),
      least=jnp.broadcast_to(enough, context.length.shape),
      joint=True,
      whole=True,
      layers=exits,
    )
    return draft, state._replace(rows=rows, exit=jnp.full_like(state.exit, exit))

  def evaluate(
    params: Params,
    target_params: Params,
    state: DynamicExitState,
    /,
    cache: Any,
    draft: Draft,
    mask: Array,
  ) -> Evaluation:
    exit = state.exit[0]
    evaluation, inputs = finished(target, target_params, state.rows, exit, cache, draft, mask)
    said = []
    for i, before in zip(exits, state.rows.inputs, strict=True):
      stream = jnp.where(i <= exit, before, inputs[i])
      said.append(most_likely(target.head(target_params, target.norm(target_params, stream))))
    return evaluation._replace(aux=jnp.stack(said, 1))

  def update(
    params: Params,
    target_params: Params,
    state: DynamicExitState,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    known = jnp.arange(depth + 1, dtype=jnp.int32)[None] <= verdict.count[:, None]
    right = known[:, None] & (evaluation.aux == verdict.tokens[:, None])
    live = rows > 0
    hit, seen = state.shadows
    more = Shadows(
      DECAY * hit + right.sum(2, dtype=jnp.float32),
      DECAY * seen + known.sum(1, dtype=jnp.float32)[:, None],
    )
    return state._replace(shadows=rows_where(live, more, state.shadows))

  def read(
    params: Params,
    target_params: Params,
    state: DynamicExitState,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return state

  def keep(params: Params, state: DynamicExitState, context: Context) -> Params:
    return Shadows(*(x.mean(0) for x in state.shadows))

  return Drafter(
    "del", "deterministic", depth + 1, depth, init, propose, update, evaluate, read=read, keep=keep
  )
