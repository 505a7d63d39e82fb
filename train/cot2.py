"""Teaches small models to solve a search in one step, in words, and in mixtures of words.

    python -m specjax.train.cot2 --out runs/cot2

CoT2, Gozeten et al. 2025, arXiv 2505.23648, on its task of minimum non-negative sums, see
`data.signed_sums`. Three models of one shape learn from the same problems for as many steps:
`none` says the answer at once, `discrete` after the partial sums of one best trace, and
`continuous` after as many mixtures, each the distribution of the partial sums of all traces (or of
the best `--traces`). All learn with the right thoughts before each step. The report has the share
of held-out problems that are answered rightly, where thoughts are a model's own: its likeliest
token, its whole distribution, or the mean of some draws (multi-token sampling). The same command
again continues a run that was killed.

Letters: R problems, M steps, V vocabulary.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Params
from specjax.data import signed_sums
from specjax.data.signed_sums import Examples
from specjax.eval import metrics, table
from specjax.models import continuous, transformer
from specjax.models.config import Config as Shape
from specjax.sampling import new_key, request_keys
from specjax.train.recipe import options, run
from specjax.train.recipe.config import Count, Natural, Network, Share, Training
from specjax.train.recipe.fit import batches, fit


@dataclasses.dataclass(frozen=True)
class Config:
  """Chains of thought of three kinds.

  Attributes:
    out: directory of checkpoints, metrics and report.json.
    numbers: how many numbers a problem has.
    largest: largest of them, from 1 on.
    problems: number of problems, of which there may be fewer.
    held_out: share of the problems on which the result is measured; orders of the same numbers stay
      together.
    traces: number of traces, the best, that a mixture follows; 0 for all.
    samples: numbers of draws that are averaged, for which chains are measured as well.
    network: shape of a model.
    training: options of the optimiser; a batch holds problems.
  """

  out: str
  numbers: Count = 4
  largest: Count = 10
  problems: Count = 10000
  held_out: Share = 0.2
  traces: Natural = 0
  samples: tuple[int, ...] = (1, 3, 8)
  network: Network = Network(width=32, layers=1, heads=1, kv_heads=1, head_dim=32, mlp_width=128)
  training: Training = Training(steps=2000, batch=256, rate=3e-3, warmup=100, save_every=1000)


def entropy(shape: Shape, params: Params, rows: Examples) -> Array:
  """f32[], the cross-entropy of the steps' distributions in nats, in the mean."""
  target = jnp.asarray(rows.target)
  logits = continuous.taught(shape, params, jnp.asarray(rows.tokens), target[:, :-1])
  return -(target * jax.nn.log_softmax(logits)).sum(-1).mean()


def right(
  shape: Shape, params: Params, rows: Examples, choose: continuous.Choose, seed: int
) -> tuple[int, int]:
  """(problems answered rightly with the model's own thoughts, problems)."""
  R, M, _ = rows.target.shape
  read = jax.jit(lambda params, tokens, keys: continuous.think(
    shape, params, tokens, M, choose, keys)[:, -1])  # fmt: skip
  said = read(params, jnp.asarray(rows.tokens), request_keys(seed, np.arange(R)))
  return int((np.asarray(said).argmax(-1) == rows.target[:, -1].argmax(-1)).sum()), R


@run.on_mesh
def main(config: Config) -> None:
  out, seed = run.begin(config), config.training.seed
  draws = {count: continuous.drawn(count) for count in config.samples}
  some = signed_sums.problems(config.numbers, config.largest, config.problems, seed)
  train, held_out = signed_sums.split(some, config.held_out, seed)
  size = signed_sums.vocabulary(config.numbers, config.largest)
  shape = Shape(vocab_size=size, **config.network.sizes, max_length=2 * config.numbers)
  continuous.check(shape)
  followed = {"none": 0, "discrete": 1, "continuous": config.traces or 2**config.numbers}
  run.claim(out, config, (train, held_out))
  print(f"{len(train)} problems to train on, {len(held_out)} held out.")
  begin = transformer.init(shape, new_key(seed))
  found = {}

  def measured(name: str, params: Params, asked: Examples, choose: continuous.Choose) -> None:
    rights, of = right(shape, params, asked, choose, seed)
    interval = metrics.wilson_interval(rights, of)
    found[name] = table.estimate(100 * rights / of, [100 * x for x in interval])

  for name, count in followed.items():
    rows, asked = (signed_sums.examples(x, config.largest, count) for x in (train, held_out))
    (out / name).mkdir(exist_ok=True)
    params = fit(
      lambda params, _, rows, key: (entropy(shape, params, rows), {}),
      begin,
      batches(rows, config.training),
      config.training,
      out / name,
    )
    usual = continuous.likeliest if name == "discrete" else continuous.whole
    measured(name, params, asked, usual)
    for draw, choose in draws.items() if count else ():
      measured(f"{name}, {draw} drawn", params, asked, choose)
  weights = sum(x.size for x in jax.tree.leaves(begin))
  run.report(out, {"parameters": weights, "held out": len(held_out), "right %": found})


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.cot2"))
