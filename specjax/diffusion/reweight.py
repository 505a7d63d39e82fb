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


class Guess(NamedTuple):
  """Whole texts, drawn slot by slot.

  Attributes:
    tokens: i32[B, N].
    masked: bool[B, N], the slots that were drawn.
    seen: bool[B, N]; the other slots do not count.
    log_q: f32[B], nats: how probable the draws were.
  """

  tokens: Array
  masked: Array
  seen: Array
  log_q: Array


Energy = Callable[[Params, Guess], Array]
"""(params, guess) -> f32[B], nats: log q - log p, up to a constant of what the text was drawn for;
`autoregressive`, or a trained network, see `models.energy`."""


def slot_log_probs(
  denoiser: Denoiser, params: Params, tokens: Array, position: Array, seen: Array
) -> Array:
  """f32[B, N, V], what the denoiser says of every slot; never the mask token.

  tokens, position: i32[B, N]; seen: bool[B, N].
  """
  states, _ = denoiser.evaluate(params, tokens, position, seen)
  predicts = jnp.maximum(jnp.arange(tokens.shape[1]) - int(denoiser.shift), 0)
  logits = denoiser.head(params, states[:, predicts])
  is_mask = jnp.arange(denoiser.vocab_size)[None, None] == denoiser.mask
  return jax.nn.log_softmax(jnp.where(is_mask, -jnp.inf, logits))


def guesses(
  noise: NoiseSource, log_q: Array, tokens: Array, masked: Array, seen: Array, samples: int
) -> Guess:
  """S texts of every row, one after another: the arrays have B * S rows.

  Args:
    log_q: f32[B, N, V], log-probabilities of each slot.
    tokens: i32[B, N], of which the known ones are kept.
    masked: bool[B, N], what is drawn.
    seen: bool[B, N].
    samples: S (static).
  """
  drawn = noise.children(DRAFT, log_q, samples, False)
  said = jnp.where(masked[..., None], jnp.take_along_axis(log_q, drawn, -1), 0.0).sum(1)
  texts = jnp.where(masked[..., None], drawn, tokens[..., None]).swapaxes(1, 2)
  drawn_of, seen_of = (jnp.repeat(x, samples, 0) for x in (masked, seen))
  return Guess(texts.reshape(-1, tokens.shape[1]), drawn_of, seen_of, said.reshape(-1))


def resample(
  noise: NoiseSource,
  log_q: Array,
  tokens: Array,
  masked: Array,
  seen: Array,
  energy: Callable[[Guess], Array],
  samples: int,
) -> Array:
  """i32[B, N]: one of S texts drawn slot by slot, chosen with the weights exp(-E).

  E(x) = log q(x) - log p(x), where q(x) is the product of the masked slots' distributions. EDLM (Xu
  et al. 2024, arXiv 2410.21357). Its published code weighs by exp(+E), which leads away from p.

  EXACT for p given the known tokens in the limit of many samples, where q is nowhere zero that p is
  not; the distance falls as 1 / S. One sample is a draw from q.

  Args:
    energy: guess of B * S rows -> f32[B * S], nats, up to a constant of each of the B rows.
    log_q, tokens, masked, seen, samples: see `guesses`.
  """
  guess = guesses(noise, log_q, tokens, masked, seen, samples)
  weight = -energy(guess).reshape(-1, samples)
  # Where p is zero on all texts of a row, each is as good.
  weight = jnp.where((weight > -jnp.inf).any(1, keepdims=True), weight, 0.0)
  chosen = noise.draw(RESIDUAL, jax.nn.log_softmax(weight))
  texts = guess.tokens.reshape(*weight.shape, -1)
  return jnp.take_along_axis(texts, chosen[:, None, None], 1)[:, 0]


@functools.cache
def autoregressive(target: Target) -> Energy:
  """The energy by a causal model: p is what it says of a text, given every token that is known.

  The params are the model's. The token of slot 0 does not count: a model that predicts the next
  token does not say how probable the first one is.
  """

  def energy(params: Params, guess: Guess) -> Array:
    B, N = guess.tokens.shape
    tokens = jnp.where(guess.seen, guess.tokens, 0)  # the mask token need not be one of the model's
    _, features = target.prefill(params, tokens, jnp.full(B, N, jnp.int32), N)
    log_probs = jax.nn.log_softmax(target.head(params, features.hidden[:, :-1]))
    said = jnp.take_along_axis(log_probs, tokens[:, 1:, None], -1)[..., 0]
    return guess.log_q - jnp.where(guess.seen[:, 1:], said, 0.0).sum(1)

  return energy


class Reweighted(NamedTuple):
  """Params of `reweighted`.

  Attributes:
    inner: the denoiser's own.
    text: the energy's.
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
def reweighted(denoiser: Denoiser, energy: Energy, samples: int = 2) -> Denoiser:
  """LOSSY: whole guesses are weighed by a second model of the same vocabulary.

  EDLM (Xu et al. 2024, arXiv 2410.21357) for policies that are `blind`: one that commits every slot
  decodes in one pass, one that commits slots at random is nearest to the paper's. Then each further
  pass draws from p given the tokens so far, and the text's distribution is as exact as that of
  `resample`. All slots have confidence 1, so that a policy which asks for it would commit them all.
  Tokens are drawn at temperature 1, and the request's temperature changes nothing.

  In every pass `energy` reads S whole texts. Whole canvases are read, so `caches.none` is the only
  cache. It is a causal model's, or that of a network which learned by noise contrastive estimation.

  It makes a denoiser that is sure of one text in every pass, that which `resample` chose.

  Measured: 4 passes for 8, in 3.5x the time (denoising_lists)
  Train: python -m specjax.train.energy

  Args:
    denoiser: the network that gives q.
    energy: says what p is.
    samples: S (static), published 2.
  """
  tokens_of_v = jnp.arange(denoiser.vocab_size)[None, None]

  def evaluate(params: Reweighted, tokens: Array, position: Array, seen: Array, earlier=None):
    if earlier is not None:
      raise ValueError("`cache` must be none for a reweighted denoiser, which weighs whole texts.")
    log_q = slot_log_probs(denoiser, params.inner, tokens, position, seen)
    masked = (tokens == denoiser.mask) & seen
    # Every pass commits a slot or more, so each has its own number of masked slots.
    noise = Noise(params.key, masked.sum(1, dtype=jnp.int32))
    of_text = functools.partial(energy, params.text)
    return resample(noise, log_q, tokens, masked, seen, of_text, samples)[..., None], ()

  def head(params: Reweighted, states: Array) -> Array:
    # Slots past the end stay masked; their logits mean nothing, but must not be NaN.
    return jnp.where((tokens_of_v == states) | (states == denoiser.mask), 0.0, -jnp.inf)

  # Windows need not end with the denoiser's blocks, since every pass reads the whole canvas.
  return denoiser._replace(shift=False, evaluate=evaluate, head=head, pieces=None, block=None)
