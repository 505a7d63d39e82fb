r"""How many questions a model answers rightly, and how fast, where its layers skip tokens.

    python benchmarks/quality/skipping.py --prompts gsm8k_test.jsonl --model gsm8k-7m

Each record has a `question` and an `answer` whose last number is the right one, as in GSM8K. A text
is right where its last number is that number. Questions are decoded greedily by each model in turns
with the whole one; compilation is not timed. With a drafter, its tokens are compared with those of
plain decoding of the same model. Nats are the cross-entropy of the records' answers, whose tokens
read this share of the parameters of the layers' MLPs on average.
"""

import dataclasses
import sys

import numpy as np

import specjax
from specjax import checks, command_line
from specjax.eval import metrics, prompts, report, table
from specjax.models.skipping.first import ROUTERS, Routers
from specjax.names.load import Model
from specjax.train.recipe.reading import loss_of, of_records

WHOLE = "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared."""

  # names as --skipping takes them
  skippings: tuple[str, ...] = ("skip_decode-7", "skip_decode-6", "skip_decode-5", "skip_decode-4")
  drafter: str = "prompt_lookup-8"  # that must change no token
  repeats: int = 3  # of which the median time counts
  limit: int | None = 200
  out: str = "results/skipping"


def read(model: Model, config: Config, count: int) -> tuple[float, float]:
  """(nats of a token of the first `count` answers, the share of the MLPs' parameters it reads)."""
  assert config.prompts is not None
  chosen = Routers(**model.params[ROUTERS]) if ROUTERS in model.params else model.skipping
  rows = of_records(model, config.prompts, count)
  entropy, shares = loss_of(model.config, model.params, rows, chosen)
  return float(entropy), float(shares.mean())


def main(config: Config) -> None:
  checks.whole("repeats", config.repeats, 1)
  whole = specjax.load(config.model, weights="float")
  ids, right = config.with_numbers(whole)
  models = {WHOLE: whole}
  for one in config.skippings:
    models[one] = specjax.load(config.model, weights="float", skipping=one)
  plain = {name: specjax.Decoder(model) for name, model in models.items()}
  report.directory(config.out)
  seconds: dict[str, list[float]] = {name: [] for name in plain}
  said = {}
  for name in report.progress([*plain] * config.repeats, "decoding"):
    said[name] = plain[name](ids, config.max_new_tokens)
    seconds[name].append(sum(r.seconds for r in said[name]))
  cells = []
  for name, model in models.items():
    drafted = specjax.Decoder(model, config.drafter)(ids, config.max_new_tokens)
    good = sum(metrics.last_number(r.text) == x for r, x in zip(said[name], right, strict=True))
    tokens = sum(r.emitted for r in said[name])
    nats, share = read(model, config, len(ids))
    cells.append(
      {
        "skipping": name,
        "right": good,
        "questions": len(ids),
        "nats": nats,
        "share": share,
        "interval": metrics.wilson_interval(good, len(ids)),
        "equal": sum(a.tokens == b.tokens for a, b in zip(said[name], drafted, strict=True)),
        "ms": 1e3 * float(np.median(seconds[name])) / tokens,
        "tokens": tokens,
        "per_forward": sum(r.emitted for r in drafted) / sum(r.passes for r in drafted),
        "like_whole": sum(
          a.tokens == b.tokens for a, b in zip(said[name], said[WHOLE], strict=True)
        ),
      }
    )
  rows = [
    {
      "skipping": cell["skipping"],
      "nats": f"{cell['nats']:.2f}",
      "MLPs read %": f"{100 * cell['share']:.0f}",
      "right %": table.estimate(
        100 * cell["right"] / cell["questions"], [100 * x for x in cell["interval"]]
      ),
      "texts of the whole model": f"{cell['like_whole']} of {cell['questions']}",
      "ms / token": f"{cell['ms']:.2f}",
      "speed-up": f"{cells[0]['ms'] / cell['ms']:.2f}",
      f"tokens / pass by {config.drafter}": f"{cell['per_forward']:.2f}",
      "drafted texts equal": f"{cell['equal']} of {cell['questions']}",
    }
    for cell in cells
  ]
  report.publish(config, {"skippings": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
