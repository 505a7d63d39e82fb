r"""The price of a denoiser's pass, by how many slots are asked for where few are written.

    python benchmarks/speed/slots_asked_for.py
    python benchmarks/speed/slots_asked_for.py --model lists-3m \
        --methods threshold/fixed-8 threshold/fixed-8/dual

Each text ends within the least number of slots that is asked for: its stop is a token that the
method writes there. So all runs of a text write the same, which is checked, and the time of a pass
shows what slots cost that were asked for and not written. Runs are timed in turns.
"""

import dataclasses
import sys
from typing import Any

import numpy as np

from specjax import checks, command_line
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.eval import report, table
from specjax.eval.prompts import OUR_QUESTIONS
from specjax.names.load import Model, load


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "gsm8k-7m-denoiser"  # zoo name or directory of a denoiser
  methods: tuple[str, ...] = ("threshold-0.9", "threshold-0.9/none", "threshold-0.9/guesses-4")
  asked: tuple[int, ...] = (16, 64, 512)  # slots asked for
  texts: int = 4  # texts, each of which is decoded alone
  repeats: int = 5  # timings of each; their median counts
  out: str = "results/slots_asked_for"  # directory of the report


def stop_of(tokens: list[int]) -> int | None:
  """The last token of a text, if not among its first ten, that is not in the text before."""
  news = [token for i, token in enumerate(tokens) if i > 9 and token not in tokens[:i]]
  return news[-1] if news else None


def runs(model: Model, name: str, config: Config) -> list[tuple[list[int], DiffusionDecoder]]:
  """Texts that end within the least number of slots, and decoders that end them there."""
  found, decode = list[tuple[list[int], DiffusionDecoder]](), DiffusionDecoder(model, name)
  for question in OUR_QUESTIONS:
    text = model.chat(question)
    stop = stop_of(decode([text], min(config.asked))[0].tokens)
    if stop is not None and len(found) < config.texts:
      found.append((text, DiffusionDecoder(model, name, stop=[stop])))
  return found


def measure(model: Model, name: str, config: Config) -> tuple[np.ndarray, float]:
  """(seconds of a pass f64[number of asked], tokens of a text) of a method."""
  texts = runs(model, name, config)
  if not texts:
    checks.refuse("methods", name, "methods whose texts have a token that is new to them")
  seconds = np.zeros((config.repeats, len(texts), len(config.asked)))
  passes = np.zeros(len(config.asked))
  said: dict[int, list[int]] = {}
  for turn in range(-1, config.repeats):  # the first one compiles
    for i, (text, decode) in enumerate(texts):
      for j, asked in enumerate(config.asked):
        result = decode([text], asked)[0]
        if said.setdefault(i, result.tokens) != result.tokens:
          print(f"{name}: a text differs where {asked} slots are asked for.", file=sys.stderr)
        if turn < 0:
          passes[j] += result.passes
        else:
          seconds[turn, i, j] = result.seconds
  return np.median(seconds, 0).sum(0) / passes, float(np.mean([len(x) for x in said.values()]))


def main(config: Config) -> None:
  report.check(config, "asked", "texts", "repeats")
  model = load(config.model)
  # So many slots may be more than the model knows; the texts end long before.
  longest = max(model.config.max_length, max(config.asked) + 256)
  model = dataclasses.replace(model, config=dataclasses.replace(model.config, max_length=longest))
  if model.mask is None:
    checks.refuse("model", config.model, "a denoiser")
  report.directory(config.out)
  found: dict[str, Any] = {}
  rows = []
  for name in config.methods:
    seconds, written = measure(model, name, config)
    pairs = [*zip(config.asked, seconds, strict=True)]
    found[name] = dict(zip(map(str, config.asked), seconds.tolist(), strict=True))
    of_each = {f"{n} asked for, ms": f"{1e3 * x:.2f}" for n, x in pairs}
    row = {"method": f"`{name}`", "tokens": f"{written:.1f}", **of_each}
    rows.append(row | {"most / least": f"{seconds.max() / seconds.min():.2f}"})
  report.publish(config, {"seconds": found}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
