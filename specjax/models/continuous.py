"""Continuous chain of thought: what a model thinks enters it again as mixtures of its tokens.

CoT2, Gozeten et al. 2025, arXiv 2505.23648. A thought is a sum of all tokens' embeddings, weighed
by the distribution of the next token, so that one chain can follow several texts at once.

Letters: B batch, T tokens of a prompt, M steps, K tokens of a mixture, E width, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import Params
from specjax.models import cache as kv_cache
from specjax.models import transformer
from specjax.models.config import Config
from specjax.sampling import categorical, most_likely

# (distribution f32[B, V], keys [B]) -> the weights f32[B, V] of the tokens that enter the model.
Choose = Callable[[Array, Array], Array]


def whole(probs: Array, keys: Array) -> Array:
  """The distribution itself (section 2, CoT2)."""
  return probs


def likeliest(probs: Array, keys: Array) -> Array:
  """The likeliest token alone: a discrete chain of thought."""
  return jax.nn.one_hot(most_likely(probs), probs.shape[-1], dtype=probs.dtype)


def drawn(count: int) -> Choose:
  """The mean of K = `count` drawn tokens (multi-token sampling); with one, a sampled chain."""
  checks.whole("count", count, 1)

  def choose(probs: Array, keys: Array) -> Array:
    each = jax.vmap(lambda key: jax.random.split(key, count))(keys)
    tokens = jax.vmap(jax.vmap(categorical, (0, None)))(each, jnp.log(probs))
    return jax.nn.one_hot(tokens, probs.shape[-1], dtype=probs.dtype).mean(1)

  return choose


def check(config: Config) -> None:
  """Raises ValueError for a network that reads no mixtures."""
  if not config.causal or config.recurrent or config.layer_embedding:
    raise ValueError(
      "`config` must be causal for mixtures of tokens, without recurrent layers or embeddings in "
      "layers."
    )


def taught(config: Config, params: Params, tokens: Array, thoughts: Array) -> Array:
  """What is said where the thoughts are given: logits f32[B, M, V] of each of M steps.

  Args:
    tokens: i32[B, T], a prompt; the first step follows its last token.
    thoughts: f32[B, M - 1, V], the weights of the tokens of each thought.

  Raises:
    ValueError: such a network reads no mixtures.
  """
  check(config)

  def read(own: transformer.Transformer, tokens: Array, thoughts: Array) -> Array:
    x = jnp.concatenate([own.embed(tokens), own.soften(thoughts)], 1)
    position = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32), x.shape[:2])
    mask = transformer.attention_mask(jnp.zeros_like(position), True)
    x, _ = own.run_layers(x, position, mask)
    return own.head(own.final_norm(x[:, tokens.shape[1] - 1 :]))

  found = transformer.Transformer(config).apply(params, tokens, thoughts, method=read)
  return jnp.asarray(found)


def think(
  config: Config, params: Params, tokens: Array, steps: int, choose: Choose, keys: Array
) -> Array:
  """The log-probabilities f32[B, M, V] of M = `steps` (static) steps after prompts i32[B, T].

  After each but the last, `choose` makes the next input of them.

  Args:
    keys: key[B], of the prompts.

  Raises:
    ValueError: such a network reads no mixtures.
  """
  check(config)
  checks.whole("steps", steps, 1)
  target, network = transformer.target(config), transformer.Transformer(config)
  B, T = tokens.shape
  length = jnp.full(B, T, jnp.int32)
  cache, features = target.prefill(params, tokens, length, T + steps)
  cache, hidden = cache._replace(length=length), features.hidden[:, -1:]  # of all tokens
  one, alone = jnp.ones(B, jnp.int32), jnp.ones((B, 1, 1), bool)
  said: list[Array] = []
  while True:
    said.append(jax.nn.log_softmax(target.head(params, hidden)[:, 0]))
    if len(said) == steps:
      return jnp.stack(said, 1)
    own = jax.vmap(jax.random.fold_in, (0, None))(keys, len(said))
    weights = choose(jnp.exp(said[-1]), own)
    x = jnp.asarray(network.apply(params, weights, method="soften"))[:, None]
    x, kv = target.run_layers(params, x, cache.length[:, None], alone, cache)
    cache, hidden = kv_cache.commit(cache, kv, one[:, None] - 1, one), target.norm(params, x)
