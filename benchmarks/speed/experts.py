"""What a mixture of experts costs for a number of rows, and how many experts they read.

    python benchmarks/speed/experts.py --model runs/experts/model --prompts gsm8k_test.jsonl

First one layer of random weights is timed by each way of running it, in turns. `taken` is the way
that the network takes, and all experts at once is a dense MLP as wide as all of them. With a model,
the experts that N consecutive tokens of its answers read are counted, too, and its pass over N
nodes is timed.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from specjax import command_line
from specjax.eval import prompts, report, table, timing, verify_cost
from specjax.eval.experts_read import by_chance, choices, experts_read
from specjax.models import experts
from specjax.models.config import Experts
from specjax.models.linear import linear


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  width: int = 768  # E, width of the layer
  expert_width: int = 384  # width of an expert
  experts: int = 16  # X, number of experts
  chosen: int = 2  # k, experts of a row
  rows: tuple[int, ...] = (1, 4, 16, 64, 512)  # numbers of rows of the layer
  model: str | None = None  # name or directory of a model with experts
  prompts: str | None = None  # file of prompts; our own questions by default
  limit: int = 16  # number of prompts
  max_new_tokens: int = 128  # tokens of an answer
  nodes: tuple[int, ...] = (1, 4, 8, 16)  # N of the model's passes
  repeats: int = 7  # timings; their median counts
  out: str = "results/experts"  # directory of the report


def all_at_once(x: Array, chosen: experts.Chosen, gate_up: Array, down: Array) -> Array:
  """A dense MLP of all experts, whose columns weigh what their expert does; [R, E]."""
  X, F = down.shape[0], down.shape[2]
  gate, up = jnp.split(linear(x, gate_up.reshape(-1, x.shape[1])).reshape(len(x), X, -1), 2, -1)
  share = (jax.nn.one_hot(chosen.expert, X) * chosen.weight[..., None]).sum(1)
  hidden = (nn.silu(gate) * up * share[..., None]).reshape(len(x), -1)
  return linear(hidden, down.transpose(1, 0, 2).reshape(-1, X * F))


WAYS: dict[str, Callable[..., Array]] = {
  "taken": experts.mixed, "one after the other": experts.one_after_the_other,
  "blocks of 32": functools.partial(experts.in_blocks, size=32),
  "blocks of 128": functools.partial(experts.in_blocks, size=128),
  "all at once": all_at_once, "ragged_dot": experts.grouped,
}  # fmt: skip


def layer(config: Config, count: int) -> dict[str, Any]:
  """The row of the table for one number of rows."""
  rng = np.random.default_rng(0)
  E, F, X = config.width, config.expert_width, config.experts

  def draw(*shape: int) -> Array:
    return jnp.asarray(rng.normal(size=shape) * 0.02, jnp.float32)

  gate_up, down = draw(X, 2 * F, E), draw(X, E, F)
  kind = Experts(X, config.chosen, F)
  chosen = experts.by_softmax(kind, jnp.asarray(rng.normal(size=(count, X)), jnp.float32))

  def loop(run: Callable[..., Array], times: int) -> Array:
    x = draw(count, E)
    for _ in range(times):
      x = run(x, chosen, gate_up, down)
    return x

  loops = [functools.partial(loop, jax.jit(way)) for way in WAYS.values()]
  seconds = np.median(timing.per_pass(loops, config.repeats), 0)
  times = {name: f"{1e3 * x:.2f}" for name, x in zip(WAYS, seconds, strict=True)}
  return {"rows": count, "experts read": len(np.unique(chosen.expert)), **times}


def read(config: Config, model: specjax.Model) -> list[dict[str, Any]]:
  """The table of a model: a row for each number of nodes."""
  items = prompts.read(config.prompts, model, config.max_new_tokens, config.limit)
  answers = specjax.Decoder(model, batch=len(items))([x.ids for x in items], config.max_new_tokens)
  texts = [[*x.ids, *r.tokens] for x, r in zip(items, answers, strict=True)]
  T = max(map(len, texts))
  tokens = jnp.asarray([text + [0] * (T - len(text)) for text in texts], jnp.int32)
  length = np.array([len(text) for text in texts])
  union = experts_read(model.config, model.params, tokens, length, config.nodes)
  sent = np.asarray(choices(model.config, model.params, tokens)).sum(-1)
  each = sent[:, np.arange(T)[None] < length[:, None]].mean()
  chance = by_chance(model.config.experts.count, each, config.nodes)
  cost = verify_cost.measure(
    model.target, model.params, 128, nodes=config.nodes, repeats=config.repeats
  )
  columns = config.nodes, union, chance, cost.seconds, cost.relative
  return [
    {
      "nodes": n,
      "experts read": f"{u:.2f} of {model.config.experts.count}",
      "by chance": f"{c:.2f}",
      "ms of a pass": f"{1e3 * s:.2f}",
      "passes over one": f"{times:.2f}",
    }
    for n, u, c, s, times in zip(*columns, strict=True)
  ]


def main(config: Config) -> None:
  names = ("width", "expert_width", "rows", "nodes", "limit", "max_new_tokens", "repeats")
  report.check(config, *names)
  Experts(config.experts, config.chosen, config.expert_width)
  model = None if config.model is None else specjax.load(config.model, weights="float")
  if model is not None and model.config.experts is None:
    raise ValueError(f"`model` must be a model with experts, got {config.model!r}.")
  report.directory(config.out)
  rows = [layer(config, count) for count in config.rows]
  text, found = "Milliseconds of a layer.\n\n" + table.markdown(rows), {"layer": rows}
  if model is not None:
    found["model"] = read(config, model)
    text += "\n\nExperts of a layer that a pass reads.\n\n" + table.markdown(found["model"])
  report.publish(config, found, text)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
