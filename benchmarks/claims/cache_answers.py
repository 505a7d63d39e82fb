r"""How far the answers over a compressed cache are those over the dense one.

    python benchmarks/claims/cache_answers.py --model smollm2-135m --prompts spec_bench.jsonl \
        --caches int8 gear-4 mustafar-0.5 keyformer-0.5 sinks-4,recent=508 \
        token_select-384,first=4,recent=124

Every cache answers the same questions greedily, to the full length. Two answers agree up to their
first other token, behind which they are texts of their own. Questions of at least `long` tokens,
of which a cache leaves something out, are told apart. A run that was ended goes on with the caches
that are left, and one that is started again with more of them adds these.
"""

import dataclasses
import itertools
import json
import sys

import numpy as np

import specjax
from specjax import command_line, fingerprint
from specjax.cli.arguments import Activations, Weights
from specjax.data import resume
from specjax.eval import prompts, report, table
from specjax.names.build.cache import DENSE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared."""

  weights: Weights = "float"  # how matrices lie in memory
  activations: Activations = "float"  # what they are multiplied with
  caches: tuple[str, ...] = ("int8", "gear-4", "mustafar-0.5", "keyformer-0.5")
  batch: int = 8  # questions answered together
  long: int = 512  # tokens of a long question
  limit: int | None = 60  # number of questions, at equal distances in the file
  max_new_tokens: int = 96
  out: str = "results/cache_answers"


def agreed(mine: list[int], dense: list[int]) -> int:
  """The number of tokens before the first other one."""
  pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(mine, dense, strict=True))
  return sum(1 for _ in pairs)


def main(config: Config) -> None:
  report.check(config, "batch", "long")
  model = specjax.load(config.model, weights=config.weights, activations=config.activations)
  model = dataclasses.replace(model, stop=())  # all answers are of full length
  ids = sorted((item.ids for item in config.evenly(model)), key=len)
  kinds = {
    name: specjax.Decoder(model, "none", batch=config.batch, cache=name)
    for name in (DENSE, *config.caches)
  }
  out = report.directory(config.out)
  same = {"model": model.label, "max_new_tokens": config.max_new_tokens, "batch": config.batch,
          "questions": fingerprint.digest(map(str, ids))}  # fmt: skip
  resume.claim(out, same | model.ingredients())
  file = out / "answers.jsonl"
  answers = {line["cache"]: line["answers"] for line in resume.kept(file)}
  for name in report.progress([name for name in kinds if name not in answers], "answering"):
    answers[name] = [r.tokens for r in kinds[name](ids, config.max_new_tokens)]
    with file.open("a") as log:
      log.write(json.dumps({"cache": name, "answers": answers[name]}) + "\n")
  long = np.array([len(prompt) >= config.long for prompt in ids])
  rows, cells = [], []
  for name, decoder in kinds.items():
    n = np.array([agreed(a, b) for a, b in zip(answers[name], answers[DENSE], strict=True)])
    cells.append({"cache": decoder.cache, "agreed": n.tolist(), "long": long.tolist()})
    row = {"cache": decoder.cache}
    for title, of in ((f"below {config.long} tokens", n[~long]), ("longer", n[long])):
      if len(of):
        row[f"{title}: equal"] = f"{(of == config.max_new_tokens).sum()} of {len(of)}"
        row[f"{title}: tokens before another"] = f"{of.mean():.0f}"
    rows.append(row)
  report.publish(config, {"caches": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
