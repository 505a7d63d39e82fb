r"""Does speculation change a single token? Every drafter is compared with plain decoding.

    python benchmarks/claims/lossless.py --prompts gsm8k_test.jsonl
    python benchmarks/claims/lossless.py --model smollm2-135m --prompts spec_bench.jsonl \
        --limit 60 --max-new-tokens 96 --drafters prompt_lookup-8 token_recycling-4 jacobi-4

An engine answers every question at every temperature, in rows that hold texts of all temperatures
and lengths at once; where a row is done, the next question takes it. The rule is target_only, whose
texts are those of plain greedy decoding and of the plain sampler with the same noise. Where ids
differ, the report says where first and, if greedy, by what margin of the two best logits.
A run that was ended goes on where it was, and one that is started again with more drafters or
batches adds them.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax

import specjax
from specjax import checks, command_line, fingerprint
from specjax.cli.arguments import Activations, Weights
from specjax.data import resume
from specjax.eval import metrics, prompts, report, table
from specjax.eval.divergence import divergences
from specjax.names import catalogue
from specjax.serving.engine import Engine

PLAIN = "none"


@dataclasses.dataclass(frozen=True)
class Config(prompts.Questions):
  """What is compared."""

  drafters: tuple[str, ...] = ()  # names; by default prompt lookup and the zoo's heads
  limit: int | None = 100  # number of questions, at equal distances in the file
  batches: tuple[int, ...] = (8, 1)  # batch sizes
  temperatures: tuple[float, ...] = (0.0, 0.8)  # 0 is greedy
  weights: Weights = "float"  # how matrices lie in memory
  activations: Activations = "float"  # what they are multiplied with
  out: str = "results/lossless"


class Text(NamedTuple):
  """What an engine said to one question at one temperature."""

  temperature: float
  tokens: list[int]
  passes: int

  @property
  def emitted(self) -> int:
    return len(self.tokens)


def answers(
  decoder: specjax.Decoder, ids: Sequence[list[int]], config: Config, title: str
) -> list[Text]:
  """The texts of all questions at the first temperature, then at the next."""
  longest = max(map(len, ids)) + config.max_new_tokens
  asked = [(t, i) for i in range(len(ids)) for t in config.temperatures]
  with Engine(decoder, max_length=longest, queue=len(asked)) as engine:
    tickets = {
      (t, i): engine.submit(ids[i], config.max_new_tokens, temperature=t, number=i)
      for t, i in asked
    }
    for ticket in report.progress(list(tickets.values()), title):
      ticket.wait()
  return [
    Text(t, tickets[t, i].tokens, tickets[t, i].passes)
    for t in config.temperatures
    for i in range(len(ids))
  ]


def main(config: Config) -> None:
  report.check(config, "batches")
  every = [checks.number("temperatures", t, 0) for t in config.temperatures]
  model = specjax.load(config.model, weights=config.weights, activations=config.activations)
  model = dataclasses.replace(model, stop=())  # all texts are of full length
  ids = [item.ids for item in config.evenly(model)]
  heads = [f"{name}-{nodes}" for name in catalogue.heads(model.name) for nodes in (8, 16)]
  names = [PLAIN, *(config.drafters or ("prompt_lookup-8", *heads))]
  # Of plain decoding the first batch size is enough.
  turns = [(b, d) for b in config.batches for d in names if d != PLAIN or b == config.batches[0]]
  decoders = {
    (b, d): specjax.Decoder(model, d, "target_only", temperature=max(every), batch=b)
    for b, d in turns
  }
  out = report.directory(config.out)
  same = {"model": model.label, "temperatures": every, "max_new_tokens": config.max_new_tokens,
          "plain_batch": config.batches[0],
          "questions": fingerprint.digest(map(str, ids))}  # fmt: skip
  resume.claim(out, same | model.ingredients())
  file = out / "answers.jsonl"
  weights = {turn: fingerprint.of_weights(x.weights.drafter) for turn, x in decoders.items()}
  known = {
    turn: [Text(*t) for t in x["texts"]]
    for x in resume.kept(file)
    # A head that was trained again answers again.
    if weights.get(turn := (x["batch"], x["drafter"])) == x.get("weights")
  }
  cells = []
  for i, (batch, name) in enumerate(turns):
    if (batch, name) not in known:
      title = f"{name} at batch {batch} ({i + 1} of {len(turns)})"
      texts = known[batch, name] = answers(decoders[batch, name], ids, config, title)
      line = {"batch": batch, "drafter": name, "weights": weights[batch, name], "texts": texts}
      with file.open("a") as log:
        log.write(json.dumps(line) + "\n")
      jax.clear_caches()  # a process may map 65530 pieces of memory
    for j, t in enumerate(every):
      part = slice(j * len(ids), (j + 1) * len(ids))
      mine, plain = known[batch, name][part], known[turns[0]][part]
      cells.append(
        {
          "temperature": t,
          "batch": batch,
          "drafter": name,
          "prompts": len(ids),
          "tokens": sum(x.emitted for x in mine),
          **metrics.tau(mine),
          "different": divergences(model, ids, mine, plain, t == 0),
        }
      )
  rows = [
    {
      **{key: cell[key] for key in ("temperature", "batch", "drafter", "tokens")},
      "tokens / pass": table.estimate(cell["tau"], cell["tau_interval"]),
      "prompts that differ": f"{len(cell['different'])} of {cell['prompts']}",
    }
    for cell in cells
  ]
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
