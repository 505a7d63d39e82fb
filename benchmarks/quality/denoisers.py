r"""How likely a causal model finds a denoiser's answers, by each policy, and how many are right.

    python benchmarks/quality/denoisers.py --prompts gsm8k_test.jsonl --model runs/denoiser/model \
        --methods threshold-0.9 'threshold/reweighted[gsm8k-7m]' 'guided-5[gsm8k-7m]'

Each record has a `question` and an `answer` whose last number is the right one, as in GSM8K. A text
is right where its last number is that number. Passes are the denoiser's, of a whole answer; those
of a second model that a method asks come on top. Nats are those of a token under the judge, given
the question and the tokens before it: the lower, the likelier.
"""

import dataclasses
import sys

import specjax
from specjax import script
from specjax.eval import likelihood, metrics, prompts, report, table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is filled, and how."""

  methods: tuple[str, ...] = ("threshold",)
  judge: str = "gsm8k-7m"  # a causal model with the denoiser's tokens
  batch: int = 8
  limit: int | None = 24
  out: str = "results/denoisers"


def main(config: Config) -> None:
  model, judge = specjax.load(config.model), specjax.load(config.judge)
  ids, right = config.with_numbers(model)
  decoders = [specjax.DiffusionDecoder(model, x, batch=config.batch) for x in config.methods]
  report.directory(config.out)
  cells = []
  for decoder in report.progress(decoders, "decoding"):
    results = decoder(ids, config.max_new_tokens)
    tokens = sum(len(r.tokens) for r in results)
    pairs = [(prompt, r.tokens) for prompt, r in zip(ids, results, strict=True)]
    log_prob = sum(x.log_prob for x in likelihood.causal(judge, pairs, config.batch))
    good = [metrics.last_number(r.text) == want for r, want in zip(results, right, strict=True)]
    cells.append({
      "method": decoder.name, "passes": sum(r.forwards for r in results) / len(ids),
      "tokens": tokens / len(ids), "nats": -log_prob / tokens,
      "right": sum(good), "questions": len(ids), "texts": [r.text for r in results],
    })  # fmt: skip
  rows = [
    {
      "method": f"`{cell['method']}`", "passes": f"{cell['passes']:.1f}",
      "tokens": f"{cell['tokens']:.1f}", "nats": f"{cell['nats']:.2f}",
      "right": f"{cell['right']} of {cell['questions']}",
    }
    for cell in cells
  ]  # fmt: skip
  report.publish(config, {"denoisers": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
