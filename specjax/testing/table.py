"""A language model that is a table: the distribution of the next token given the last two.

It keeps a real cache, of token ids, and finds the token before a node as attention would: among the
nodes it sees at the depth above, or for the root in the cache's last row. A wrong mask, a wrong
commit or a row off by one gives another distribution, so a proof on this model covers the loop as
well as the verifier.

Letters: B batch, N tree nodes, T prompt length, S cache length, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import KV, Cache, Evaluation, Features, Params, Target
from specjax.models import cache as kv_cache


def random_table(seed: int, vocab_size: int, spread: float = 1.5) -> Params:
  """Params of a table model: {"logits": f32[V + 1, V, V]}, normal with deviation `spread`.

  Entry [a, b] holds the logits after the tokens a b; a = V stands for nothing before b.
  """
  shape = (vocab_size + 1, vocab_size, vocab_size)
  logits = spread * np.random.default_rng(seed).normal(size=shape)
  return {"logits": jnp.asarray(logits, jnp.float32)}


@functools.cache
def table_model(vocab_size: int) -> Target:
  """The table as a target; see `random_table` for its params.

  The hidden state is the logits (E = V) and the head the identity. After a token outside the
  vocabulary the logits are NaN.
  """

  def after(params: Params, before: Array, own: Array) -> Array:
    return params["logits"].at[before, own].get(mode="fill", fill_value=jnp.nan)

  def as_kv(tokens: Array) -> KV:
    rows = tokens[:, None, :, None]
    return KV((rows,), (rows,))

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    before = jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=vocab_size)[:, :-1]
    cache = kv_cache.allocate(as_kv(tokens), length - 1, capacity)
    return cache, Features(after(params, before, tokens))

  def evaluate(
    params: Params, cache: Cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    last = jnp.maximum(cache.length[:, None] - 1, 0)
    cached = jnp.take_along_axis(cache.kv.v[0][:, 0, :, 0], last, 1)
    cached = jnp.where(cache.length[:, None] > 0, cached, vocab_size)
    above = mask & (depth[:, None, :] == depth[:, :, None] - 1)
    seen = jnp.take_along_axis(tokens, jnp.argmax(above, -1), 1)
    seen = jnp.where(above.any(-1), seen, vocab_size)
    logits = after(params, jnp.where(depth == 0, cached, seen), tokens)
    return Evaluation(logits, Features(logits), as_kv(tokens))

  def commit(cache: Cache, kv: KV, path: Array, rows: Array) -> Cache:
    # Row by row, since the shipped write is unrolled over the batch and a proof has thousands.
    alone = jax.tree.map(lambda x: x[:, None], (cache, kv, path, rows))
    return jax.tree.map(lambda x: x[:, 0], jax.vmap(kv_cache.commit)(*alone))

  return Target(vocab_size, prefill, evaluate, commit, lambda params, hidden: hidden)
