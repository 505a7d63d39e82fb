r"""How many positions a second an EAGLE-3 head trains on, for a random target.

    python benchmarks/speed/head_training.py

A step is the gradient and AdamW's update of the head, at some positions of each text. The target's
pass over the texts, which the trainer makes once and keeps, is timed apart.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specjax import checks, command_line
from specjax.data.packing import PackedRows
from specjax.eval import report, table, timing
from specjax.eval.random_model import SIZES, Size, random_weights
from specjax.heads.base import Examples
from specjax.heads.eagle3 import Eagle3Config, eagle3
from specjax.models import transformer
from specjax.sampling import new_key
from specjax.train.recipe import forward
from specjax.train.recipe.config import Training
from specjax.train.recipe.draft_positions import Batch, Objective

ON_CPU = jax.default_backend() == "cpu"


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  size: Size = "134m" if ON_CPU else "8b"  # of the target
  dtype: str = "float32" if ON_CPU else "bfloat16"  # dtype of the target; the head has float32
  draft_vocab: int = 32000  # W', number of tokens among which the head guesses, at most all
  depth: int = 5  # D, how far ahead the head guesses
  batch: int = 4  # B, rows of a step
  length: int = 1024  # T, tokens of a row
  points: int = 128  # M, positions of a row from which the head drafts
  repeats: int = 5  # timings; their median counts
  out: str = "results/head_training"  # directory of the report


def random_rows(config: Config, vocab_size: int) -> PackedRows:
  """One text in every row."""
  shape = config.batch, config.length
  tokens = np.random.default_rng(0).integers(0, vocab_size, shape, np.int32)
  position = np.broadcast_to(np.arange(config.length, dtype=np.int32), shape)
  return PackedRows(tokens, position, np.zeros(shape, np.int32), np.ones(shape, bool))


def main(config: Config) -> None:
  report.check(config, "draft_vocab", "depth", "batch", "length", "points", "repeats")
  room = config.length - config.depth - 1  # every position has a token at each depth
  checks.whole("points", config.points, 1, room)
  model = dataclasses.replace(SIZES[config.size], max_length=config.length)
  target, network = transformer.target(model), transformer.Transformer(model)
  head = eagle3(target, Eagle3Config(depth=config.depth))
  report.directory(config.out)
  frozen = random_weights(model, config.dtype)
  vocabulary = np.arange(min(config.draft_vocab, model.vocab_size))
  whole = jax.jit(head.init)(new_key(1), frozen, vocabulary)
  whole = whole | {"params": jax.tree.map(lambda x: x.astype(jnp.float32), whole["params"])}
  rows = random_rows(config, len(vocabulary))
  at = np.linspace(0, room - 1, config.points).astype(np.int32)
  at = np.broadcast_to(at, (config.batch, config.points))
  later = at[:, :, None] + np.arange(2, config.depth + 2)
  labels = np.take_along_axis(rows.tokens, later.reshape(config.batch, -1), 1).reshape(later.shape)
  read = jax.jit(functools.partial(forward.read, network, hidden_layers=head.hidden_layers))
  tokens, position, segment, points = map(jnp.asarray, (*rows[:3], at))
  examples = Examples(tokens, position, segment, read(frozen, rows), points)
  batch = Batch(examples, labels, np.ones(labels.shape, bool))
  objective, optimizer = Objective(head, vocabulary), Training().transformation()
  state = whole["params"], jax.jit(optimizer.init)(whole["params"])

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, frozen, batch):
    def loss(trained):
      return objective.loss(whole | {"params": trained}, frozen, batch, head.loss)[0]

    grads = jax.grad(loss)(state[0])
    updates, moments = optimizer.update(grads, state[1], state[0])
    return optax.apply_updates(state[0], updates), moments

  def steps(count: int):
    nonlocal state  # every step gives its buffers to the next
    for _ in range(count):
      state = step(state, frozen, batch)
    return state

  def reads(count: int):
    return [read(frozen, rows) for _ in range(count)]

  seconds = dict(
    zip(
      ("the head's step", "the target's pass"),
      np.median(timing.per_pass([steps, reads], config.repeats), 0).tolist(),
      strict=True,
    )
  )
  positions = config.batch * config.points
  found = {"seconds": seconds, "positions_per_second": positions / seconds["the head's step"],
           "tokens_per_second": config.batch * config.length / seconds["the target's pass"],
           "head_parameters": optax.tree.size(whole["params"])}  # fmt: skip
  lines = [{"part": name, "ms": f"{1e3 * each:.1f}"} for name, each in seconds.items()]
  text = (
    f"{table.markdown(lines)}\n\nThe head of {found['head_parameters'] / 1e6:.1f}M parameters "
    f"trains on {found['positions_per_second']:.0f} positions a second, {config.depth} tokens "
    f"ahead of each, in texts of {config.length} tokens; the target reads "
    f"{found['tokens_per_second']:.0f} tokens a second."
  )
  report.publish(config, found, text)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
