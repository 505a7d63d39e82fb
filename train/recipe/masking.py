"""The noise of masked diffusion, and the loss that undoes it.

Letters: B batch, T row length.
"""

import jax
import jax.numpy as jnp
from jax import Array


def corrupt(key: Array, maskable: Array) -> tuple[Array, Array]:
  """Masks k of the n maskable tokens of each row, k uniform from 1 to n.

  The loss with weight 1 / p is then the mean over masked tokens. Its expectation is that of masking
  each token independently with p uniform (LLaDA, Nie et al. 2025, arXiv 2502.09992, appendix A),
  but no row of few masks weighs a hundredfold. The k of a batch are evenly spread, each of them
  uniform (MDLM, Sahoo et al. 2024, arXiv 2406.07524).

  Returns:
    (masked bool[B, T], p = k / n f32[B, 1]); p is 1 where there is nothing to mask.
  """
  of_row, of_token = jax.random.split(key)
  B, count = len(maskable), maskable.sum(1, keepdims=True).astype(jnp.float32)
  t = (jax.random.uniform(of_row) + jnp.arange(B, dtype=jnp.float32)[:, None] / B) % 1
  k = jnp.minimum(jnp.floor(t * count) + 1, count)
  noise = jnp.where(maskable, jax.random.uniform(of_token, maskable.shape), 2.0)
  place = jnp.argsort(jnp.argsort(noise, 1), 1).astype(jnp.float32)
  return maskable & (place < k), jnp.where(count > 0, k / jnp.maximum(count, 1), 1.0)


def filling_order(masked: Array) -> Array:
  """i32[B, T]: ranks from left to right of the masked tokens, -1 of the others.

  A random subset is given and the rest is filled in one order, so that every text has one
  factorisation for each subset (Guo and Ermon 2025, arXiv 2504.20456, section 3).
  """
  return jnp.where(masked, jnp.cumsum(masked, 1, dtype=jnp.int32) - 1, -1)


def context_weight(masked: Array, q: float = 0.3) -> Array:
  """Dream's context-adaptive weights f32[B, T] (Ye et al. 2025, arXiv 2508.15487), for 1 / p.

  The weight of token i is the sum over visible tokens j of q (1 - q) ** (|i - j| - 1) / 2.
  """
  T = masked.shape[1]
  apart = jnp.abs(jnp.arange(T)[:, None] - jnp.arange(T)[None]).astype(jnp.float32)
  share = jnp.where(apart > 0, 0.5 * q * (1 - q) ** (apart - 1), 0.0)
  return (~masked).astype(jnp.float32) @ share


def denoising_loss(
  nats: Array, right: Array, masked: Array, maskable: Array, weight: Array
) -> tuple[Array, dict[str, Array]]:
  """Mean over rows of sum(weight x cross-entropy of masked tokens) / maskable tokens, in nats.

  With weight 1 / p this is LLaDA's loss, which bounds the negative log-likelihood per token.

  Args:
    nats: f32[B, T], the cross-entropy of every slot of the corrupted rows.
    right: bool[B, T], whether the likeliest token of a slot is the right one.
    masked, maskable: bool[B, T].
    weight: f32[B, T] or f32[B, 1].
  """
  count = jnp.maximum(maskable.sum(1), 1).astype(jnp.float32)
  loss = (jnp.where(masked, weight * nats, 0.0).sum(1) / count).mean()
  return loss, {"accuracy": (right & masked).sum() / jnp.maximum(masked.sum(), 1)}
