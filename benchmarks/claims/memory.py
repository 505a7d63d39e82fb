r"""Is the memory that `specjax memory` says beforehand the memory that decoding takes?

    python benchmarks/claims/memory.py --model smollm2-135m

Each setting is decoded in a process of its own: its prompts are read and some rounds follow. Arrays
between rounds are counted. The peak is what the operating system says of the process from the
moment that both programs are compiled, plus the weights; the library that multiplies matrices, and
whatever Python does meanwhile, count as well. Linux only.
"""

import dataclasses
import multiprocessing
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import checks, command_line, speculate
from specjax.cli.arguments import Weights
from specjax.decoding.decoder import pad_to_bucket
from specjax.eval import memory, report, table
from specjax.sampling import new_key


@dataclasses.dataclass(frozen=True)
class Setting:
  """What is decoded."""

  drafter: str
  batch: int
  prompt: int
  new: int
  cache: str = "dense"
  weights: Weights = "float"


SETTINGS = (
  Setting("none", 8, 1000, 128),
  Setting("prompt_lookup-8", 8, 2000, 128),
  Setting("prompt_lookup-8|token_recycling-16", 32, 500, 128),
  Setting("eagle3-16", 8, 1000, 128),
  Setting("none", 16, 2000, 128, cache="sinks-4,recent=508"),
  Setting("prompt_lookup-4", 8, 4000, 128, weights="bfloat16"),
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "smollm2-135m"  # zoo name, directory, GGUF file, or name on the hub
  rounds: int = 4  # rounds after the prompts
  out: str = "results/memory"  # directory of the report


def decoded(model_name: str, setting: Setting, rounds: int) -> dict[str, Any]:
  """Bytes that were said and that were taken."""
  model = specjax.load(model_name, weights=setting.weights)
  decoder = specjax.Decoder(model, setting.drafter, batch=setting.batch, cache=setting.cache)
  said = memory.measure(decoder, setting.prompt, setting.new)
  B, T = setting.batch, pad_to_bucket(setting.prompt)
  capacity = decoder.capacity(T, setting.new)
  request = decoder.request(np.arange(B), np.full(B, setting.prompt + setting.new))
  text = jax.random.randint(new_key(0), (B, T), 0, model.config.vocab_size, jnp.int32)
  asked = decoder.method, decoder.weights, text, jnp.full(B, setting.prompt, jnp.int32), request
  start = speculate.compiled_start.lower(*asked, capacity).compile()
  state = speculate.compiled_start.eval_shape(*asked, capacity)
  again = decoder.method, decoder.weights, request, state, jnp.int32(rounds)
  advance = speculate.compiled_advance.lower(*again).compile()
  pathlib.Path("/proc/self/clear_refs").write_text("5")
  before = memory.resident("VmRSS")
  state = jax.block_until_ready(start(*asked[1:]))
  state = jax.block_until_ready(advance(decoder.weights, request, state, jnp.int32(rounds)))
  taken = memory.resident("VmHWM") - before
  held = memory.size_of(decoder.weights) + memory.size_of(state)
  peak = memory.size_of(decoder.weights) + taken
  return {"said": said.resting, "held": held, "said_peak": said.total, "peak": peak}


def main(config: Config) -> None:
  checks.whole("rounds", config.rounds, 1)
  specjax.load(config.model, weights="float")
  report.directory(config.out)
  cells, rows = [], []
  for setting in report.progress(SETTINGS, "decoding"):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
      found = pool.apply(decoded, (config.model, setting, config.rounds))
    cells.append(dataclasses.asdict(setting) | found)
    rows.append(
      {
        "drafter": setting.drafter,
        "batch": setting.batch,
        "prompt": setting.prompt,
        "cache": setting.cache,
        "weights": setting.weights,
        "between rounds, MB": f"{found['held'] / 1e6:,.0f}",
        "said": f"{found['said'] / found['held'] - 1:+.1%}",
        "at most, MB": f"{found['peak'] / 1e6:,.0f}",
        "said of it": f"{found['said_peak'] / found['peak'] - 1:+.1%}",
      }
    )
  report.publish(config, {"settings": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
