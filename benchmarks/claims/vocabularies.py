r"""How models of several vocabularies read the same answers: nats for each byte of them.

python benchmarks/claims/vocabularies.py --data gsm8k_test.jsonl --models gsm8k-7m runs/moved/model
"""

import dataclasses
import sys

import specjax
from specjax import checks, command_line
from specjax.data.sources import open_source
from specjax.eval import likelihood, report, table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What is compared."""

  models: tuple[str, ...]
  data: str  # records with `question` and `answer`
  limit: int = 64  # records that are read
  out: str = "results/vocabularies"


def main(config: Config) -> None:
  checks.whole("limit", config.limit, 1)
  source = open_source(config.data)
  some = [source[i] for i in range(min(config.limit, len(source)))]
  report.directory(config.out)
  texts = [(f"Question: {x['question']}\nAnswer:", f" {x['answer']}") for x in some]
  size, rows = sum(len(said.encode()) for _, said in texts), []
  for name in config.models:
    model = specjax.load(name, weights="float")
    pairs = [(model.encode(asked), model.encode(said)) for asked, said in texts]
    nats = -sum(x.log_prob for x in likelihood.causal(model, pairs))
    tokens = sum(len(said) for _, said in pairs)
    rows.append({"model": name, "tokens": f"{tokens:,}", "nats per byte": f"{nats / size:.3f}"})
    print(rows[-1], file=sys.stderr)
  report.publish(config, {"vocabularies": rows}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
