"""A causal model as the start of a masked diffusion model.

The weights stay. The state before a slot predicts it, as it did when the model was causal: DiffuGPT
(Gong et al. 2024, arXiv 2410.17891), Dream (Ye et al. 2025, arXiv 2508.15487), Fast-dLLM v2 (Wu et
al. 2025, arXiv 2509.26328). The model sees both sides from the first step on, as in the last two,
or comes to do so step by step, as in the first.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from specjax.data.tokenizer import MASK
from specjax.names.load import Model


def as_denoiser(model: Model) -> Model:
  """The causal model with a mask token, which is shifted and sees the whole canvas.

  Where the vocabulary has no row for the mask, one is added, the mean of the others, so that the
  mask is no unlikely token at first.

  Raises:
    ValueError: a model without a tokenizer.
  """
  if model.tokenizer is None:
    raise ValueError(f"`start` must have a tokenizer, got {model.name!r}.")
  if model.tokenizer.id(MASK) is None:
    model.tokenizer.inner.add_special_tokens([MASK])
  mask = model.tokenizer.id(MASK)
  assert mask is not None
  V = max(model.config.vocab_size, mask + 1)

  def grown(x: Array) -> Array:
    mean = jnp.broadcast_to(x.mean(0, keepdims=True), (V - len(x), x.shape[1]))
    return jnp.concatenate([x, mean.astype(x.dtype)])

  own = model.params["params"]
  named = ("embedding",) if model.config.tied else ("embedding", "lm_head")
  params = {"params": own | {name: grown(own[name]) for name in named}}
  config = dataclasses.replace(model.config, vocab_size=V, causal=False)
  return dataclasses.replace(model, config=config, params=params, mask=mask, shift=True)


def seen(key: Array, share: Array, T: int) -> Array:
  """bool[T, T]: whether slot i may see slot j; later ones each with a chance of `share` f32[].

  One draw for all rows of a step (DiffuGPT, section 3.2, attention mask annealing).
  """
  return jnp.tril(jnp.ones((T, T), bool)) | (jax.random.uniform(key, (T, T)) < share)
