"""LayerSkip: the first layers draft, and the others verify what they have begun.

Letters: B batch, D depth, E width, L layers.
"""

import functools
from typing import Any

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
from specjax.drafters.layers.own_layers import LayerRows, drafted, nothing
from specjax.sampling import NoiseSource, Settings


def first_layers(layers: int, exit: Array | int) -> Array:
  """bool[L, 2], the layers below `exit` i32[]."""
  below = jnp.arange(layers, dtype=jnp.int32) < exit
  return jnp.broadcast_to(below[:, None], (layers, 2))


def finished(
  target: LayeredTarget,
  target_params: Params,
  rows: LayerRows,
  exit: Array | int,
  cache,
  draft,
  mask,
) -> tuple[Evaluation, tuple[Array, ...]]:
  """The target at every node, whose rows have passed the layers below `exit` before.

  Returns:
    (the evaluation, the input [B, N, E] of each layer; below `exit` that is the stream there).
  """
  x, kv, inputs = target.run_some(
    target_params,
    rows.stream,
    cache.length[:, None] + draft.depth,
    mask,
    cache,
    ~first_layers(target.layers, exit),
    given=rows.kv,
  )
  hidden = target.norm(target_params, x)
  return Evaluation(target.head(target_params, hidden), Features(hidden), kv), inputs


@functools.cache
def layerskip(target: LayeredTarget, nodes: int = 7, exit: int | None = None) -> Drafter:
  """Drafts with the target's first layers, which its own pass does not run again.

  This is LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710), for models that were trained to exit
  early, see `train.lm --exit-loss`. The target's final norm and head read the draft. The pass that
  verifies runs the other layers alone, so a round reads each weight of a first layer once for each
  drafted token and once for the last one, and every other weight once.

  It was measured as `layerskip-3,exit=3` on a model so trained, no faster than plain decoding.

  Measured: 2.16 tokens per pass (own_layers)
  Train: python -m specjax.train.lm --data questions.jsonl --out runs/exits --layer-dropout 0.1
  --exit-loss 1

  Args:
    nodes: the root and D tokens drafted.
    exit: how many layers draft; None is a quarter of them, as published for 32.

  Raises:
    ValueError: fewer than 2 nodes, or an exit that leaves no layer to draft or none to verify.
  """
  depth = nodes - 1
  target = showing(LayeredTarget, target, "layerskip")
  exit = max(1, target.layers // 4) if exit is None else exit
  if nodes < 2 or not 1 <= exit < target.layers:
    raise ValueError(
      f"`nodes` must be at least 2 and `exit` between 1 and {target.layers - 1} of the model's "
      f"layers for layerskip, got {nodes} and {exit}."
    )
  early = np.arange(target.layers)[:, None].repeat(2, 1) < exit

  def init(
    params: Params, target_params: Params, /, context: Context, features: Features, capacity: int
  ) -> Any:
    return nothing(target, target_params, context.length.shape[0], depth + 1, 0)

  def propose(
    params: Params,
    target_params: Params,
    state: LayerRows,
    /,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    return drafted(target, target_params, context, jnp.asarray(early), depth, whole=True)

  def evaluate(
    params: Params,
    target_params: Params,
    state: LayerRows,
    /,
    cache: Any,
    draft: Draft,
    mask: Array,
  ) -> Evaluation:
    return finished(target, target_params, state, exit, cache, draft, mask)[0]

  def update(
    params: Params,
    target_params: Params,
    state: LayerRows,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return state

  return Drafter(
    "layerskip",
    "deterministic",
    depth + 1,
    depth,
    init,
    propose,
    update,
    evaluate,
    read=update,
    by_pieces=True,
  )
