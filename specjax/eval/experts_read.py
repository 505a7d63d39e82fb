"""How many experts a pass over N nodes reads: the union of what its nodes choose.

One token reads k of a layer's X experts. Every further node of a draft may read others, so that the
verification of a tree costs a mixture of experts more than it costs a dense model; BlockFFN (Song
et al. 2025, arXiv 2507.08771) calls what is left unread the chunk-level sparsity.

Letters: B batch, T tokens, N nodes, L layers with experts, X experts, k experts of a token.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks
from specjax.base import Params
from specjax.models.config import Config
from specjax.models.experts import of_layers
from specjax.models.transformer import Transformer, attention_mask


@functools.partial(jax.jit, static_argnums=0)
def choices(config: Config, params: Params, tokens: Array) -> Array:
  """bool[L, B, T, X], which experts each token of texts i32[B, T] is sent to."""
  position = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  mask = attention_mask(jnp.zeros_like(tokens), config.causal)
  _, kept = Transformer(config).apply(params, tokens, position, mask, mutable=["intermediates"])
  chosen = of_layers(kept["intermediates"], "chosen", config.layers)
  count = 0 if config.experts is None else config.experts.count

  def sent(expert: Array, weight: Array) -> Array:
    return (jax.nn.one_hot(expert, count, dtype=bool) & (weight != 0)[..., None]).any(-2)

  return jnp.stack([sent(*each) for each in chosen])


def experts_read(
  config: Config, params: Params, tokens: Array, length: np.ndarray, nodes: Sequence[int]
) -> np.ndarray:
  """f64[len(nodes)], the mean number of experts of a layer that a pass over N tokens reads.

  The tokens follow each other in a text, as those of a chain do whose guesses are all right.

  Args:
    tokens: i32[B, T], texts padded on the right.
    length: i32[B], of the texts.
    nodes: values of N.

  Raises:
    ValueError: a model without experts, or texts that are all shorter than N.
  """
  if config.experts is None:
    checks.refuse("experts", None, "a model whose MLPs are mixtures of experts")
  most = max(map(int, length))
  for N in nodes:
    checks.whole("nodes", N, 1, most, note="tokens of the longest text")
  sent = np.asarray(choices(config, params, tokens))
  means = []
  for N in nodes:
    windows = np.lib.stride_tricks.sliding_window_view(sent, N, 2)  # [L, B, T - N + 1, X, N]
    counts = windows.any(-1).sum(-1)
    is_text = np.arange(counts.shape[2])[None] + N <= np.asarray(length)[:, None]
    means.append(counts[:, is_text].mean())
  return np.array(means)


def by_chance(count: int, chosen: float, nodes: Sequence[int]) -> np.ndarray:
  """f64[len(nodes)], what N tokens read that choose k of X experts independently of each other."""
  return count * (1 - (1 - chosen / count) ** np.asarray(nodes, float))
