r"""Drafts by load beside none and drafts of fixed sizes, with one client to many.

    python benchmarks/speed/by_load.py --drafter eagle3 --clients 1 2 4 8 16 32

So many clients each send a request when their last one has been answered, to an engine whose rows
are as many as the most clients. Every drafter has the loop compiled for each number of clients, as
drafts by load have for powers of two, so that what is compared is the size of the drafts alone;
with --all-rows the fixed ones run all rows, as they do by default. All answer the same questions in
turns, and no text may differ. Speeds drift from turn to turn by more than drafts differ, so the
last column is the median over the turns of what drafts by load reached over a fixed draft in the
same turn, for the fixed draft for which it is least.
"""

import concurrent.futures
import dataclasses
import sys
import time
from typing import Any

import numpy as np

import specjax
from specjax import checks, command_line
from specjax.eval import report, table
from specjax.eval.prompts import OUR_QUESTIONS
from specjax.serving.engine import Engine
from specjax.serving.run import warm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What is measured.

  Attributes:
    model: the target.
    weights, activations: how it is held, as `specjax.load` takes it.
    drafter: in sizes, fixed or by load; a name without a number.
    sizes: nodes of the fixed drafts, the last those of a whole draft.
    clients: how many ask at a time.
    requests: how many each client sends in a run.
    repeats: runs of each drafter, in turns, each of which begins with another one.
    all_rows: whether fixed drafts run all rows, however few are busy.
    temperature: of the answers.
    max_new_tokens: of an answer.
    max_length: of a prompt and its answer.
    out: directory of the report.
  """

  model: str = "gsm8k-7m"
  weights: str = "float"
  activations: str = "float"
  drafter: str = "eagle3"
  sizes: tuple[int, ...] = (2, 4, 8)
  clients: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
  requests: int = 2
  repeats: int = 9
  all_rows: bool = False
  temperature: float = 0.0
  max_new_tokens: int = 64
  max_length: int = 192
  out: str = "results/by_load"


def measure(engine: Engine, count: int, config: Config) -> tuple[float, list[list[int]]]:
  """(tokens a second, texts) of `count` clients."""
  model = engine.decoder.model
  asked = [model.chat(OUR_QUESTIONS[i % len(OUR_QUESTIONS)]) for i in range(count)]

  def client(i: int) -> list[list[int]]:
    found = []
    for j in range(config.requests):
      ids, seed = asked[(i + j) % count], i * config.requests + j
      ticket = engine.submit(ids, config.max_new_tokens, temperature=config.temperature, seed=seed)
      found.append(ticket.wait())
    return found

  begin = time.perf_counter()
  with concurrent.futures.ThreadPoolExecutor(count) as clients:
    texts = [text for own in clients.map(client, range(count)) for text in own]
  return sum(map(len, texts)) / (time.perf_counter() - begin), texts


def main(config: Config) -> None:
  report.check(config, "requests", "repeats", "max_new_tokens", "max_length")
  for i, count in enumerate(config.clients):
    checks.whole(f"clients[{i}]", count, 1)
  loaded = specjax.load(config.model, weights=config.weights, activations=config.activations)
  model = dataclasses.replace(loaded, stop=())  # answers of one length
  whole = config.sizes[-1]
  names = [
    "none", *(f"{config.drafter}-{n}" for n in config.sizes), f"auto-{whole}[{config.drafter}]",
  ]  # fmt: skip
  B = max(config.clients)
  fewer = [count for count in sorted({*config.clients}) if count < B]
  decoders = [specjax.Decoder(model, name, "target_only", batch=B) for name in names]
  report.directory(config.out)
  engines: dict[str, Engine] = {}
  try:
    for name, decoder in zip(names, decoders, strict=True):
      own = [] if config.all_rows and not name.startswith("auto") else fewer
      engines[name] = Engine(decoder, max_length=config.max_length, queue=B, fewer=own)
      warm(engines[name])
    cells: list[dict[str, Any]] = []
    for count in config.clients:
      speeds: dict[str, list[float]] = {name: [] for name in names}
      texts: list[list[int]] = []
      differ = dict.fromkeys(names, 0)
      for turn in range(config.repeats):
        for name in np.roll([*engines], turn):
          speed, found = measure(engines[name], count, config)
          speeds[name].append(speed)
          texts = texts or found
          differ[name] += sum(x != y for x, y in zip(found, texts, strict=True))
      over = {n: float(np.median(np.divide(speeds[names[-1]], speeds[n]))) for n in names[:-1]}
      cells.append(
        {"clients": count, "tokens_per_second": {n: float(np.median(speeds[n])) for n in names},
         "runs": speeds, "differ": differ, "auto_over": over}
      )  # fmt: skip
  finally:
    for engine in engines.values():
      engine.close()
  prices = decoders[-1].prices
  assert prices is not None
  shown = [
    {
      "clients": str(c["clients"]),
      **{name: f"{c['tokens_per_second'][name]:.0f}" for name in names},
      "auto / best fixed": f"{min(c['auto_over'].values()):.2f}",
      "texts that differ": str(sum(c["differ"].values())),
    }
    for c in cells
  ]
  figures = {"cells": cells, "prices": {n: prices.of(n).tolist() for n in [*fewer, B]}}
  report.publish(config, figures, table.markdown(shown))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
