r"""PEARL beside a draft model that takes turns with its target, on two devices.

    python -m specjax.train.draft_model --model gsm8k-7m --data gsm8k_train.jsonl --out runs/draft
    python benchmarks/speed/pearl.py --draft runs/draft/model --prompts gsm8k_test.jsonl --limit 12

Every method decodes the same prompts in turns, batch 1; times include the prefill. A machine
without accelerators is divided into two devices, which then share its cores: PEARL can gain only
where each model has computing units of its own.
"""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np

import specjax
from specjax import command_line
from specjax.eval import interleaved, metrics, prompts, report, table
from specjax.search.pearl_decoder import PearlDecoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is measured.

  Attributes:
    draft: zoo name or directory of the draft model.
    blocks: tokens that the draft model writes per round or tick.
    temperature: 0 is greedy.
    repeats: times everything is decoded; medians count.
  """

  draft: str
  limit: int | None = 12
  blocks: tuple[int, ...] = (2, 4, 8)
  temperature: float = 0.0
  repeats: int = 3
  out: str = "results/pearl"


def main(config: Config) -> None:
  jax.config.update("jax_num_cpu_devices", 2)
  report.check(config, "blocks", "repeats")
  model = specjax.load(config.model, weights="float")
  items = config.read(model)
  report.directory(config.out)
  decoders: dict[str, Any] = {"none": specjax.Decoder(model, temperature=config.temperature)}
  for block in config.blocks:
    turns = f"draft_model-{block + 1}[{config.draft}]"
    decoders[turns] = specjax.Decoder(model, turns, temperature=config.temperature)
    both = PearlDecoder(model, config.draft, block, temperature=config.temperature)
    decoders[both.name] = both
  ids = [item.ids for item in items]
  runs = interleaved.decode(decoders, ids, config.max_new_tokens, config.repeats)
  plain = runs["none"]

  def seconds(run: interleaved.Runs) -> np.ndarray:
    return np.median(run.seconds + run.prefill, 0)

  found = {}
  for name, run in runs.items():
    emitted = np.array([r.emitted for r in run.results])
    paired = (emitted, seconds(run), np.array([r.emitted for r in plain.results]), seconds(plain))
    found[name] = metrics.tau(run.results) | {
      "ms_per_token": float(1e3 * paired[1].sum() / emitted.sum()),
      "speed_up": float(metrics.speed_up(*(x.sum() for x in paired))),
      "speed_up_interval": metrics.bootstrap_interval(metrics.speed_up, *paired),
      "differ": sum(a.tokens != b.tokens for a, b in zip(run.results, plain.results, strict=True)),
    }
  rows = [
    {
      "method": name,
      "tokens/pass": table.estimate(f["tau"], f["tau_interval"]),
      "ms/token": f"{f['ms_per_token']:.2f}",
      "speed-up": table.estimate(f["speed_up"], f["speed_up_interval"]),
      "differ": f"{f['differ']} of {len(items)}",
    }
    for name, f in found.items()
  ]
  devices = [str(d) for d in jax.devices()[:2]]
  report.publish(config, {"methods": found, "devices": devices}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
