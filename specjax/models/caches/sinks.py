"""A sliding window with attention sinks."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.models.caches.base import CacheKind
from specjax.models.caches.evicting import evicting


@functools.cache
def sinks(first: int = 4, recent: int = 508) -> CacheKind:
  """LOSSY: the first rows, on which much attention rests, and the newest ones are kept.

  StreamingLLM, Xiao et al. 2023, arXiv 2309.17453. Rows keep the positions they were written with.

  Measured: perplexity 20.377 for 19.540 (caches)

  Args:
    first: rows of the beginning.
    recent: rows of the end, 1 or more.

  Raises:
    ValueError: a negative number of first rows, or no recent ones.
  """
  if first < 0 or recent < 1:
    raise ValueError(
      f"`first` must be at least 0 rows and `recent` at least 1, got {first} and {recent}."
    )

  def priority(score: Array, place: Array, length: Array) -> Array:
    return jnp.where(place <= first, jnp.inf, place.astype(jnp.float32))

  return evicting("sinks", lambda capacity: min(first + recent, capacity), priority)
