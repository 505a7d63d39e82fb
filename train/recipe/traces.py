"""What a denoiser predicts in every round when only right tokens are committed.

Letters: B `batch`, W `block`, the slots of a block, S records.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.progress import track

from specjax import distributed
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Policy, Prediction
from specjax.names.load import Model
from specjax.sampling import request_keys


class Trace(NamedTuple):
  """Records of one round of one block each."""

  confidence: np.ndarray  # f32[S, W], the model's confidence in every slot
  right: np.ndarray  # bool[S, W], whether the predicted token is that of the reference
  open: np.ndarray  # bool[S, W], the slots that are still masked
  prompt: np.ndarray  # i32[S], number of the prompt


def traced(prompts: Sequence[list[int]], batch: int) -> list[list[int]]:
  """The prompts that fill batches; those after the last full one are left out, and counted.

  Raises:
    ValueError: the prompts fill no batch.
  """
  if len(prompts) < batch:
    raise ValueError(
      f"`answer_batch` must be between 1 and {len(prompts)}, the questions that fit the model, got "
      f"{batch}."
    )
  left = len(prompts) % batch
  if left:
    print(f"{left} of {len(prompts)} questions fill no batch of {batch} and are left out.")
  return list(prompts[: len(prompts) - left])


def collect(
  model: Model, prompts: Sequence[list[int]], new: int, block: int, batch: int
) -> tuple[Trace, float]:
  """Traces of an oracle that knows the reference: the model's own answers, one slot per pass.

  The oracle commits the predictions that agree with the reference, which is Learn2PD's extremely
  greedy policy (Bao et al. 2025, arXiv 2509.25188, section 3). Where none agrees, the reference's
  token is put in the slot of highest confidence. Each prompt has `new` slots. The prompts fill
  batches, see `traced`.

  Returns:
    The records, and the oracle's passes as a share of the reference's.
  """
  reference = DiffusionDecoder(model, "confidence", blocks=block, stopping="whole", batch=batch)
  network, watched = model.denoiser, []

  def select(truth: Array, memory, seen: Prediction):
    right = seen.token == jnp.take_along_axis(truth, seen.position, 1)
    watched.append((seen.confidence, right, seen.open))
    return seen.open & right, jnp.where(right, seen.confidence, -1.0), memory

  oracle = Policy("oracle", lambda B, W, V: (), select)
  # Of a denoiser that is causal over blocks, finished blocks are read once.
  cache = caches.none if network.block is None else caches.committed
  method = denoise.DenoiseMethod(
    network, cache(network, block), oracle, blocks.fixed(block), stopping.whole()
  )

  mask = network.mask
  assert mask is not None, "a trace is that of a masked denoiser"

  @jax.jit(donate_argnums=0)
  def step(state: denoise.DenoiseState, truth: Array):
    request = denoise.DenoiseRequest(request_keys(0, np.arange(batch)), jnp.zeros(batch))
    after = denoise.denoise_round(method, denoise.Weights(model.params, truth), request, state)
    tokens = jnp.where(after.canvas.masked, mask, truth)
    record = (*watched.pop(), ~state.done)  # what the policy saw while this round was traced
    return after._replace(canvas=after.canvas._replace(tokens=tokens)), record

  parts: list[Trace] = []
  passes = ordinary = 0
  for first in track(range(0, len(prompts), batch), description="traces"):
    rows = prompts[first : first + batch]
    answers = reference(rows, new, first=first)
    ordinary += sum(r.passes for r in answers)
    canvases = [r.filling.canvas for r in answers]
    end = np.array(list(map(len, canvases)), np.int32)
    shape = batch, -(-end.max() // 64) * 64 + block  # few shapes are compiled
    truth, masked = np.zeros(shape, np.int32), np.zeros(shape, bool)
    for b, (ids, filled) in enumerate(zip(rows, canvases, strict=True)):
      truth[b, : len(filled)] = filled
      masked[b, len(ids) : len(filled)] = True
    canvas = Canvas(jnp.asarray(truth), jnp.asarray(masked), jnp.asarray(end))
    state = denoise.compiled_start(method, denoise.Weights(model.params, truth), canvas)
    while not bool(state.done.all()):
      state, record = step(state, jnp.asarray(truth))
      confidence, right, open_, live = jax.device_get(record)
      number = np.arange(first, first + batch, dtype=np.int32)
      parts.append(Trace(confidence[live], right[live], open_[live], number[live]))
    passes += int(state.passes.sum())
  return Trace(*map(np.concatenate, zip(*parts, strict=True))), passes / ordinary


def kept_traces(
  file: pathlib.Path, model: Model, prompts: Sequence[list[int]], new: int, block: int, batch: int
) -> tuple[Trace, float]:
  """What `collect` returns, kept in a file."""
  with distributed.in_turn():
    if not file.exists():
      trace, share = collect(model, prompts, new, block, batch)
      unfinished = file.with_suffix(".tmp.npz")
      np.savez(unfinished, share=share, **trace._asdict())
      unfinished.replace(file)
  with np.load(file) as arrays:
    return Trace(*(arrays[name] for name in Trace._fields)), float(arrays["share"])
