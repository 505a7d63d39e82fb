"""The target drafts for itself over a compressed cache of its text.

Letters: B batch, W tokens, L layers, S capacity.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Cache, Context, Draft, Drafter, Evaluation, Features, Params, Verdict
from specjax.models import transformer
from specjax.models.caches.base import CacheKind, Queries
from specjax.models.compressed import run
from specjax.models.config import Config
from specjax.sampling import NoiseSource, Settings
from specjax.trees.structure import gather

ASKING = 64  # W, the last tokens of a prompt by whose queries its rows are judged


class OverCacheState(NamedTuple):
  """own: what the drafter keeps; cache: of the committed tokens but for the root."""

  own: Any
  cache: Any


def asked(config: Config, params: Params, context: Context) -> Queries:
  """The queries of the last W cached tokens, from a pass over them."""
  step = jnp.arange(ASKING, dtype=jnp.int32)[None]
  last = context.length[:, None] - 1 - ASKING + step
  place = jnp.maximum(last, 0)
  x = transformer.target(config).embed(params, gather(context.tokens, place))
  before = context.cache._replace(length=place[:, 0])
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((ASKING, ASKING), bool)), (len(last), ASKING, ASKING))
  # Copies of the first token stand where a text is shorter; nothing sees them but themselves.
  real = last >= 0
  mask = causal & (real[:, None] | jnp.eye(ASKING, dtype=bool)[None])
  _, fresh, _ = run(config, params, x, place, mask, before)
  return fresh.queries._replace(position=jnp.where(real, last, -1))


@functools.cache
def over_cache(drafter: Drafter, config: Config, kind: CacheKind) -> Drafter:
  """`drafter`, which reads the target's cache, reads a smaller one that is kept beside it.

  A draft costs less behind a long text, and nothing changes but the speed: the target verifies over
  its whole cache. These are the ideas of TriForce (Sun et al. 2024, arXiv 2404.11912) and MagicDec
  (Chen et al. 2024, arXiv 2408.11049). Rows are committed to the smaller cache as the target
  computed them. A kind that judges rows does so by the last 64 tokens of the prompt.

  Args:
    drafter: made of a target by `models.compressed.drafting`, with the same config and kind.
  """

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    if not isinstance(context.cache, Cache):
      raise ValueError(f"{drafter.name}/{kind.name} needs a target whose own cache is dense.")
    queries = asked(config, target_params, context) if kind.judges else None
    own = drafter.init(params, target_params, context=context, features=features, capacity=capacity)
    return OverCacheState(own, kind.start(context.cache.kv, queries, context.length - 1, capacity))

  def propose(
    params: Params,
    target_params: Params,
    state: OverCacheState,
    /,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    small = context._replace(cache=state.cache)
    draft, own = drafter.propose(
      params, target_params, state.own, context=small, settings=settings, noise=noise
    )
    return draft, state._replace(own=own)

  def after(
    step,
    params: Params,
    target_params: Params,
    state: OverCacheState,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    own = step(
      params,
      target_params,
      state.own,
      draft=draft,
      evaluation=evaluation,
      verdict=verdict,
      rows=rows,
    )
    return OverCacheState(own, kind.commit(state.cache, evaluation.kv, None, verdict.path, rows))

  def update(
    params: Params,
    target_params: Params,
    state: Any,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return after(drafter.update, params, target_params, state, draft, evaluation, verdict, rows)

  def read(
    params: Params,
    target_params: Params,
    state: Any,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    step = drafter.read or drafter.update
    return after(step, params, target_params, state, draft, evaluation, verdict, rows)

  return drafter._replace(
    name=f"{drafter.name}/{kind.name}",
    init=init,
    propose=propose,
    update=update,
    read=read,
    by_pieces=False,
  )
