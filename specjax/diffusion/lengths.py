"""Where a text ends before its canvas does.

Letters: B batch, W window.
"""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, Length, Params, Seen


@functools.cache
def whole() -> Length:
  """The whole canvas is filled."""
  return Length("whole", lambda params, canvas, seen, commit, full: canvas.end)


@functools.cache
def after_end() -> Length:
  """Stops after the first end-of-text, once its block is full. Params: i32[M], tokens that end."""

  def end(params: Array, canvas: Canvas, seen: Seen, commit: Array, full: Array) -> Array:
    slot = jnp.arange(canvas.tokens.shape[1], dtype=jnp.int32)[None]
    ends = (canvas.tokens[..., None] == params[None, None]).any(-1) & ~canvas.masked
    # Only what was filled ends a text; a prompt may hold end markers of its own.
    begin, stop = seen.position[:, :1], seen.position[:, -1:]
    ends = ends & (slot >= begin) & (slot <= stop) & (slot < canvas.end[:, None])
    first = jnp.where(ends.any(1), jnp.argmax(ends, 1).astype(jnp.int32) + 1, canvas.end)
    return jnp.where(full, first, canvas.end)

  return Length("after_end", end)


@functools.cache
def end_of_text_prediction() -> Length:
  """Ends at an end-of-text that was just committed, else at the most confident guess of one.

  EoTP (Bao et al. 2025, arXiv 2509.25188), within the window. Params: i32[M], tokens that end.
  Bold: a guess far to the right may cut a good answer.
  """

  def end(params: Params, canvas: Canvas, seen: Seen, commit: Array, full: Array) -> Array:
    ends = (seen.token[..., None] == params[None, None]).any(-1)
    committed = ends & commit
    guessed = jnp.where(ends & seen.masked, seen.confidence, -1.0)
    first, likeliest = jnp.argmax(committed, 1), jnp.argmax(guessed, 1)
    slot = jnp.where(committed.any(1), first, likeliest)
    found = committed.any(1) | (guessed.max(1) > 0)
    position = jnp.take_along_axis(seen.position, slot[:, None], 1)[:, 0]
    return jnp.where(found, position + 1, canvas.end)

  return Length("end_of_text_prediction", end)
