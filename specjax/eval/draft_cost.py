"""What a draft costs: the time that the drafter takes in a round.

Letters: B batch, N tree nodes.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Cache, Context, Drafter, Params, Target, Verdict
from specjax.eval import timing
from specjax.sampling import Noise, Settings, request_keys
from specjax.trees.structure import ancestors


def _unseen(target: Target, drafter: Drafter, target_params: Params, cache: Cache) -> Any:
  """Ones in the shape of the target's evaluation; () where the drafter has an `evaluate`."""
  if drafter.evaluate is not None:
    return ()
  B, N = len(cache.length), drafter.nodes
  node = jax.ShapeDtypeStruct((B, N), jnp.int32)
  mask = jax.ShapeDtypeStruct((B, N, N), bool)
  evaluate = functools.partial(target.evaluate, hidden_layers=drafter.hidden_layers)
  shapes = jax.eval_shape(evaluate, target_params, cache, node, node, mask)
  return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)


@functools.partial(jax.jit, static_argnames=("target", "drafter"))
def _rounds(
  target: Target,
  drafter: Drafter,
  target_params: Params,
  params: Params,
  cache: Cache,
  context: Context,
  state: Any,
  evaluation: Any,
  count: Array,
) -> tuple[Context, Any]:
  """`count` rounds without the target, in which nothing is accepted.

  Every guess changes the next token and, a little, the states that `update` reads, so that the
  compiler cannot drop anything or take it out of the loop.
  """
  B = len(context.length)
  row, one, zero = jnp.arange(B), jnp.ones(B, jnp.int32), jnp.zeros(B, jnp.int32)
  settings = Settings(jnp.zeros(B), zero, jnp.ones(B), jnp.zeros(B))
  path = jnp.zeros((B, drafter.depth + 1), jnp.int32)

  def body(_, carry):
    context, state = carry
    noise = Noise(request_keys(0, np.arange(B)), context.length)
    text = context._replace(cache=cache)
    draft, state = drafter.propose(params, target_params, state, text, settings, noise)
    said = draft.tokens.sum(1) % target.vocab_size
    if drafter.evaluate is None:
      hair = 1e-6 * said[:, None, None].astype(jnp.float32)
      features = jax.tree.map(lambda x: x + hair.astype(x.dtype), evaluation.features)
      seen = evaluation._replace(features=features)
    else:
      mask = ancestors(draft.parent, drafter.depth)
      seen = drafter.evaluate(params, target_params, state, cache, draft, mask)
    verdict = Verdict(path, zero, jnp.broadcast_to(said[:, None], path.shape))
    state = drafter.update(params, target_params, state, draft, seen, verdict, one)
    tokens = context.tokens.at[row, context.length].set(said)
    return Context(tokens, context.length + one), state

  return jax.lax.fori_loop(0, count, body, (context, state))


def measure(
  target: Target,
  target_params: Params,
  drafters: Sequence[Drafter],
  params: Params,
  context: int,
  *,
  batch: int = 1,
  repeats: int = 7,
) -> list[float]:
  """Median seconds of one `propose` and `update` of each drafter after `context` tokens, in turns.

  The drafters share the weights `params` and differ in their trees. A drafter's own `evaluate`,
  which replaces the target's, is counted too.
  """
  capacity = context + timing.MOST + max(drafter.depth for drafter in drafters) + 1
  ids, length, cache, features = timing.prefilled(
    target, target_params, context, batch, capacity, drafters[0].hidden_layers
  )
  text = Context(jnp.pad(ids, ((0, 0), (0, capacity - context))), length)
  states = [
    jax.jit(drafter.init, static_argnums=4)(params, target_params, text, features, capacity)
    for drafter in drafters
  ]
  unseen = [_unseen(target, drafter, target_params, cache) for drafter in drafters]

  def loop(i: int, count: int) -> Any:
    fixed = (target, drafters[i], target_params, params, cache, text, states[i], unseen[i])
    return _rounds(*fixed, jnp.int32(count))

  loops = [functools.partial(loop, i) for i in range(len(drafters))]
  return np.median(timing.per_pass(loops, repeats), 0).tolist()
