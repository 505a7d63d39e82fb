r"""Texts that follow a JSON Schema: how many are valid, and what they cost with and without drafts.

    python benchmarks/speed/json_schemas.py --model smollm2-135m
    python benchmarks/speed/json_schemas.py --model smollm2-135m --published jsonschemabench/data

Coverage is the share of the schemas that the engine takes; the others are counted by its reason.
`count` of those whose prompt fits the model and whose shortest text fits the budget, evenly spaced,
are then decoded by every drafter; the loop is compiled once per drafter and size of a prompt. An
answer that its budget cuts is neither valid nor invalid, and counted apart. The masks are timed
apart, on the host, over the answers again in chains of 8 nodes, as if the budget ended with the
answer.
"""

import collections
import dataclasses
import datetime
import json
import sys
import time
from typing import Any

import jsonschema
import numpy as np

from specjax import command_line
from specjax.data.json_schemas import Sample, published, samples
from specjax.decoding.batching import Result
from specjax.decoding.decoder import Decoder
from specjax.eval import choice, report, table
from specjax.names.load import DEFAULT_MODEL, Model, load
from specjax.processors import schemas
from specjax.processors.matchers import matchers

NODES = 8  # of a chain whose masks are timed
# The package knows the times of draft 3 alone; since then they have an offset (RFC 3339).
FORMATS = jsonschema.FormatChecker()
FORMATS.checks("time", ValueError)(
  lambda text: datetime.time.fromisoformat(text).tzinfo is not None
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = DEFAULT_MODEL  # zoo name or directory
  # names of drafters; SCHEMA in one stands for the schema of each text
  drafters: tuple[str, ...] = (
    "none", "prompt_lookup-8", "forced-8[SCHEMA]", "forced-8[SCHEMA]|prompt_lookup-8",
  )  # fmt: skip
  published: str | None = None  # directory or JSONL file of schemas, in place of our own
  count: int = 50  # schemas that are decoded
  max_new_tokens: int = 128  # budget of a text
  temperature: float = 0.0  # 0 takes the likeliest token
  out: str = "results/json_schemas"  # directory of the report


def prompt_of(model: Model, sample: Sample) -> list[int]:
  return model.encode(sample.prompt) if model.template is None else model.chat(sample.prompt)


def coverage(
  model: Model, asked: list[Sample], config: Config
) -> tuple[list[Sample], dict[str, Any]]:
  """The schemas that can be decoded, and of each kind what is taken, in what time, or refused."""
  assert model.tokenizer is not None  # or no decoder would have been built
  own = matchers(model.tokenizer, model.config.vocab_size, model.stop)
  most = model.config.max_length - config.max_new_tokens
  seconds = collections.defaultdict[str, list[float]](list)
  refused = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
  fitting = []
  for sample in report.progress(asked, "coverage"):
    start = time.perf_counter()
    try:
      grammar = schemas.of_json_schema(sample.schema, own)
    except ValueError as error:
      reason = str(error.__cause__ or error).split(" while processing")[0]
      refused[sample.kind][reason[:90]] += 1
      continue
    seconds[sample.kind].append(time.perf_counter() - start)
    try:
      short = own.too_long(grammar, config.max_new_tokens) is None
    except ValueError:  # no text of it can be said in tokens
      short = False
    if short and len(prompt_of(model, sample)) <= most:
      fitting.append(sample)
  return fitting, {
    kind: {
      "schemas": len(seconds[kind]) + refused[kind].total(),
      "taken": len(seconds[kind]),
      "median_ms": 1e3 * float(np.median(seconds[kind] or [np.nan])),
      "p99_ms": 1e3 * float(np.percentile(seconds[kind] or [np.nan], 99)),
      "refused": dict(refused[kind].most_common()),
    }
    for kind in dict.fromkeys(sample.kind for sample in asked)
  }


def coverage_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
  """A row for each kind."""
  return [
    {
      "schemas of": kind,
      "taken": f"{x['taken']} of {x['schemas']}",
      "ms to compile, median": f"{x['median_ms']:.1f}",
      "99th percentile": f"{x['p99_ms']:.1f}",
      "refused": "; ".join(f"{n}: {why}" for why, n in list(x["refused"].items())[:4]),
    }
    for kind, x in found.items()
  ]


def outcome(model: Model, sample: Sample, result: Result) -> str:
  """ "valid", "invalid", or "cut" by the budget."""
  if result.tokens[-1] not in model.stop:
    return "cut"
  check = jsonschema.Draft202012Validator(sample.schema, format_checker=FORMATS)
  try:
    check.validate(json.loads(result.text))
  except (ValueError, jsonschema.ValidationError):
    return "invalid"
  return "valid"


def mask_costs(model: Model, asked: list[Sample], results: list[Result]) -> list[float]:
  """Microseconds per node of every chain, by a host that has not seen the texts."""
  assert model.tokenizer is not None  # or no decoder would have been built
  own = matchers(model.tokenizer, model.config.vocab_size, model.stop)
  parent = np.maximum(np.arange(NODES, dtype=np.int32) - 1, 0)[None]
  costs = []
  for sample, result in zip(asked, results, strict=True):
    grammar = np.asarray(schemas.of_json_schema(sample.schema, own))[None]
    text = np.array([result.tokens], np.int32)
    for begin in range(0, text.shape[1] - NODES, NODES):
      chain = text[:, begin : begin + NODES]  # its first token is the root
      left = np.array([text.shape[1] - begin - 1])
      arguments = (text, np.array([begin + 1]), left, chain, parent, np.ones(chain.shape, bool))
      start = time.perf_counter()
      own.masks(grammar, *arguments)
      costs.append(1e6 * (time.perf_counter() - start) / NODES)
  return costs


def measured(model: Model, name: str, asked: list[Sample], config: Config) -> list[Result]:
  """A text for each schema by one drafter."""
  results = []
  for sample in report.progress(asked, name.replace("[", r"\[")):
    drafter = name.replace("SCHEMA", json.dumps(sample.schema))
    decoder = Decoder(
      model, drafter, "target_only", json_schema=sample.schema, temperature=config.temperature
    )
    results += decoder([prompt_of(model, sample)], config.max_new_tokens)
  return results


def main(config: Config) -> None:
  report.check(config, "count", "max_new_tokens")
  model = load(config.model)
  every = samples(config.count) if config.published is None else published(config.published)
  Decoder(model, json_schema={})  # fails before anything is measured
  report.directory(config.out)
  fitting, covered = coverage(model, every, config)
  if not fitting:
    raise ValueError(f"published={config.published!r}: no schema is taken and short enough.")
  asked = choice.spread(fitting, config.count)
  found: dict[str, Any] = {}
  plain: list[Result] = []
  for name in config.drafters:
    results = measured(model, name, asked, config)
    plain = plain or results
    ends = [outcome(model, s, r) for s, r in zip(asked, results, strict=True)]
    tokens = sum(r.emitted for r in results)
    found[name] = {
      **{end: ends.count(end) for end in ("valid", "invalid", "cut")},
      "tokens_per_pass": tokens / sum(r.passes for r in results),
      "ms_per_token": 1e3 * sum(r.seconds for r in results) / tokens,
      "same_as_first": sum(a.tokens == b.tokens for a, b in zip(plain, results, strict=True)),
      "texts": [r.text for r in results],
    }
  costs = mask_costs(model, asked, plain) or [float("nan")]
  mean, worst = float(np.mean(costs)), float(np.percentile(costs, 99))
  rows = [
    {
      "drafter": name.replace("|", r"\|"),
      "cut": f["cut"],
      "valid": f"{f['valid']} of {f['valid'] + f['invalid']}",
      "tokens per pass": f"{f['tokens_per_pass']:.2f}",
      "ms per token": f"{f['ms_per_token']:.2f}",
      "texts of the first": f"{f['same_as_first']} of {len(asked)}",
    }
    for name, f in found.items()
  ]
  text = (
    f"{table.markdown(coverage_rows(covered))}\n\n{len(asked)} of {len(fitting)} that fit were "
    f"decoded.\n\n{table.markdown(rows)}\n\nMasks: {mean:.0f} microseconds per node on average, "
    f"{worst:.0f} at the 99th percentile of chains."
  )
  masks = {"mean_us_per_node": mean, "p99_us_per_node": worst}
  report.publish(
    config, {"coverage": covered, "drafters": found, "masks": masks}, text, packages=("llguidance",)
  )


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
