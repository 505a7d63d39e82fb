"""Classifier-free guidance makes what the prompt adds to the logits count for more."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Denoiser, Earlier, Parameter, Params


class Guided(NamedTuple):
  """Moves the distribution away from the one without the prompt, in two passes.

  These are the params of `guided`: classifier-free guidance (Ho and Salimans 2022, arXiv
  2207.12598). It was measured with a weight of 1.5.

  Measured: 1.9 passes, 78.0 % right (denoising_lists)

  Attributes:
    inner: the denoiser's own.
    prompt: bool[B, L], the slots that are hidden in the second pass.
    weight: f32[B], w; 0 leaves the denoiser as it is.
  """

  inner: Params
  prompt: Array
  weight: Parameter = 1.0


@functools.cache
def guided(denoiser: Denoiser) -> Denoiser:
  """LOSSY: two passes, one without the prompt, give logits l_u + (w + 1) (l_c - l_u).

  LLaDA (Nie et al. 2025, arXiv 2502.09992), after Ho and Salimans 2022 (arXiv 2207.12598). The
  result is a denoiser like any other, on which all policies work.
  """

  mask = denoiser.mask
  if mask is None:
    raise ValueError("`denoiser` must have a mask token to be guided, got one of uniform noise.")

  def evaluate(params: Guided, tokens: Array, position: Array, seen, earlier=None):
    prompt = jnp.take_along_axis(params.prompt, position, 1)
    hidden = jnp.where(prompt, mask, tokens)
    both = [None] * 2 if earlier is None else [Earlier(kv, earlier.visible) for kv in earlier.kv]
    with_prompt, kv = denoiser.evaluate(params.inner, tokens, position, seen, both[0])
    without, kv_without = denoiser.evaluate(params.inner, hidden, position, seen, both[1])
    weight = jnp.broadcast_to(params.weight[:, None, None], (*tokens.shape, 1))
    states = jnp.concatenate([with_prompt, without, weight.astype(without.dtype)], -1)
    return states, (kv, kv_without)

  def head(params: Guided, states: Array) -> Array:
    both, weight = states[..., :-1], states[..., -1:]
    conditional, free = (denoiser.head(params.inner, x) for x in jnp.split(both, 2, -1))
    return free + (weight + 1) * (conditional - free)

  def rows(params: Guided, index: Array) -> Guided:
    inner = denoiser.rows(params.inner, index)
    return Guided(inner, params.prompt[index], params.weight[index])

  return denoiser._replace(evaluate=evaluate, head=head, pieces=None, rows=rows)
