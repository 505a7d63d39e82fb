r"""Tokens per pass of a head behind texts of several lengths, with and without a sliding window.

    python benchmarks/speed/head_windows.py --prompts spec_bench.jsonl --lengths 1000 4000 8000

A prompt ends with a question; before it stand the other texts of the question's category, such as
Spec-Bench's passages, of which the last ones count that fill the prompt up to the length. So all
lengths ask the same questions. The window is set in the head's layer, which is not trained again. A
prompt is read once. From there plain decoding, the head as it is and the head with each window
decode greedily, and their ids are compared. A run that was ended goes on with the next prompt.
"""

import bisect
import dataclasses
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from specjax import checks, command_line, fingerprint, speculate, switches
from specjax.base import Context
from specjax.data import resume
from specjax.decoding.decoder import pad_to_bucket
from specjax.distributed import fetch
from specjax.eval import metrics, prompts, report, table
from specjax.heads import HEADS
from specjax.names.build.head import load_head
from specjax.names.grammar import parse_one
from specjax.names.load import Model
from specjax.trees.static import best_first

PLAIN, WHOLE = "plain", "all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is decoded."""

  model: str = "smollm2-135m"
  head: str = "eagle3"  # a head whose config has a window, as NAME or NAME[DIRECTORY]
  windows: tuple[int, ...] = (512, 128)  # positions that the head's layer sees
  lengths: tuple[int, ...] = (1000, 4000)  # tokens of a prompt
  categories: tuple[str, ...] = ("rag", "summarization")  # of the questions
  nodes: int = 4  # of the best tree by the head's held-out rates
  limit: int | None = 4  # questions of each category
  max_new_tokens: int = 64
  out: str = "results/head_windows"


