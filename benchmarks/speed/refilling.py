r"""Fixed batches beside batches whose done rows take the next prompt, on the same prompts.

    python benchmarks/speed/refilling.py --model smollm2-135m --prompts spec_bench.jsonl

A fixed batch waits for its longest answer, so that refilling gains where answers differ in length.
Fixed batches hold prompts that are padded to one length. Those of every other length are decoded
before the refilled batch, the others after it, so that a machine whose speed drifts is fair to
both. Every shape is compiled before the clock starts, and times include the prefill. A run that was
ended goes on with the next length, and one that is started again with more drafters adds them.
"""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import specjax
from specjax import command_line, fingerprint
from specjax.cli.arguments import Weights
from specjax.data import resume
from specjax.decoding.batching import Result
from specjax.decoding.decoder import Decoder, pad_to_bucket
from specjax.eval import prompts, report, table
from specjax.serving.refill import refilled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is measured.

  Attributes:
    weights: how matrices lie in memory.
    drafters: each decodes all prompts both ways.
    batch: B, rows.
    rounds: rounds between two looks at what is done.
  """

  weights: Weights = "float"
  drafters: tuple[str, ...] = ("none", "prompt_lookup-4")
  batch: int = 8
  rounds: int = 8
  limit: int | None = None
  out: str = "results/refilling"


def fixed(decoder: Decoder, ids: Sequence[list[int]], config: Config) -> list[Result]:
  return decoder(ids, config.max_new_tokens)


def refilling(decoder: Decoder, ids: Sequence[list[int]], config: Config) -> list[Result]:
  found = dict(refilled(decoder, ids, config.max_new_tokens, rounds=config.rounds))
  return [found[i] for i in range(len(ids))]


ALL = 0  # in place of a length


def turns(ids: Sequence[list[int]]) -> list[tuple[str, int, list[list[int]]]]:
  """(way, padded length or ALL, prompts) of each timing, in order; `ids` are sorted by length."""
  groups = [
    (T, list(group)) for T, group in itertools.groupby(ids, lambda row: pad_to_bucket(len(row)))
  ]
  alike = [("fixed", T, group) for T, group in groups]
  return [*alike[::2], ("refilled", ALL, list(ids)), *alike[1::2]]


def main(config: Config) -> None:
  report.check(config, "batch", "rounds")
  model = specjax.load(config.model, weights=config.weights)
  items = config.read(model)
  ids = sorted((item.ids for item in items), key=len)
  out = report.directory(config.out)
  same = dataclasses.asdict(config) | model.ingredients()
  same["questions"] = fingerprint.digest(map(str, ids))
  resume.claim(out, same, {"drafters", "out"})
  file = out / "decoded.jsonl"
  known = {(x["drafter"], x["weights"], x["padded"], x["way"]): x for x in resume.kept(file)}
  cells: list[dict[str, Any]] = []
  parts = turns(ids)
  for name in config.drafters:
    decoder = Decoder(model, name, batch=config.batch)
    weights = fingerprint.of_weights(decoder.weights.drafter)
    for way, T, group in report.progress(parts, name):
      if (name, weights, T, way) not in known:
        decode = fixed if way == "fixed" else refilling
        firsts = list({pad_to_bucket(len(row)): row for row in group}.values())
        for row in firsts:
          decode(decoder, [row], config)
        decode(decoder, firsts, config)  # in which rows ride on from each length to the next
        begin = time.perf_counter()
        results = decode(decoder, group, config)
        known[name, weights, T, way] = {
          "drafter": name, "weights": weights, "padded": T, "way": way,
          "seconds": time.perf_counter() - begin, "texts": [r.tokens for r in results],
        }  # fmt: skip
        with file.open("a") as log:
          log.write(json.dumps(known[name, weights, T, way]) + "\n")
    each = {T: known[name, weights, T, "fixed"] for way, T, _ in parts if way == "fixed"}
    apart = [text for T in sorted(each) for text in each[T]["texts"]]
    together = known[name, weights, ALL, "refilled"]
    ways = {
      "fixed": (sum(x["seconds"] for x in each.values()), apart),
      "refilled": (together["seconds"], together["texts"]),
    }
    for way, (seconds, said) in ways.items():
      lengths = np.array([len(text) for text in said])
      cells.append(
        {
          "drafter": name,
          "way": way,
          "seconds": seconds,
          "tokens": int(lengths.sum()),
          "mean": float(lengths.mean()),
          "longest": int(lengths.max()),
          "differ": sum(a != b for a, b in zip(said, apart, strict=True)),
        }
      )
  first = {cell["drafter"]: cell for cell in cells if cell["way"] == "fixed"}
  rows = [
    {
      "drafter": c["drafter"],
      "batches": c["way"],
      "s": f"{c['seconds']:.0f}",
      "tokens/s": f"{c['tokens'] / c['seconds']:.0f}",
      "throughput": f"{first[c['drafter']]['seconds'] / c['seconds']:.2f}",
      "tokens of an answer": f"{c['mean']:.0f}",
      "differ": f"{c['differ']} of {len(ids)}",
    }
    for c in cells
  ]
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
