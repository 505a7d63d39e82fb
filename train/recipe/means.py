"""Means over a batch that is cut into parts: each token weighs the same however it is cut.

The mean of the parts' means is not the mean of the batch where parts hold different numbers of
tokens. So a loss gives each mean with its weight, and what all parts have is divided once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax


class Mean(NamedTuple):
  """A mean f32[], and the weight f32[] of all that it was taken over."""

  value: Array
  weight: Array


# (params, frozen, batch, key) -> (terms of the loss, metrics by name). Both are trees whose leaves
# are a `Mean`, or f32[] for a mean over rows, of which all parts have the same number.
Loss = Callable[[Any, Any, Any, Array], tuple[Any, dict[str, Any]]]
Total = Callable[[Any], Array]  # values of the terms -> the loss f32[]


def _is_mean(x: Any) -> bool:
  return isinstance(x, Mean)


def over(weight: Array, means: Any) -> Any:
  """A tree of means f32[] that were all taken with these weights, each as a `Mean`."""
  return jax.tree.map(lambda x: Mean(x, jnp.asarray(weight).sum().astype(jnp.float32)), means)


def values(means: Any) -> Any:
  """A tree of what is f32[] or a `Mean`, as f32[] each."""
  return jax.tree.map(lambda x: x.value if _is_mean(x) else x, means, is_leaf=_is_mean)


def added(terms: Any) -> Array:
  """The sum of all terms."""
  return sum(jax.tree.leaves(terms), jnp.zeros(()))


def merged(means: Any) -> Any:
  """The means over all parts, each a `Mean`, from a tree whose leaves have [parts] in front."""

  def one(x: Any) -> Mean:
    value, weight = x if _is_mean(x) else (x, jnp.ones_like(x))
    weight = lax.stop_gradient(weight)
    total = weight.sum()
    return Mean((value * weight).sum() / jnp.where(total > 0, total, 1), total)

  return jax.tree.map(one, means, is_leaf=_is_mean)


def row_keys(key: Array, rows: int) -> Array:
  """Keys [rows] of rows, from one for all of them; keys of rows stay."""
  return key if key.ndim else jax.random.split(key, rows)


def gradient(loss: Loss, total: Total, parts: int) -> Callable[..., Any]:
  """(params, frozen, batch, key) -> ((loss, metrics), gradient), of parts one after another.

  Row i belongs to part i % parts, so that each device has as many rows of each part.
  """

  def whole(params: Any, frozen: Any, batch: Any, key: Array) -> Any:
    def said(params: Any) -> tuple[Array, dict[str, Array]]:
      terms, metrics = loss(params, frozen, batch, key)
      return total(values(terms)), values(metrics)

    return jax.value_and_grad(said, has_aux=True)(params)

  def cut(params: Any, frozen: Any, batch: Any, key: Array) -> Any:
    def split(x: Array) -> Array:
      return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    def part(params: Any, i: Array) -> tuple[Any, dict[str, Any]]:
      own = jax.tree.map(lambda x: split(x)[i], batch)
      return loss(params, frozen, own, jax.random.fold_in(key, i))

    # What a part's terms count in the loss depends on all parts, mostly on their weights alone: of
    # this first pass XLA keeps no more than that.
    numbers = jnp.arange(parts, dtype=jnp.int32)
    first = lax.map(lambda i: part(params, i)[0], numbers)
    slopes = jax.grad(lambda terms: total(values(merged(terms))))(first)

    def add(grads: Any, one: tuple[Array, Any]) -> tuple[Any, Any]:
      i, slope = one
      terms, pull, metrics = jax.vjp(lambda params: part(params, i), params, has_aux=True)
      return jax.tree.map(jnp.add, grads, pull(slope)[0]), (terms, metrics)

    nothing = jax.tree.map(jnp.zeros_like, params)
    grads, (terms, metrics) = lax.scan(add, nothing, (numbers, slopes))
    terms, metrics = values(merged((terms, metrics)))
    return (total(terms), metrics), grads

  return whole if parts == 1 else cut
