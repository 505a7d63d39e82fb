"""Texts are drawn slot by slot, and weighed by how probable each is as a whole.

Letters beside those of `base`: N all slots of the canvas, S samples.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Target
from specjax.diffusion.base import Denoiser, Params, Policy
from specjax.sampling import DRAFT, RESIDUAL, Noise, NoiseSource

TextLogProbs = Callable[[Params, Array, Array], Array]
"""(params, tokens i32[B, N], seen bool[B, N]) -> f32[B], nats: how probable each whole text is, up
to a constant. Slots that are not seen do not count."""


def resample(
  noise: NoiseSource,
  log_q: Array,
  tokens: Array,
  masked: Array,
  log_p: Callable[[Array], Array],
  samples: int,
) -> Array:
  """i32[B, N]: one of S texts drawn slot by slot, chosen with the weights exp(-E).

  E(x) = log q(x) - log p(x), where q(x) is the product of the masked slots' distributions. EDLM (Xu
  et al. 2024, arXiv 2410.21357). Its published code weighs by exp(+E), which leads away from p.

  EXACT for p given the known tokens in the limit of many samples, where q is nowhere zero that p is
  not; the distance falls as 1 / S. One sample is a draw from q.

  Args:
    log_q: f32[B, N, V], log-probabilities of each slot.
    tokens: i32[B, N], of which the known ones are kept.
    masked: bool[B, N], what is drawn.
    log_p: i32[B * S, N] -> f32[B * S], nats, up to a constant of each of the B rows, whose S texts
      follow each other.
    samples: S (static).
  """
  B, N = tokens.shape
  drawn = noise.children(DRAFT, log_q, samples, False)
  said = jnp.where(masked[..., None], jnp.take_along_axis(log_q, drawn, -1), 0.0).sum(1)
  texts = jnp.where(masked[..., None], drawn, tokens[..., None]).swapaxes(1, 2)
  weight = log_p(texts.reshape(B * samples, N)).reshape(B, samples) - said
  # Where p is zero on all texts of a row, each is as good.
  weight = jnp.where((weight > -jnp.inf).any(1, keepdims=True), weight, 0.0)
  chosen = noise.draw(RESIDUAL, jax.nn.log_softmax(weight))
  return jnp.take_along_axis(texts, chosen[:, None, None], 1)[:, 0]


@functools.cache
def autoregressive(target: Target) -> TextLogProbs:
  """The log-probability of a text under a causal model, given every token that is not masked.

  The params are the model's. The token of slot 0 does not count: a model that predicts the next
  token does not say how probable the first one is.
  """

  def log_prob(params: Params, tokens: Array, seen: Array) -> Array:
    B, N = tokens.shape
    tokens = jnp.where(seen, tokens, 0)  # the mask token need not be one of the model's
    _, features = target.prefill(params, tokens, jnp.full(B, N, jnp.int32), N)
    log_probs = jax.nn.log_softmax(target.head(params, features.hidden[:, :-1]))
    said = jnp.take_along_axis(log_probs, tokens[:, 1:, None], -1)[..., 0]
    return jnp.where(seen[:, 1:], said, 0.0).sum(1)

  return log_prob


class Reweighted(NamedTuple):
  """Params of `reweighted`.

  Attributes:
    inner: the denoiser's own.
    text: the text distribution's.
    key: key[B], see `sampling.request_keys`; its seed is not the request's.
  """

  inner: Params
  text: Params
  key: Array


# What may stand beside a reweighted denoiser, of each kind of part that asks for probabilities.
BESIDE = {
  "blocks": ("fixed",), "cache": ("none",), "stopping": ("after_end", "whole"), "transform": (),
  "draws": ("kept",), "confidence": (), "guidance": (),
}  # fmt: skip


def check_beside(policy: Policy, parts: Mapping[str, Any]) -> None:
  """Raises ValueError for parts that mean nothing to a denoiser which is sure of one text.

  Args:
    parts: by kind a part or how it is named, None for none.
  """
  for kind, names in BESIDE.items():
    name = getattr(parts[kind], "name", parts[kind])
    if name is not None and name not in names:
      raise ValueError(
        f"`{kind}` needs a denoiser that is not reweighted, got {name!r}: a reweighted denoiser "
        "reads whole texts and is sure of one in every pass."
      )
  if not policy.blind:
    raise ValueError(
      "`policy` must be random, left_to_right or origin, alone or with +steps or +timesteps, for "
      f"a reweighted denoiser, which is sure of every slot, got {policy.name!r}."
    )


@functools.cache
def reweighted(denoiser: Denoiser, log_probs: TextLogProbs, samples: int = 2) -> Denoiser:
  """LOSSY: whole guesses are weighed by a second model of the same vocabulary.

  EDLM (Xu et al. 2024, arXiv 2410.21357) for policies that are `blind`: one that commits every slot
  decodes in one pass, one that commits slots at random is nearest to the paper's. Then each further
  pass draws from p given the tokens so far, and the text's distribution is as exact as that of
  `resample`. All slots have confidence 1, so that a policy which asks for it would commit them all.
  Tokens are drawn at temperature 1, and the request's temperature changes nothing.

  In every pass `log_probs` reads S whole texts. Whole canvases are read, so `caches.none` is the
  only cache.

  It makes a denoiser that is sure of one text in every pass, that which `resample` chose.

  Measured: 16 passes for 16 tokens (denoiser_and_causal)

  Args:
    denoiser: the network that gives q.
    log_probs: says what p is; `autoregressive` or another.
    samples: S (static), published 2.
  """
  tokens_of_v = jnp.arange(denoiser.vocab_size)[None, None]

  def evaluate(params: Reweighted, tokens: Array, position: Array, seen: Array, earlier=None):
    if earlier is not None:
      raise ValueError("`cache` must be none for a reweighted denoiser, which weighs whole texts.")
    states, _ = denoiser.evaluate(params.inner, tokens, position, seen)
    predicts = jnp.maximum(jnp.arange(tokens.shape[1]) - int(denoiser.shift), 0)
    logits = denoiser.head(params.inner, states[:, predicts])
    log_q = jax.nn.log_softmax(jnp.where(tokens_of_v == denoiser.mask, -jnp.inf, logits))
    masked = (tokens == denoiser.mask) & seen
    # Every pass commits a slot or more, so each has its own number of masked slots.
    noise = Noise(params.key, masked.sum(1, dtype=jnp.int32))

    def log_p(texts: Array) -> Array:
      return log_probs(params.text, texts, jnp.repeat(seen, samples, 0))

    return resample(noise, log_q, tokens, masked, log_p, samples)[..., None], ()

  def head(params: Reweighted, states: Array) -> Array:
    # Slots past the end stay masked; their logits mean nothing, but must not be NaN.
    return jnp.where((tokens_of_v == states) | (states == denoiser.mask), 0.0, -jnp.inf)

  # Windows need not end with the denoiser's blocks, since every pass reads the whole canvas.
  return denoiser._replace(shift=False, evaluate=evaluate, head=head, pieces=None, block=None)
