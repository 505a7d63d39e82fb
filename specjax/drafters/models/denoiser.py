"""A masked diffusion model drafts a chain for an autoregressive target.

Letters: B batch, D draft depth, S length of the text's buffer, F slots of the canvas.
"""

import functools

import jax.numpy as jnp

from specjax.base import Context, Draft, Drafter, Params, Target
from specjax.diffusion.base import Denoiser
from specjax.drafters.stateless import from_draft
from specjax.trees.structure import chain, gather


@functools.cache
def denoiser(model: Denoiser, target: Target, nodes: int = 9, canvas: int | None = None) -> Drafter:
  """In one pass a denoiser fills D masked slots after the text, greedily.

  This is Guided Diffusion of FlashDLM (2025, arXiv 2505.21467, section 4) with exact verifiers.
  There an autoregressive model checks the denoiser's tokens, and where the two do not agree the
  denoiser's is taken: the text has neither model's distribution. Here an exact verifier keeps the
  target's.

  A denoiser sees both sides, so nothing is kept from round to round: each pass reads the whole
  canvas, the text's last F - D tokens and the D slots.

  It has a tenth of plain decoding's speed where it was measured.

  Measured: 2.93 tokens per pass (denoiser_and_causal)
  Train: python -m specjax.train.denoiser

  Args:
    model, target: have one vocabulary, but for a mask token that is the denoiser's last.
    nodes: the root and D tokens drafted.
    canvas: F, slots with the masked ones (static), by default as many as the buffer has. A longer
      text is cut in front.

  Raises:
    ValueError: uniform noise, another vocabulary, a canvas with no slot for the text, or a canvas
      shorter than the buffer for a model that is causal over blocks.
  """
  depth, mask = nodes - 1, model.mask
  if mask is None:
    raise ValueError("the denoiser must have a mask token to draft, got one of uniform noise.")
  # The mask is never said, so that the target need not know it.
  if model.vocab_size - (mask == target.vocab_size) != target.vocab_size:
    raise ValueError(
      f"the denoiser must have the target's vocabulary of {target.vocab_size}, got one of "
      f"{model.vocab_size}."
    )
  if nodes < 2 or (canvas is not None and canvas <= depth):
    raise ValueError(
      "`nodes` must be at least 2, so that a denoiser drafts a token, and `canvas` have more "
      f"slots than that, got {nodes} and {canvas}."
    )

  if model.block is not None and canvas is not None:
    raise ValueError(
      f"`canvas` must be None for a denoiser with blocks of {model.block}, which a text that is "
      f"cut in front would leave, got {canvas}."
    )

  def draft(params: Params, context: Context) -> Draft:
    B, S = context.tokens.shape
    F = S if canvas is None else min(canvas, S)
    length = context.length[:, None]
    first = jnp.maximum(length + depth - F, 0)
    # Positions count from the canvas's first slot, since only distances matter.
    position = jnp.broadcast_to(jnp.arange(F, dtype=jnp.int32), (B, F))
    slot = first + position
    slots = jnp.where(slot < length, gather(context.tokens, slot), mask)
    states, _ = model.evaluate(params, slots, position, slot < length + depth, None)

    step = jnp.arange(depth, dtype=jnp.int32)[None]
    reading = length - first + step - int(model.shift)
    logits = model.head(params, jnp.take_along_axis(states, reading[..., None], 1))
    never = jnp.arange(logits.shape[-1])[None, None] == mask
    said = jnp.argmax(jnp.where(never, -jnp.inf, logits), -1).astype(jnp.int32)
    return chain(jnp.concatenate([context.root, said], 1))

  return from_draft("denoiser", depth + 1, depth, draft)
