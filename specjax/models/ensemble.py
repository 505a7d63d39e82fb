"""An ensemble of two language models, for drafting: the mixture of their distributions.

Letters: B batch, N nodes, T prompt length, V vocabulary.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import KV, Cache, Evaluation, Features, Params, Target


@functools.cache
def ensemble(a: Target, b: Target, weight: float = 0.5) -> Target:
  """A mixture of two models: logits log(w p_a + (1 - w) p_b).

  Temperature and filters apply to the mixture as they would to one model's distribution. Params are
  a pair. Each model keeps its cache, and rows are committed to both together. As in
  `testing.table_model` the hidden state is the logits (E = V) and the head is the identity.

  w is `weight` (static), 0 to 1. It has half the speed where it was measured.

  Measured: 2.56 tokens per pass (draft_models)
  Train: python -m specjax.train.lm

  Raises:
    ValueError: two vocabularies, a weight outside 0 to 1, or hidden layers that are asked for.
  """
  if a.vocab_size != b.vocab_size:
    raise ValueError(
      f"the two models of an ensemble must have one `vocab_size`, got {a.vocab_size} and "
      f"{b.vocab_size}."
    )
  checks.number("weight", weight, 0, 1)

  def mixed(logits_a: Array, logits_b: Array) -> Array:
    distributions = jnp.stack([jax.nn.log_softmax(logits_a), jax.nn.log_softmax(logits_b)])
    share = jnp.asarray([weight, 1 - weight], distributions.dtype).reshape(
      2, *[1] * (distributions.ndim - 1)
    )
    return jax.nn.logsumexp(distributions, 0, b=jnp.broadcast_to(share, distributions.shape))

  def pair(of_a: Any, of_b: Any) -> Any:
    return of_a._replace(kv=(of_a.kv, of_b.kv))

  def parts(cache: Any) -> list[Cache]:
    return [cache._replace(kv=kv) for kv in cache.kv]

  def check(hidden_layers) -> None:
    if hidden_layers:
      raise ValueError(
        "`hidden_layers` must be () for an ensemble, which has no layers of its own, got "
        f"{hidden_layers}."
      )

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    check(hidden_layers)
    (cache_a, seen_a), (cache_b, seen_b) = (
      model.prefill(own, tokens, length, capacity)
      for model, own in zip((a, b), params, strict=True)
    )
    hidden = mixed(a.head(params[0], seen_a.hidden), b.head(params[1], seen_b.hidden))
    return pair(cache_a, cache_b), Features(hidden)

  def evaluate(
    params: Params, cache: Cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    check(hidden_layers)
    of_a, of_b = (
      model.evaluate(own, part, tokens, depth, mask)
      for model, own, part in zip((a, b), params, parts(cache), strict=True)
    )
    logits = mixed(of_a.logits, of_b.logits)
    return Evaluation(logits, Features(logits), (of_a.kv, of_b.kv))

  def commit(cache: Cache, kv: tuple[KV, KV], path: Array, rows: Array) -> Cache:
    cache_a, cache_b = parts(cache)
    return pair(a.commit(cache_a, kv[0], path, rows), b.commit(cache_b, kv[1], path, rows))

  return Target(a.vocab_size, prefill, evaluate, commit, lambda params, hidden: hidden)
