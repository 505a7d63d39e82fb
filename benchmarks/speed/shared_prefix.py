r"""Requests that share a system prompt, with and without a store of prompts' beginnings.

    python benchmarks/speed/shared_prefix.py --model smollm2-135m

So many clients each send a request when their last one has been answered. The system prompt is the
beginning of a text, by default of our licence, and behind it stands a question. With a store the
system prompt is read once, and without one it is read for every request. When the clock starts, all
programs are compiled, and the store has nothing of the system prompt.
"""

import concurrent.futures
import dataclasses
import pathlib
import sys
import time
from typing import Any, NamedTuple

import numpy as np

import specjax
from specjax import checks, command_line
from specjax.eval import report, table
from specjax.eval.prompts import OUR_QUESTIONS
from specjax.names.load import Model
from specjax.serving.engine import Engine
from specjax.serving.run import warm

LICENCE = pathlib.Path(__file__).parents[2] / "LICENSE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What is measured.

  Attributes:
    model: the target.
    text: a file, whose beginning is the system prompt.
    tokens: of the system prompt.
    drafters: each answers all requests in both ways.
    prefixes: MB (1e6 bytes) of the store.
    pages: where there are some, requests are also answered by a server with so many pages.
    requests: how many are answered.
    clients: how many ask at a time.
    batch: rows of the engine.
    max_new_tokens: of an answer.
    out: directory of the report.
  """

  model: str = "gsm8k-7m"
  text: str = str(LICENCE)
  tokens: int = 1500
  drafters: tuple[str, ...] = ("none",)
  prefixes: float = 512.0
  pages: int = 0
  requests: int = 64
  clients: int = 8
  batch: int = 8
  max_new_tokens: int = 32
  out: str = "results/shared_prefix"


class Answer(NamedTuple):
  """The new tokens, the times in seconds since it was asked for at which a piece came, and how many
  tokens of its prompt were not read."""

  tokens: list[int]
  times: list[float]
  reused: int


def prompts(model: Model, config: Config) -> list[list[int]]:
  """The system prompt with a question behind it, for each request."""
  ids = model.encode(pathlib.Path(config.text).read_text())
  checks.whole("tokens", config.tokens, 1, len(ids), f"of {config.text}")
  system = model.decode(ids[: config.tokens])
  asked = (OUR_QUESTIONS[i % len(OUR_QUESTIONS)] for i in range(config.requests))
  return [model.encode(f"{system}\n\n{question}\n") for question in asked]


def ask(engine: Engine, ids: list[int], config: Config) -> Answer:
  begun, times = time.perf_counter(), list[float]()
  ticket = engine.submit(ids, config.max_new_tokens)
  for _ in ticket:
    times.append(time.perf_counter() - begun)
  return Answer(ticket.tokens, times, ticket.reused)


def measure(engine: Engine, asked: list[list[int]], config: Config) -> tuple[list[Answer], float]:
  """The answers, and the seconds that all took."""
  warm(engine)
  begun = time.perf_counter()
  with concurrent.futures.ThreadPoolExecutor(config.clients) as clients:
    found = list(clients.map(lambda ids: ask(engine, ids, config), asked))
  return found, time.perf_counter() - begun


def main(config: Config) -> None:
  report.check(config, "requests", "clients", "batch", "max_new_tokens")
  held = round(1e6 * checks.number("prefixes", config.prefixes, above=0))
  model = specjax.load(config.model, weights="float")
  asked = prompts(model, config)
  longest = max(map(len, asked)) + config.max_new_tokens
  report.directory(config.out)
  cells: list[dict[str, Any]] = []
  for name in config.drafters:
    texts: list[list[int]] = []
    ways: dict[str, dict[str, Any]] = {"none": {}, "store": {"prefixes": held}}
    if config.pages:
      ways["pages"] = {"pages": config.pages}
    for way, kept in ways.items():
      decoder = specjax.Decoder(model, name, "target_only", batch=config.batch)
      with Engine(decoder, max_length=longest, queue=config.clients, **kept) as engine:
        found, seconds = measure(engine, asked, config)
      texts = texts or [x.tokens for x in found]
      firsts = np.array([x.times[0] for x in found])
      gaps = np.concatenate([np.diff(x.times) for x in found])
      cells.append(
        {
          "drafter": name,
          "way": way,
          "seconds": seconds,
          "first": np.percentile(firsts, [50, 99]).tolist(),
          "gap": np.percentile(gaps, [50, 99]).tolist(),
          "prompt_tokens": sum(map(len, asked)),
          "reused": sum(x.reused for x in found),
          "differ": sum(x.tokens != text for x, text in zip(found, texts, strict=True)),
        }
      )
  plain = {cell["drafter"]: cell for cell in cells if cell["way"] == "none"}
  rows = [
    {
      "drafter": c["drafter"],
      "prefixes": c["way"],
      "first token, s": f"{c['first'][0]:.2f}",
      "p99": f"{c['first'][1]:.2f}",
      "times as soon": f"{plain[c['drafter']]['first'][0] / c['first'][0]:.1f}",
      "requests/s": f"{config.requests / c['seconds']:.2f}",
      "throughput": f"{plain[c['drafter']]['seconds'] / c['seconds']:.2f}",
      "between pieces, s": f"{c['gap'][0]:.2f}",
      "p99 of it": f"{c['gap'][1]:.2f}",
      "tokens reused": f"{c['reused'] / c['prompt_tokens']:.0%}",
      "differ": f"{c['differ']} of {config.requests}",
    }
    for c in cells
  ]
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
