"""A model with several exits drafts a token: the first exit that is sure enough gives it.

S2D (Kavehzadeh et al. 2024, arXiv 2407.01955). A drafter of such a model draws the token in one of
these two ways; both return the distribution q that a rule must correct for.

Letters: B batch, X exits from the shallowest to the whole model, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from specjax.sampling import Source
from specjax.verifiers.siblings import mass_at


def by_peak(log_probs: Array, least: Array, noise: Source, stream: int) -> tuple[Array, Array]:
  """Confidence is an exit's largest probability, known before a token is drawn.

  Args:
    log_probs: f32[X, B, V]; rows of exits behind the first that is sure may hold anything.
    least: f32[X - 1], the confidence that is enough; the last exit needs none.

  Returns:
    (token i32[B], log q f32[B, V], which is the distribution of the exit).
  """
  sure = jnp.exp(log_probs.max(-1)) >= jnp.append(least, -jnp.inf)[:, None]
  speaks = jnp.argmax(sure, 0)
  q = jnp.take_along_axis(log_probs, speaks[None, :, None], 0)[0]
  return noise.draw(stream, q), q


def by_token(log_probs: Array, least: Array, noise: Source, stream: int) -> tuple[Array, Array]:
  """Confidence is the probability of the token that an exit draws; where it is too low, the next
  exit draws.

  q is q_1 where q_1 >= least_1, plus the mass elsewhere times the q of the exits after it. So all
  exits are needed even where the first was sure: unlike `by_peak` this saves no computation.

  Args:
    log_probs: f32[X, B, V].
    least: f32[X - 1], the confidence that is enough; the last exit needs none.
    stream: of the first exit's draw; the next X - 1 streams are for the others.

  Returns:
    (token i32[B], log q f32[B, V]).
  """
  deepest = log_probs.shape[0] - 1
  token, mixture = noise.draw(stream + deepest, log_probs[-1]), jnp.exp(log_probs[-1])
  for i in reversed(range(deepest)):
    q, own = jnp.exp(log_probs[i]), noise.draw(stream + i, log_probs[i])
    sure = q >= least[i]
    mixture = jnp.where(sure, q, 0.0) + jnp.where(sure, 0.0, q).sum(-1, keepdims=True) * mixture
    token = jnp.where(mass_at(q, own) >= least[i], own, token)
  return token, jnp.log(mixture)
