r"""A denoiser's answers by each policy beside a causal model's: passes, seconds, likelihood, right.

    python benchmarks/quality/denoisers.py --prompts gsm8k_test.jsonl --model runs/denoiser/model \
        --methods threshold-0.9 'random/reweighted[gsm8k-7m]' 'guided-5[gsm8k-7m]' \
        --drafters none eagle-4

Each record has a `question` and an `answer` whose last number is the right one, as in GSM8K. A text
is right where its last number is that number. Passes are those of a whole answer; those of a second
model that a method asks come on top. Nats are those of a token under the judge, given the question
and the tokens before it: the lower, the likelier. The rows of `--drafters` are the judge's own
answers. Seconds are of an answer, decoded once more after all shapes are compiled. Of a policy with
`/` the last column counts the texts that are those of the policy alone, if it was asked for, too:
all of them for an exact cache (`/none` has none) and for `/guesses-4`.

Above the table, `--bound` says how many nats a token of the data's own answers takes: under the
judge, and at most under the denoiser. likelihood.png draws nats by seconds, and losses.png the
training of a model that lies in its directory. A run that was ended goes on with the methods that
are left, and one that is started again with more of them adds these.
"""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import specjax
from specjax import checks, command_line, fingerprint
from specjax.cli.arguments import Weights
from specjax.data import resume
from specjax.data.sources import open_source
from specjax.eval import likelihood, metrics, prompts, report, table
from specjax.eval.plots import denoising
from specjax.names.load import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is filled, and how."""

  methods: tuple[str, ...] = ("threshold",)
  drafters: tuple[str, ...] = ()  # with which the judge answers, too
  judge: str = "gsm8k-7m"  # a causal model with the denoiser's tokens
  weights: Weights = "float"  # how matrices lie in memory
  batch: int = 8
  bound: int = 0  # samples of each answer's bound; 0 for no bounds
  limit: int | None = 24
  out: str = "results/denoisers"


def _decoders(config: Config, model: Model, judge: Model) -> dict[str, Callable[[], Any]]:
  """What makes each decoder, by its name in the table."""
  fill = functools.partial(specjax.DiffusionDecoder, model, batch=config.batch)
  answer = functools.partial(specjax.Decoder, judge, batch=config.batch)
  return {x: functools.partial(fill, x) for x in config.methods} | {
    f"{config.judge}, {x}": functools.partial(answer, x) for x in config.drafters
  }


def _bounds(config: Config, model: Model, judge: Model, ids: list[list[int]]) -> dict[str, float]:
  """Nats per token of the data's answers: under the judge, and at most under the denoiser."""
  assert config.prompts is not None
  source = open_source(config.prompts)
  assert judge.tokenizer is not None
  said = [judge.tokenizer.encode(source[i]["answer"]) for i in range(len(ids))]
  pairs = list(zip(ids, said, strict=True))
  tokens = sum(map(len, said))
  causal = sum(x.log_prob for x in likelihood.causal(judge, pairs, config.batch))
  masked = sum(likelihood.masked(model, pairs, config.bound, config.batch))
  return {"judge": -causal / tokens, "denoiser": -masked / tokens, "tokens": tokens}


def _alike(cell: dict[str, Any], cells: Sequence[dict[str, Any]]) -> str:
  """How many texts of a decorated policy are those of the policy alone."""
  policy, *decoration = cell["method"].split("/")
  alone = [each["texts"] for each in cells if decoration and each["method"] == policy]
  if not alone:
    return "-"
  return f"{sum(map(str.__eq__, cell['texts'], alone[0]))} of {cell['questions']}"


def main(config: Config) -> None:
  checks.whole("bound", config.bound, 0)
  model, judge = (specjax.load(x, weights=config.weights) for x in (config.model, config.judge))
  ids, right = config.with_numbers(model)
  out = report.directory(config.out)
  left_out = ("methods", "drafters", "bound", "out")
  same = {k: v for k, v in dataclasses.asdict(config).items() if k not in left_out}
  same |= {"prompts": fingerprint.digest(map(str, ids))}
  same |= model.ingredients() | judge.ingredients("judge")
  resume.claim(out, same)
  file = out / "cells.jsonl"
  cells = resume.kept(file)
  known = {cell["method"] for cell in cells}
  makers = _decoders(config, model, judge)
  decoders = {name: make() for name, make in makers.items() if name not in known}
  for name in report.progress(list(decoders), "decoding"):
    decoders[name](ids, config.max_new_tokens)
    begin = time.perf_counter()
    results = decoders[name](ids, config.max_new_tokens)
    seconds = time.perf_counter() - begin
    tokens = sum(len(r.tokens) for r in results)
    pairs = [(prompt, r.tokens) for prompt, r in zip(ids, results, strict=True)]
    log_prob = sum(x.log_prob for x in likelihood.causal(judge, pairs, config.batch))
    good = [metrics.last_number(r.text) == want for r, want in zip(results, right, strict=True)]
    cells.append(
      {
        "method": name,
        "passes": sum(r.passes for r in results) / len(ids),
        "tokens": tokens / len(ids),
        "seconds": seconds / len(ids),
        "nats": -log_prob / tokens,
        "right": sum(good),
        "questions": len(ids),
        "texts": [r.text for r in results],
      }
    )
    with file.open("a") as log:
      log.write(json.dumps(cells[-1]) + "\n")
  rows = [
    {
      "method": f"`{cell['method']}`",
      "passes": f"{cell['passes']:.1f}",
      "tokens": f"{cell['tokens']:.1f}",
      "seconds": f"{cell['seconds']:.2f}",
      "nats": f"{cell['nats']:.2f}",
      "right": f"{cell['right']} of {cell['questions']}",
      "as alone": _alike(cell, cells),
    }
    for cell in cells
  ]
  summary: dict[str, Any] = {"denoisers": cells}
  lines = []
  if config.bound:
    summary["bound"] = found = _bounds(config, model, judge, ids)
    lines = [
      f"A token of the data's answers takes {found['judge']:.2f} nats under {judge.name} and at "
      f"most {found['denoiser']:.2f} under {model.name}.",
      "",
    ]
  plots = {"likelihood": denoising.likelihood(cells, config.judge)}
  training = Path(config.model).parent / "metrics.jsonl"
  if training.exists():
    plots["losses"] = denoising.losses(resume.kept(training))
  report.publish(config, summary, "\n".join([*lines, table.markdown(rows)]), plots)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
