"""How long the loop of a batch takes to compile on this device.

    python benchmarks/compile/batches.py --model smollm2-135m

Nothing is run, and no program is taken from JAX's cache.
"""

import dataclasses
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import command_line, speculate
from specjax.cli.arguments import Weights
from specjax.eval import report, table


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  model: str = "gsm8k-7m"  # name, directory or file of the model
  weights: Weights = "float"  # how matrices lie in memory
  drafter: str = "prompt_lookup-4"  # whose loop it is
  batches: tuple[int, ...] = (1, 8, 64, 256)  # B of each loop
  tokens: int = 64  # of the prompts, and new ones
  out: str = "results/batches"  # directory of the report


def compiled(decoder: specjax.Decoder, tokens: int) -> dict[str, float]:
  """Seconds and processor seconds of the compiler, and copies in its program."""
  B, capacity = decoder.batch, decoder.capacity(tokens, tokens)
  request = decoder.request(np.arange(B), np.full(B, 2 * tokens))
  ids, length = jnp.zeros((B, tokens), jnp.int32), jnp.full(B, tokens, jnp.int32)

  def start(weights, ids, length, request):
    return speculate.compiled_start(decoder.method, weights, ids, length, request, capacity)

  state = jax.eval_shape(start, decoder.weights, ids, length, request)
  lowered = speculate.compiled_advance.lower(
    decoder.method, decoder.weights, request, state, jnp.int32(1)
  )
  begin, busy = time.perf_counter(), time.process_time()
  program = lowered.compile()
  return {
    "seconds": time.perf_counter() - begin,
    "processor": time.process_time() - busy,
    "copies": (program.as_text() or "").count(" copy("),
  }


def main(config: Config) -> None:
  """Compiles the loops, and prints and keeps the table."""
  report.check(config, "batches", "tokens")
  jax.config.update("jax_enable_compilation_cache", False)
  model = specjax.load(config.model, weights=config.weights)
  found = {
    B: compiled(specjax.Decoder(model, config.drafter, batch=B), config.tokens)
    for B in config.batches
  }
  rows = [{"batch": B, **{k: f"{v:.1f}" for k, v in own.items()}} for B, own in found.items()]
  report.publish(config, {"batches": found}, f"Compiling a loop:\n\n{table.markdown(rows)}")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
