r"""What a processor of the target's logits costs, and that drafts change no text under it.

    python benchmarks/speed/processors.py --prompts gsm8k_test.jsonl
    python benchmarks/speed/processors.py --processors "grammar[texts.lark]" "stop_text[####]"

Every processor decodes the same prompts plainly and by each drafter, all in turns with decoding
without one. A round's time compares where texts are of other lengths; texts under a processor are
compared with the plain ones under the same processor.
"""

import dataclasses
import sys

import numpy as np

import specjax
from specjax import command_line
from specjax.decoding.decoder import Decoder
from specjax.eval import bench, interleaved, prompts, report, table
from specjax.eval.options import Tune

NONE = "none"


@dataclasses.dataclass(frozen=True)
class Config(prompts.Questions):
  """What is measured."""

  # names of processors, each of which is added by itself
  processors: tuple[str, ...] = (
    "penalties-1.1,presence=0,frequency=0", "momentum-0.2,candidates=5",
    r"constraint[[ -~\n]*]", "stop_text[####]",
  )  # fmt: skip
  drafters: tuple[str, ...] = ("prompt_lookup-4",)  # names, beside plain decoding
  limit: int | None = 10  # number of questions that are decoded
  max_new_tokens: int = 64  # budget per question
  temperature: float = 0.0  # 0 is greedy
  batch: int = 1  # questions decoded together
  repeats: int = 3  # times everything is decoded; medians count
  out: str = "results/processors"  # directory of the report


def per_round(run: interleaved.Runs, batch: int) -> np.ndarray:
  """Milliseconds of a round in each batch of questions, the median of its repeats."""
  passes = np.array([r.passes for r in run.results])
  rounds = np.maximum.reduceat(passes, np.arange(0, len(passes), batch))
  return 1e3 * np.median(run.seconds, 0) / rounds


def main(config: Config) -> None:
  report.check(config, "max_new_tokens", "batch", "repeats")
  model = specjax.load(config.model, weights="float")
  items = config.read(model)
  ways = [(p, d) for p in (NONE, *config.processors) for d in (NONE, *config.drafters)]
  decoders = {
    f"{p} {d}": Decoder(
      model,
      d,
      "target_only",
      temperature=config.temperature,
      processors=() if p == NONE else (p,),
      batch=config.batch,
    )
    for p, d in ways
  }
  settings = Tune(drafters=config.drafters, batch=config.batch, temperature=config.temperature)
  report.directory(config.out)
  ids = [item.ids for item in items]
  runs = interleaved.decode(decoders, ids, config.max_new_tokens, config.repeats)
  found, rows = [], []
  for p, d in ways:
    run, bare, plain = runs[f"{p} {d}"], runs[f"{NONE} {d}"], runs[f"{p} {NONE}"]
    one = bench.figures(run, plain, items, settings)
    ratios = per_round(run, config.batch) / per_round(bare, config.batch)
    low, middle, high = np.percentile(ratios, (25, 50, 75)).tolist()
    found.append({"processor": p, "drafter": d, "of_bare": [low, middle, high], **one})
    rows.append(
      {
        "processor": f"`{p}`",
        "drafter": f"`{d}`",
        "ms per round": f"{one['ms_per_round']:.2f}",
        "of a round without": table.estimate(middle, (low, high)),
        "tokens per pass": f"{one['tau']:.2f}",
        "ms per token": f"{1e3 / one['tokens_per_second']:.2f}",
        "texts that differ": f"{len(one['divergences'])} of {len(items)}",
      }
    )
  report.publish(config, {"runs": found}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
