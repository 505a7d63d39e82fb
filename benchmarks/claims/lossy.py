r"""What the lossy rules gain in tokens per pass, and how many texts they change.

    python -m specjax.train.judge --model gsm8k-7m --data gsm8k_train.jsonl --out runs/judge
    python benchmarks/claims/lossy.py --prompts gsm8k_test.jsonl \
        --verifiers typical "judge-0.9[runs/judge/model]"

Every rule decodes the same questions with the same noise as the exact rule, whose tokens are those
of plain decoding. A text is "other" where an id differs, and its number where the last number in
the text differs or only one of the two texts has a number. Nats are those of the model, with which
it would have said the text itself at temperature 1.
"""

import dataclasses
import sys

import specjax
from specjax import command_line
from specjax.decoding.decoder import Result
from specjax.eval import metrics, prompts, report, table

EXACT = "target_only"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared."""

  # names of verifiers, such as judge-0.9[PATH] or token/reflective[TEXT]
  verifiers: tuple[str, ...] = ("typical", "typical-0.3,delta=0.5477")
  drafter: str = "eagle"  # name of a drafter, such as "eagle-16" or "draft_model-8[PATH]"
  # temperatures of the target; at 0 typical acceptance is greedy
  temperatures: tuple[float, ...] = (0.0, 0.8)
  limit: int | None = 20
  out: str = "results/lossy"


def main(config: Config) -> None:
  model = specjax.load(config.model, weights="float")
  ids = [item.ids for item in config.read(model)]
  guess = specjax.make_drafter(model, config.drafter)
  for rule in config.verifiers:
    specjax.Decoder(model, guess, rule)  # it refuses what is no rule
  report.directory(config.out)
  cells = []
  plain: list[Result] = []
  turns = [(t, rule) for t in config.temperatures for rule in (EXACT, *config.verifiers)]
  for temperature, rule in report.progress(turns, "decoding"):
    decode = specjax.Decoder(model, guess, rule, temperature=temperature)
    results = decode(ids, config.max_new_tokens)
    plain = results if rule == EXACT else plain
    pairs = list(zip(results, plain, strict=True))
    cells.append(
      {
        "temperature": temperature,
        "rule": decode.label,
        **metrics.tau(results),
        "nats": -sum(sum(r.log_probs) for r in results) / sum(len(r.log_probs) for r in results),
        "other_text": sum(a.tokens != b.tokens for a, b in pairs),
        "other_number": sum(
          metrics.last_number(a.text) != metrics.last_number(b.text) for a, b in pairs
        ),
        "questions": len(pairs),
      }
    )
  rows = [
    {
      "T": f"{cell['temperature']:g}",
      "rule": cell["rule"],
      "tokens / pass": table.estimate(cell["tau"], cell["tau_interval"]),
      "nats / token": f"{cell['nats']:.3f}",
      "other text": f"{cell['other_text']} of {cell['questions']}",
      "other number": f"{cell['other_number']} of {cell['questions']}",
    }
    for cell in cells
  ]
  report.publish(config, {"verifiers": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