def asked(model: Model, config: Config) -> list[tuple[str, str]]:
  """(a question, what stands before it) for `limit` questions of each category."""
  items = dataclasses.replace(config, limit=None).read(model)
  found = []
  for category in config.categories:
    own = [x for x in items if x.category == category]
    short = [x for x in own if len(x.ids) <= min(config.lengths)]
    if not short:
      checks.refuse("categories", category, f"one with questions of {min(config.lengths)} tokens")
    limit = len(short) if config.limit is None else checks.whole("limit", config.limit, 1)
    count = min(limit, len(short))
    for one in (short[i * len(short) // count] for i in range(count)):
      found.append((str(one.given), "".join(f"{x.given}\n\n" for x in own if x is not one)))
  return found


def behind(model: Model, question: str, before: str, length: int) -> list[int]:
  """The ids of a question behind the end of a text, `length` of them or a few less."""

  def ids(characters: int) -> list[int]:
    return model.chat(before[len(before) - characters :] + question)

  most = min(len(before), 8 * length)
  found = ids(bisect.bisect_right(range(most + 1), length, key=lambda n: len(ids(n))) - 1)
  if len(found) < 0.9 * length:
    checks.refuse("lengths", length, f"at most {len(found)}, for which there is text")
  return found


@functools.partial(jax.jit, static_argnames=("method", "capacity"))
def prefilled(
  method: speculate.Method, weights: speculate.Weights, tokens: Array, length: Array, capacity: int
) -> tuple[Any, Any]:
  """(the target's cache, its states for the head) of a prompt."""
  layers = method.drafter.hidden_layers
  return method.target.prefill(weights.target, tokens, length, capacity, hidden_layers=layers)


@functools.partial(jax.jit, static_argnames="method")
def begun(
  method: speculate.Method,
  weights: speculate.Weights,
  request: speculate.DecodeRequest,
  context: Context,
  read: tuple[Any, Any],
) -> speculate.DecodeState:
  """The state before the first round, of a prompt that the target has read."""
  cache, features = read
  guesser = method.drafter.init(
    weights.drafter,
    weights.target,
    context=context._replace(cache=cache),
    features=features,
    capacity=context.tokens.shape[1],
  )
  return speculate.ready(method, request, context, jax.tree.map(jnp.copy, cache), guesser)


@switches.hold
def answers(
  decoders: Mapping[str, specjax.Decoder], ids: list[int], new: int
) -> dict[str, dict[str, Any]]:
  """What each decoder says, and its rounds."""
  T = pad_to_bucket(len(ids))
  capacity = max(x.capacity(T, new) for x in decoders.values())
  tokens = np.zeros((1, capacity), np.int32)
  tokens[0, : len(ids)] = ids
  length = jnp.full(1, len(ids), jnp.int32)
  context, first = Context(jnp.asarray(tokens), length), decoders[WHOLE]
  read = prefilled(first.method, first.weights, context.tokens[:, :T], length, capacity)
  found = {}
  for name, decoder in decoders.items():
    request = decoder.request(np.zeros(1, int), np.full(1, len(ids) + new))
    state = begun(decoder.method, decoder.weights, request, context, read)
    state = decoder.advance(request, state, new)
    state = fetch(state._replace(cache=None, drafter=None))
    decoder.check_logits(state, np.zeros(1, int))
    one = decoder.result(ids, len(ids), new, state, 0, 0.0, 0.0)
    found[name] = {"tokens": one.tokens, "passes": one.passes, **dataclasses.asdict(one.rounds)}
  return found


def ratio(
  emitted: np.ndarray, passes: np.ndarray, others: np.ndarray, their_passes: np.ndarray
) -> np.ndarray:
  """Tokens per pass over those of another head, of totals."""
  return emitted / passes / (others / their_passes)


def row(length: int, name: str, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """A line of the table, of the prompts of one length."""

  def totals(name: str) -> tuple[list[int], list[int]]:
    own = [cell["answers"][name] for cell in cells]
    return [len(x["tokens"]) for x in own], [x["passes"] for x in own]

  emitted, passes = totals(name)
  columns = *totals(name), *totals(WHOLE)
  own = [cell["answers"][name] for cell in cells]
  depths = metrics.acceptance_by_depth([x["accepted"] for x in own], [x["offered"] for x in own])
  tau = metrics.bootstrap_interval(metrics.block_efficiency, emitted, passes)
  beside = metrics.bootstrap_interval(ratio, *columns)
  return {
    "tokens of a prompt": f"{np.mean([cell['length'] for cell in cells]):.0f}",
    "the head sees": name,
    "tokens / pass": table.estimate(sum(emitted) / sum(passes), tau),
    "acceptance by depth": " ".join(f".{round(100 * x):02d}" for x in depths if x is not None),
    "over the whole": table.estimate(float(ratio(*map(np.sum, columns))), beside),
    "texts that differ": sum(
      cell["answers"][name]["tokens"] != cell["answers"][PLAIN]["tokens"] for cell in cells
    ),
  }


def main(config: Config) -> None:
  report.check(config, "windows", "lengths", "nodes")
  if config.prompts is None:
    checks.refuse("prompts", None, "a file of questions with categories, such as Spec-Bench's")
  model = specjax.load(config.model, weights="float")
  _, loaded = load_head(model, parse_one("drafter", config.head))
  name, kind = loaded.head.name, type(loaded.config)
  if "window" not in {x.name for x in dataclasses.fields(kind)} or loaded.hit_rates is None:
    checks.refuse("head", config.head, "one with held-out rates whose config has a window")
  tree = [list(x) for x in best_first(np.asarray(loaded.hit_rates), config.nodes)]
  decoders = {PLAIN: specjax.Decoder(model)}
  for window in (None, *config.windows):
    head = HEADS[name][0](loaded.head.target, dataclasses.replace(loaded.config, window=window))
    shown = WHOLE if window is None else str(window)
    decoders[shown] = specjax.Decoder(model, (head, loaded.params), tree=tree)
  questions = asked(model, config)
  out = report.directory(config.out)
  same = {"model": model.label, "windows": config.windows, "nodes": config.nodes}
  same |= {"head": fingerprint.of_weights(loaded.params), "max_new_tokens": config.max_new_tokens}
  resume.claim(out, same | model.ingredients())
  log = out / "answers.jsonl"
  known = {(cell["asked"], cell["prompt"]): cell for cell in resume.kept(log)}
  cells = []
  each = [(length, *one) for length in sorted(config.lengths) for one in questions]
  for length, question, before in report.progress(each, "decoding"):
    ids = behind(model, question, before, length)
    key = length, fingerprint.digest(map(str, ids))
    if key not in known:
      cell = {"asked": length, "prompt": key[1], "length": len(ids)}
      cell["answers"] = answers(decoders, ids, config.max_new_tokens)
      known[key] = cell
      with log.open("a") as file:
        file.write(json.dumps(cell) + "\n")
    cells.append(known[key])
  rows = [
    row(length, name, [cell for cell in cells if cell["asked"] == length])
    for length in sorted(config.lengths)
    for name in decoders
    if name != PLAIN
  ]
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
