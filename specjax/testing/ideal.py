"""Denoisers that know their task: they give the exact distribution of a slot given the others.

What a policy loses on them is only the price of committing slots independently. The tasks, and the
known accuracies, are those of ParallelBench (Kang et al. 2025, arXiv 2510.04767, section 3).

The items of a list are numbered 0..n - 1 in their order; n is a word that is not in the list, and
n + 1 the mask. The answer takes the first n slots.

Letters: B batch, L canvas length, V = n + 2.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Denoiser, Params


def _denoiser(n: int, probs) -> Denoiser:
  """`probs`: (tokens i32[B, n], masked bool[B, n]) -> f32[B, n, V]."""
  V, mask = n + 2, n + 1

  def evaluate(params: Params, tokens: Array, position: Array, seen: Array, earlier=None):
    answer = tokens[:, :n]
    states = jnp.log(probs(answer, answer == mask))
    return jnp.pad(states, ((0, 0), (0, tokens.shape[1] - n), (0, 0))), ()

  return Denoiser(V, mask, False, evaluate, lambda params, states: states)


@functools.cache
def copied(n: int) -> Denoiser:
  """The answer is the list."""

  def probs(answer: Array, masked: Array) -> Array:
    row = jax.nn.one_hot(jnp.arange(n), n + 2)[None]
    return jnp.broadcast_to(row, (*answer.shape, n + 2))

  return _denoiser(n, probs)


@functools.cache
def shuffled(n: int) -> Denoiser:
  """All orders are equally likely: a slot holds any item that the answer does not have yet."""

  def probs(answer: Array, masked: Array) -> Array:
    said = jnp.where(masked[..., None], 0.0, jax.nn.one_hot(answer, n + 2)).max(1)[:, :n]
    # Where no item is left, after a mistake, all are equally likely.
    left = jnp.where(said.min(1, keepdims=True) > 0, 1.0, 1 - said)
    left = jnp.pad(left, ((0, 0), (0, 2)))
    row = left / left.sum(-1, keepdims=True)
    return jnp.broadcast_to(row[:, None], (*answer.shape, n + 2))

  return _denoiser(n, probs)


@functools.cache
def replaced(n: int) -> Denoiser:
  """One item, any of them, is replaced by the new word."""

  def probs(answer: Array, masked: Array) -> Array:
    placed = ((answer == n) & ~masked).any(1)
    count = masked.sum(1)
    chance = jnp.where(placed | (count == 0), 0.0, 1 / jnp.maximum(count, 1))[:, None, None]
    keep = jax.nn.one_hot(jnp.arange(n), n + 2)[None]
    word = jax.nn.one_hot(jnp.full(n, n), n + 2)[None]
    return (1 - chance) * keep + chance * word

  return _denoiser(n, probs)
