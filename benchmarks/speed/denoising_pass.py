r"""Passes of a random masked diffusion model: over the whole canvas, and over a block alone.

    python benchmarks/speed/denoising_pass.py

With Fast-dLLM's dual cache, a pass reads one block, and the rest of the canvas comes from an
earlier pass. A pass holds the logits of the block and the writing of its tokens, but no policy.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import command_line
from specjax.base import Params
from specjax.diffusion import caches
from specjax.diffusion.base import Canvas, CanvasCache, Denoiser
from specjax.eval import report, table, timing
from specjax.eval.random_model import SIZES, Size, random_weights
from specjax.models.denoiser import denoiser

ON_CPU = jax.default_backend() == "cpu"


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  size: Size = "134m" if ON_CPU else "8b"  # of the denoiser
  dtype: str = "float32" if ON_CPU else "bfloat16"  # dtype of the weights
  canvas: int = 1024  # L, slots of the canvas
  block: tuple[int, ...] = (32, 64)  # values of W, slots of a block
  batch: int = 1  # B, canvases filled together
  repeats: int = 7  # timings; their median counts
  out: str = "results/denoising_pass"  # directory of the report


@functools.partial(jax.jit, static_argnames=("network", "cache"))
def passes(
  network: Denoiser, cache: CanvasCache, params: Params, memory: Any, canvas: Canvas, count
):
  """`count` passes over a block in the middle; each depends on the tokens of the one before."""
  B, L = canvas.tokens.shape
  lo, stale = jnp.full(B, L // 2, jnp.int32), jnp.zeros(B, bool)

  def body(_, carry):
    memory, canvas = carry
    states, memory = cache.states(params, memory, canvas, lo, stale)
    token = network.head(params, states).argmax(-1).astype(jnp.int32)
    hair = jnp.minimum(token.min(1, keepdims=True), 0)  # 0, but it waits for the logits
    return memory, canvas._replace(tokens=canvas.tokens + hair)

  return jax.lax.fori_loop(0, count, body, (memory, canvas))


def loop_of(network: Denoiser, cache: CanvasCache, params: Params, canvas: Canvas) -> Callable:
  """Passes after a first one that has read the whole canvas."""
  B, L = canvas.tokens.shape
  first = jax.jit(lambda p, m, c: cache.states(p, m, c, jnp.full(B, L // 2), jnp.ones(B, bool))[1])
  memory = first(params, cache.init(params, canvas), canvas)
  return lambda count: passes(network, cache, params, memory, canvas, jnp.int32(count))


def main(config: Config) -> None:
  report.check(config, "canvas", "block", "batch", "repeats")
  if max(config.block) > config.canvas // 2:
    raise ValueError(
      f"`block` must be at most {config.canvas // 2}, half of the canvas, got {max(config.block)}."
    )
  model = dataclasses.replace(SIZES[config.size], causal=False, max_length=config.canvas)
  network = denoiser(model, mask=model.vocab_size - 1)
  report.directory(config.out)
  params = random_weights(model, config.dtype)
  shape = config.batch, config.canvas
  assert network.mask is not None
  masked = jnp.broadcast_to(jnp.arange(config.canvas) >= config.canvas // 2, shape)
  tokens = jnp.where(masked, network.mask, 0).astype(jnp.int32)
  canvas = Canvas(tokens, masked, jnp.full(config.batch, config.canvas, jnp.int32))
  ways = {"whole canvas": caches.none(network, config.block[0])}
  ways |= {f"block of {size}, dual cache": caches.dual(network, size) for size in config.block}
  loops = [loop_of(network, cache, params, canvas) for cache in ways.values()]
  seconds = np.median(timing.per_pass(loops, config.repeats), 0).tolist()
  rows = [
    {"pass": name, "ms": f"{1e3 * each:.2f}", "of the whole": f"{each / seconds[0]:.1%}"}
    for name, each in zip(ways, seconds, strict=True)
  ]
  found = {"seconds": dict(zip(ways, seconds, strict=True))}
  report.publish(config, found, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
