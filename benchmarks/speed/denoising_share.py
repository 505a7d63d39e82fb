r"""What share of a denoising pass is the network, for each policy.

    python benchmarks/speed/denoising_share.py
    python benchmarks/speed/denoising_share.py --model runs/text/model

A text is decoded for one round, and then the pass that follows is timed again and again: its layers
alone, with the logits of the window, and whole, with the policy and the writing of tokens. The rest
of a pass is what the network does not do.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import checks, command_line
from specjax.cli.arguments import Weights
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion import denoise
from specjax.diffusion.loops import Denoise
from specjax.eval import report, table, timing

STAGES = ("layers", "and logits", "whole")


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "gsm8k-7m-denoiser"  # zoo name or directory of a denoiser
  # policies, with their blocks and caches
  methods: tuple[str, ...] = (
    "confidence-1", "threshold-0.9", "factor-1.0", "klass", "entropy_threshold-0.5",
  )  # fmt: skip
  weights: Weights = "float"  # how matrices lie in memory
  prompt: int = 64  # tokens of each prompt
  new: int = 96  # slots after it
  batch: int = 1  # B, texts decoded together
  repeats: int = 15  # timings; their median counts
  out: str = "results/denoising_share"  # directory of the report


@functools.partial(jax.jit, static_argnames=("method", "stage"))
def passes(
  method: denoise.DenoiseMethod,
  stage: str,
  weights: denoise.Weights,
  request: denoise.DenoiseRequest,
  state: denoise.DenoiseState,
  count: jax.Array,
) -> denoise.DenoiseState:
  """`count` times the next pass of a state; each waits for the one before."""
  tokens = state.canvas.tokens

  def body(_, now: denoise.DenoiseState) -> denoise.DenoiseState:
    states, now = denoise.read(method, weights, now)
    if stage == "layers":
      said = (states > jnp.inf).astype(jnp.int32)  # 0, once they are there
    elif stage == "and logits":
      said = method.denoiser.head(weights.denoiser, states).argmax(-1).astype(jnp.int32)
    else:
      now = denoise.act(method, weights, request, now, states)
      said = now.canvas.tokens
      now = now._replace(lo=state.lo, hi=state.hi, step=state.step, done=state.done)
    hair = jnp.minimum(said.min(), 0)
    return now._replace(canvas=state.canvas._replace(tokens=tokens + hair))

  return jax.lax.fori_loop(0, count, body, state)


def loops(
  model: specjax.Model, name: str, config: Config
) -> list[Callable[[int], denoise.DenoiseState]]:
  """The loop of every stage; ValueError for a method that is more than one canvas and a policy."""
  decoder = DiffusionDecoder(model, name, batch=config.batch)
  if not isinstance(decoder.loop, Denoise):
    checks.refuse("methods", name, "methods that read one canvas in a pass")
  rng = np.random.default_rng(0)
  ids = rng.integers(model.mask, size=(config.batch, config.prompt)).tolist()
  weights, request, canvas = decoder._arguments(ids, [config.new] * config.batch, 0, None)
  state = decoder.loop.advance(weights, request, decoder.loop.start(weights, canvas), jnp.int32(1))
  state = state._replace(step=jnp.ones_like(state.step))  # no pass over the whole canvas
  method = decoder.loop.method

  def loop(stage: str, count: int) -> denoise.DenoiseState:
    return passes(method, stage, weights, request, state, jnp.int32(count))

  return [functools.partial(loop, stage) for stage in STAGES]


def main(config: Config) -> None:
  report.check(config, "prompt", "new", "batch", "repeats")
  model = specjax.load(config.model, weights=config.weights)
  if model.mask is None:
    checks.refuse("model", config.model, "a denoiser")
  timed = {name: loops(model, name, config) for name in config.methods}
  report.directory(config.out)
  flat = [loop for each in timed.values() for loop in each]
  seconds = timing.per_pass(flat, config.repeats)
  found, rows = {}, []
  for name, own in zip(timed, np.split(seconds, len(timed), axis=1), strict=True):
    found[name] = dict(zip(STAGES, np.median(own, 0).tolist(), strict=True))
    share = np.median(own[:, :2] / own[:, 2:], 0)
    rows.append(
      {
        "method": f"`{name}`",
        "ms of a pass": f"{1e3 * found[name]['whole']:.2f}",
        "layers": f"{share[0]:.0%}",
        "with logits": f"{share[1]:.0%}",
      }
    )
  report.publish(config, {"seconds": found}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
