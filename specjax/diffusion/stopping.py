"""Rules that say where a text ends before its canvas does; their params are the tokens that end."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, Prediction, Probability, Stopping


@functools.cache
def whole() -> Stopping:
  """EXACT: the whole canvas is filled, past the end of the text too.

  So many of the 16 passes of `confidence` go to what follows the end.

  Measured: 12.0 passes after the end (denoising_lists)
  """
  return Stopping("whole", lambda params, canvas, prediction, commit, full: canvas)


@functools.cache
def after_end() -> Stopping:
  """EXACT: a text ends after its first end-of-text, once the block of it is full.

  Measured: 3.0 passes, 93.0 % right (denoising_lists)
  """

  def end(params: Array, canvas: Canvas, prediction: Prediction, commit: Array, full: Array):
    said = jnp.take_along_axis(canvas.tokens, prediction.position, 1)
    ends = (said[..., None] == params[None, None]).any(-1)
    # Only what was filled ends a text; a prompt may hold end markers of its own.
    ends = ends & (prediction.filled | commit) & (prediction.position < canvas.end[:, None])
    first = jnp.take_along_axis(prediction.position, jnp.argmax(ends, 1)[:, None], 1)[:, 0]
    return canvas._replace(end=jnp.where(full & ends.any(1), first + 1, canvas.end))

  return Stopping("after_end", end)


@functools.cache
def end_of_text_prediction() -> Stopping:
  """LOSSY: a text is cut at its predicted end.

  EoTP (Bao et al. 2025, arXiv 2509.25188). A guess far to the right may cut a good answer. The
  published program searches the whole canvas for guesses, and lets only what its filter approved
  go before them; here the search is within the window, since no more is predicted, and all that was
  committed goes first.

  It ends at an end-of-text just committed, else at the most confident guess of one. Of 16 passes
  `whole` spends 12.0 after the end; 92 % are right for 99 %.

  Measured: 2.5 passes after the end (denoising_lists)
  """

  def end(params: Array, canvas: Canvas, prediction: Prediction, commit: Array, full) -> Canvas:
    ends = (prediction.token[..., None] == params[None, None]).any(-1)
    committed = ends & commit
    guessed = jnp.where(ends & prediction.masked, prediction.confidence, -1.0)
    first, likeliest = jnp.argmax(committed, 1), jnp.argmax(guessed, 1)
    slot = jnp.where(committed.any(1), first, likeliest)
    found = committed.any(1) | (guessed.max(1) > 0)
    position = jnp.take_along_axis(prediction.position, slot[:, None], 1)[:, 0]
    return canvas._replace(end=jnp.where(found, jnp.minimum(position + 1, canvas.end), canvas.end))

  return Stopping("end_of_text_prediction", end)


@functools.cache
def sure_end(least: Probability = 0.9) -> Stopping:
  """LOSSY: waits until an end is certain, and fills what follows it.

  This rule is ours: unlike end_of_text_prediction it waits until a guess has the confidence
  `least`, takes the first end and not the likeliest, and fills the rest with end markers, so that
  the model goes on to read a canvas of the size that it began with.

  Where `whole` spends 12.0 passes after the end, this spends 1.0, with 99 % right.

  Measured: 1.0 passes after the end (denoising_lists)
  """

  def end(params: Array, canvas: Canvas, prediction: Prediction, commit: Array, full) -> Canvas:
    ends = (prediction.token[..., None] == params[None, None]).any(-1)
    ends = ends & (commit | (prediction.masked & (prediction.confidence >= least)))
    slot = jnp.argmax(ends, 1)[:, None]
    marker = jnp.take_along_axis(prediction.token, slot, 1)
    position = jnp.take_along_axis(prediction.position, slot, 1)
    column = jnp.arange(canvas.tokens.shape[1], dtype=jnp.int32)[None]
    rest = ends.any(1, keepdims=True) & (column > position) & canvas.inside & canvas.masked
    tokens = jnp.where(rest, marker, canvas.tokens)
    return canvas._replace(tokens=tokens, masked=canvas.masked & ~rest)

  return Stopping("sure_end", end, fills=True)


STOPPING: dict[str, Callable[..., Stopping]] = {
  "whole": whole, "after_end": after_end, "end_of_text_prediction": end_of_text_prediction,
  "sure_end": sure_end,
}  # fmt: skip
