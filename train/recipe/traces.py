"""What a denoiser predicts in every round when only what is right is committed.

Letters: B batch, L canvas length, W window, P prompts, S records.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.progress import track

from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.model import Model
from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Policy, Prediction
from specjax.sampling import request_keys


class Trace(NamedTuple):
  """Records of one round of one block each.

  Attributes:
    confidence: f32[S, W], the model's confidence in every slot.
    right: bool[S, W], whether the token that would be committed is that of the reference.
    open: bool[S, W], the slots that are still to be filled.
    prompt: i32[S], number of the prompt.
  """

  confidence: np.ndarray
  right: np.ndarray
  open: np.ndarray
  prompt: np.ndarray


def oracle() -> Policy:
  """Commits what agrees with `params` i32[B, L]: Learn2PD's extremely greedy policy.

  Bao et al. 2025 (arXiv 2509.25188, section 3). No system can run it, for it knows the answer.
  """

  def select(params: Array, memory, seen: Prediction):
    right = seen.token == jnp.take_along_axis(params, seen.position, 1)
    score = jnp.where(right, seen.confidence, -1.0)
    return seen.open & right, score, memory

  return Policy("oracle", lambda B, W, V: (), select)


def collect(
  model: Model, prompts: Sequence[list[int]], new: int, block: int, batch: int
) -> tuple[Trace, float]:
  """Traces of the oracle against the model's own answers, which fill one slot per pass.

  Where no guess is right, the token of the reference is put in the slot of highest confidence.
  Prompts after the last full batch are left out.

  Args:
    new: number of slots after each prompt.
    block: W.
    batch: B.

  Returns:
    The records, and the share of the reference's passes that the oracle takes.

  Raises:
    ValueError: the prompts fill no batch.
  """
  if len(prompts) < batch:
    raise ValueError(f"answer_batch={batch}: accepted is 1 to {len(prompts)}, the questions that "
                     "fit the model.")  # fmt: skip
  reference = DiffusionDecoder(model, "confidence", blocks=block, stopping="whole", batch=batch)
  network = model.denoiser
  method = denoise.Method(
    network, caches.none(network, block), oracle(), blocks.fixed(block), stopping.whole()
  )

  @jax.jit
  def step(state: denoise.State, truth: Array):
    weights = denoise.Weights(model.params, truth)
    request = denoise.Request(request_keys(0, np.arange(batch)), jnp.zeros(batch))
    states, state = denoise.read(method, weights, state)
    position = state.lo[:, None] + jnp.arange(block, dtype=jnp.int32)[None]
    logits = network.head(model.params, states)
    logits = jnp.where(jnp.arange(logits.shape[-1])[None, None] == network.mask, -jnp.inf, logits)
    seen = denoise.predict(logits, request, position, state.forwards)
    masked = jnp.take_along_axis(state.canvas.masked, position, 1)
    inside = position < jnp.minimum(state.lo + block, state.canvas.end)[:, None]
    right = seen.token == jnp.take_along_axis(truth, position, 1)
    record = (seen.confidence, right, masked & inside, ~state.done)
    state = denoise.act(method, weights, request, state, states)
    tokens = jnp.where(state.canvas.masked, network.mask, truth)
    return state._replace(canvas=state.canvas._replace(tokens=tokens)), record

  parts: list[Trace] = []
  passes = ordinary = 0
  for first in track(range(0, len(prompts) - batch + 1, batch), description="traces"):
    rows = prompts[first : first + batch]
    answers = reference(rows, new, first=first)
    ordinary += sum(r.forwards for r in answers)
    canvases = [r.filling.canvas for r in answers]
    L = max(map(len, canvases)) + block
    truth, end = np.zeros((batch, L), np.int32), np.zeros(batch, np.int32)
    masked = np.zeros((batch, L), bool)
    for b, (ids, filled) in enumerate(zip(rows, canvases, strict=True)):
      truth[b, : len(filled)] = filled
      masked[b, len(ids) : len(filled)] = True
      end[b] = len(filled)
    canvas = Canvas(jnp.asarray(truth), jnp.asarray(masked), jnp.asarray(end))
    state = denoise.compiled_start(method, denoise.Weights(model.params, truth), canvas)
    while not bool(state.done.all()):
      state, (confidence, right, open_, live) = jax.device_get(step(state, jnp.asarray(truth)))
      number = np.arange(first, first + batch, dtype=np.int32)
      parts.append(Trace(confidence[live], right[live], open_[live], number[live]))
    passes += int(state.forwards.sum())
  return Trace(*map(np.concatenate, zip(*parts, strict=True))), passes / ordinary


def kept_traces(
  file: pathlib.Path, model: Model, prompts: Sequence[list[int]], new: int, block: int, batch: int
) -> tuple[Trace, float]:
  """What `collect` returns, kept in a file."""
  if not file.exists():
    trace, share = collect(model, prompts, new, block, batch)
    unfinished = file.with_suffix(".tmp.npz")
    np.savez(unfinished, share=share, **trace._asdict())
    unfinished.replace(file)
  with np.load(file) as arrays:
    return Trace(*(arrays[name] for name in Trace._fields)), float(arrays["share"])
