r"""What a trained choice of MLPs is worth: beside one at random of the same budget, and an oracle.

    python benchmarks/quality/routing.py --prompts gsm8k_test.jsonl --skipping "duo[runs/duo/model]"

Duo-LLM (Alizadeh et al. 2024, arXiv 2410.10846) asks how far a router is from the best choice.
Nats are the cross-entropy of the records' answers, in two ways: "text", where every token of an
answer is read so, and "token", where one token is, and the whole model read all before it. Only the
second leaves a token's choice alone, so that an oracle can be found: of patterns of a module for
each layer, drawn within the budget of the router, it takes for every token the one that finds the
next token likeliest. It knows that token, and is a bound. "One pattern" is the best of the same for
all tokens at once, of these very texts.

Letters: B rows, T row length, L layers, R patterns.
"""

import dataclasses
import functools
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from specjax import checks, command_line
from specjax.base import Params
from specjax.data.packing import PackedRows
from specjax.eval import prompts, report, table
from specjax.models import transformer
from specjax.models.config import Config as Network
from specjax.models.layers import of_layer
from specjax.models.rotary import angles_of_layers
from specjax.models.skipping.duo import DUO, SMALL
from specjax.sampling import new_key
from specjax.train.duo import Choice, always, at_random, by, routed
from specjax.train.recipe.reading import loss_of, of_records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared."""

  skipping: str = "duo[runs/duo/model]"
  patterns: int = 64  # R
  limit: int | None = 20
  seed: int = 0
  out: str = "results/routing"


class Cell(NamedTuple):
  """A row of the table: the share read, and the nats where a text or a token alone is so read."""

  choice: str
  share: float
  text: float | None
  token: float


def alone(
  network: Network, params: Params, rows: PackedRows, choice: Choice
) -> tuple[Array, Array]:
  """(nats f32[B, T] of the token after each, the share f32[B, T] it reads), each token for itself.

  All tokens before it are read by the whole model.
  """
  lm, tokens = transformer.target(network), jnp.asarray(rows.tokens)
  B, T = tokens.shape
  before, _ = lm.prefill(params, tokens, jnp.full(B, T, jnp.int32), T)
  earlier, own = jnp.tril(jnp.ones((T, T), bool), -1), jnp.eye(T, dtype=bool)
  mask = jnp.broadcast_to(jnp.concatenate([earlier, own], 1), (B, T, 2 * T))
  angle, mlp = angles_of_layers(network, jnp.asarray(rows.position)), by(network.layers, choice).mlp
  x, shares = lm.embed(params, tokens), []
  for i in range(network.layers):
    block, weights = of_layer(network, i), params["params"][f"layer_{i}"]
    kv = before.kv.k[i], before.kv.v[i]
    heard: Any = block.apply({"params": weights}, x, angle[i], mask, None, kv, method="attended")
    y, _, _ = heard
    added, share = mlp(params, i, block, y)
    x = y + added
    shares.append(share)
  log_p = jax.nn.log_softmax(lm.head(params, lm.norm(params, x)))
  after = jnp.roll(tokens, -1, 1)  # what the last one gets is never asked
  nats = -jnp.take_along_axis(log_p, after[..., None], 2)[..., 0]
  return nats, jnp.stack(shares).mean(0)


def within(budget: float, cost: np.ndarray, layers: int, count: int, seed: int) -> np.ndarray:
  """`count` patterns i[R, L] of modules that read up to the `budget`, and nearly all of it.

  Args:
    cost: f[3], the share that each module reads.
  """
  rng = np.random.default_rng(seed)
  drawn = np.unique(rng.integers(3, size=(20000, layers)), axis=0)
  read = cost[drawn].mean(1)
  fit = rng.permutation(drawn[read <= budget + 1e-6])
  near = np.argsort(budget - cost[fit].mean(1), kind="stable")[: 4 * count]
  return fit[rng.permutation(near)[:count]]


def main(config: Config) -> None:
  checks.whole("patterns", config.patterns, 1)
  model = specjax.load(config.model, weights="float", skipping=config.skipping)
  if DUO not in model.params:
    checks.refuse("skipping", config.skipping, "duo[DIRECTORY]")
  ids, _ = config.with_numbers(model)
  report.directory(config.out)
  assert config.prompts is not None
  rows, L = of_records(model, config.prompts, len(ids)), model.config.layers
  asked = np.pad(rows.mask[:, 1:], ((0, 0), (0, 1)))
  key = new_key(config.seed)
  gates: list[Array] = []

  def noted(layer: int, log_p: Array) -> Array:
    gates.append(routed(layer, log_p))
    return gates[-1]

  loss_of(model.config, model.params, rows, by(L, noted))
  chances = jnp.stack([jnp.asarray(np.asarray(gate)[asked].mean(0)) for gate in gates])
  cost = np.array([0, model.params[DUO]["layer_0"]["small_down"].shape[1], model.config.mlp_width])
  cost = cost / model.config.mlp_width
  budget = float((np.asarray(chances) @ cost).mean())

  def sure(pattern: Array) -> Choice:
    return at_random(key, jax.nn.one_hot(pattern, 3))

  of_pattern = jax.jit(lambda params, x: alone(model.config, params, rows, sure(x))[0])
  patterns = within(budget, cost, L, config.patterns, config.seed)
  found = [
    np.asarray(of_pattern(model.params, x))[asked] for x in report.progress([*patterns], "patterns")
  ]
  each = np.stack(found)
  best = int(each.mean(1).argmin())
  ways: dict[str, Choice] = {
    "the router": routed, "at random, each layer as often as the router": at_random(key, chances),
    "at random, all layers alike": at_random(key, chances.mean(0)),
    "always the small one": always(SMALL),
    f"one pattern, the best of {len(patterns)}": sure(patterns[best]),
  }  # fmt: skip
  whole, _ = loss_of(model.config, model.params, rows, None)
  cells: list[Cell] = [Cell("the whole model", 1.0, float(whole), float(whole))]
  for name, choice in ways.items():
    together = functools.partial(loss_of, model.config, chosen=by(L, choice))
    apart = functools.partial(alone, model.config, choice=choice)
    text, shares = jax.jit(together)(model.params, rows=rows)
    nats, _ = jax.jit(apart)(model.params, rows=rows)
    token = float(np.asarray(nats)[asked].mean())
    cells.append(Cell(name, float(shares.mean()), float(text), token))
  read, token = float(cost[patterns][each.argmin(0)].mean()), float(each.min(0).mean())
  cells.append(Cell(f"an oracle over {len(patterns)} patterns", read, None, token))
  shown = [
    {
      "choice": cell.choice,
      "MLPs read %": f"{100 * cell.share:.0f}",
      "nats, text": "-" if cell.text is None else f"{cell.text:.2f}",
      "nats, token": f"{cell.token:.2f}",
    }
    for cell in cells
  ]
  figures = {
    "choices": [cell._asdict() for cell in cells],
    "chances": np.round(np.asarray(chances, np.float64), 3).tolist(),
    "pattern": patterns[best].tolist(), "tokens": int(asked.sum()),
  }  # fmt: skip
  report.publish(config, figures, table.markdown(shown))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
