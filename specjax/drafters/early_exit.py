"""A model with several exits drafts a token: the first exit that is sure enough says it.

S2D (Kavehzadeh et al. 2024, arXiv 2407.01955). These are the two ways to draw that token; a drafter
of such a model calls one. A rule that corrects for q needs the distribution of what they return,
which is that of the exit that said the token in the first of them only.

Letters: B batch, X exits from the shallowest to the whole model, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from specjax.sampling import Source
from specjax.verifiers.siblings import mass_at


def by_peak(log_probs: Array, least: Array, noise: Source, stream: int) -> tuple[Array, Array]:
  """Confidence is an exit's largest probability, known before a token is drawn.

  Args:
    log_probs: f32[X, B, V], the exits'. Those of deeper ones than the first that is sure need not
      be computed; anything may stand there.
    least: f32[X - 1], confidence that is enough; the last exit always speaks.
    noise: what draws.
    stream: of the draw.

  Returns:
    (token i32[B], log_probs f32[B, V]): these are what it was drawn from, the exit's own.
  """
  sure = jnp.exp(log_probs.max(-1)) >= jnp.append(least, -jnp.inf)[:, None]
  speaks = jnp.argmax(sure, 0)
  q = jnp.take_along_axis(log_probs, speaks[None, :, None], 0)[0]
  return noise.draw(stream, q), q


def by_token(log_probs: Array, least: Array, noise: Source, stream: int) -> tuple[Array, Array]:
  """Confidence is the probability of the token that an exit draws; a doubted one is dropped.

  The distribution is q_1 where q_1 >= least_1, plus the mass dropped there times the same of the
  exits after it. It needs all of them, also where the first was sure, unless nothing could have
  been dropped: unlike `by_peak` an exact early exit saves nothing here.

  Args:
    log_probs: f32[X, B, V], the exits'.
    least: f32[X - 1], confidence that is enough; the last exit always speaks.
    noise: what draws.
    stream: of the first exit's draw; the next X - 1 are the others'.

  Returns:
    (token i32[B], log_probs f32[B, V]): these are what it was drawn from.
  """
  deepest = log_probs.shape[0] - 1
  token, mixture = noise.draw(stream + deepest, log_probs[-1]), jnp.exp(log_probs[-1])
  for i in reversed(range(deepest)):
    q, own = jnp.exp(log_probs[i]), noise.draw(stream + i, log_probs[i])
    sure = q >= least[i]
    mixture = jnp.where(sure, q, 0.0) + jnp.where(sure, 0.0, q).sum(-1, keepdims=True) * mixture
    token = jnp.where(mass_at(q, own) >= least[i], own, token)
  return token, jnp.log(mixture)
