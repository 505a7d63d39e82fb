"""Reading a prompt: milliseconds a token, for each way in which weights lie in memory.

    python benchmarks/speed/prompts.py --model qwen2.5-coder-0.5b

The ways and lengths are timed in turns; the fastest of the repeats counts.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
from jax import Array

import specjax
from specjax import checks, command_line
from specjax.eval import report, table, timing
from specjax.models.weights import ACTIVATIONS, WEIGHTS


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "smollm2-135m"  # name or file of a model
  ways: tuple[str, ...] = ("float", "native", "native/int8")  # weights, and what they multiply
  tokens: tuple[int, ...] = (128, 512)  # of each prompt
  repeats: int = 4  # timings
  out: str = "results/prompts"  # directory of the report


def main(config: Config) -> None:
  """Times the prompts, and prints and keeps the table."""
  report.check(config, "tokens", "repeats")
  asked = [way.partition("/")[::2] for way in config.ways]
  for weights, activations in asked:
    checks.choice("ways", weights, WEIGHTS)
    checks.choice("ways", activations or "float", ACTIVATIONS)

  def reader(model: specjax.Model, tokens: int):
    ids = jnp.arange(tokens, dtype=jnp.int32)[None] % model.config.vocab_size
    length = jnp.full(1, tokens, jnp.int32)
    read = jax.jit(functools.partial(model.target.prefill, capacity=tokens + 64))

    def loop(count: int) -> list[Array]:
      for _ in range(count):
        found = jax.block_until_ready(read(model.params, ids, length))
      return jax.tree.leaves(found)

    return loop

  models = [specjax.load(config.model, weights=w, activations=a or "float") for w, a in asked]
  loops = [reader(model, tokens) for model in models for tokens in config.tokens]
  seconds = timing.per_pass(loops, config.repeats).min(0).reshape(len(models), -1)
  ms = {
    way: (1e3 * own / config.tokens).tolist() for way, own in zip(config.ways, seconds, strict=True)
  }
  rows = [
    {"way": way, **{str(n): f"{t:.2f}" for n, t in zip(config.tokens, own, strict=True)}}
    for way, own in ms.items()
  ]
  text = f"A prompt of so many tokens, ms a token:\n\n{table.markdown(rows)}"
  report.publish(config, {"ms": ms}, text)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
