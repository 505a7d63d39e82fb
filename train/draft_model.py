"""Cuts a small draft model out of a target and trains it on the target's answers.

    python -m specjax.train.draft_model --model smollm2-135m --data prompts.jsonl --out runs/small

The draft model has the target's embedding, LM head and tokenizer, which stay as they are, and some
of its layers, which learn the target's distribution of the next token (DistillSpec, Zhou et al.
2023, arXiv 2310.08461, section 3, with the forward divergence on the target's own text). The same
command again continues a run that was killed. `--drafter draft_model[runs/small/model]` drafts
with it.

With `--exit-every 1` every layer is an exit that learns, and `draft_model[runs/small/model]/sorted`
drafts by the first that is sure (S2D, Kavehzadeh et al. 2024, arXiv 2407.01955).

With `--boost runs/small/model` it learns the tokens that this other draft model of the target gets
wrong, and `draft_model[runs/small/model]+draft_model[runs/second/model]` drafts with both (boost
tuning, SpecInfer, Miao et al. 2023, arXiv 2305.09781, section 3, where whole texts are left out).

Letters: B rows of a batch, T row length, M positions of a row, E width.
"""

import dataclasses
import pathlib
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax import distributed
from specjax.base import Params
from specjax.checkpoints import hf
from specjax.data.packing import PackedRows
from specjax.models.config import Config as Network
from specjax.models.exits import exits_of
from specjax.models.transformer import Transformer
from specjax.names.build.drafters import sharing
from specjax.names.load import Model, load
from specjax.train.recipe import answers, forward, labels, losses, means, options, run
from specjax.train.recipe.config import Count, Natural
from specjax.train.recipe.features import compute
from specjax.train.recipe.fit import fit, shuffled
from specjax.trees.structure import gather

FROZEN = ("embedding", "lm_head")  # of the target


@dataclasses.dataclass(frozen=True)
class Config(answers.AnswersConfig):
  """A draft model for a target.

  Attributes:
    keep: number of layers, taken from the target at equal distances, the first and the last among
      them.
    features: directory of hidden states, made where it is absent. By default in `out`.
    points: M, number of positions of a row from which the next token is learned.
    boost: zoo name or directory of a draft model; tokens that it guesses are not learned.
    exit_every: exits lie behind every so many layers and learn as the last one does; 0 trains none.
  """

  keep: Count = 3
  exit_every: Natural = 0
  features: str | None = None
  points: Count = 128
  boost: str | None = None


class Batch(NamedTuple):
  """A step's examples: rows [B, T], positions whose next token is learned, the target's states."""

  rows: PackedRows
  at: np.ndarray  # i32[B, M]
  weight: np.ndarray  # f32[B, M], 0 where a row has fewer positions
  hidden: np.ndarray  # [B, M, E]


def cut(config: Network, params: Params, keep: int) -> tuple[Network, Params]:
  """The network of `keep` layers of a target, and its weights.

  Raises:
    ValueError: the target does not have so many layers.
  """
  if not 1 <= keep < config.layers:
    raise ValueError(
      f"`keep` must be between 1 and {config.layers - 1}, fewer than the target's layers, got "
      f"{keep}."
    )
  kept = np.linspace(0, config.layers - 1, keep).round().astype(int) if keep > 1 else [0]
  own = params["params"]
  layers = {f"layer_{i}": own[f"layer_{k}"] for i, k in enumerate(kept)}
  rest = {name: x for name, x in own.items() if not name.startswith("layer_")}
  return dataclasses.replace(config, layers=keep), {"params": rest | layers}


def loss_of(
  network: Transformer, params: Params, batch: Batch, exits: tuple[int, ...] = ()
) -> tuple[Array, dict[str, Array]]:
  """Divergence from the target's distribution, in nats, and the share of equal best tokens.

  The divergence is the mean over the `exits`, numbers of layers (static), and the whole network,
  whose share it is.
  """
  behind = forward.read(network, params, batch.rows, (*exits, network.config.layers)).hidden_layers
  weight = jnp.asarray(batch.weight).reshape(-1)

  @jax.checkpoint
  def compare(stream: Array, target: Array) -> tuple[Array, Array]:
    states = network.apply(params, stream, method="final_norm")
    said, wanted = (
      jnp.asarray(network.apply(params, x, method="head")).reshape(len(weight), -1)
      for x in (states, target.astype(stream.dtype))
    )
    same = (said.argmax(-1) == wanted.argmax(-1)).astype(jnp.float32)
    apart = optax.losses.kl_divergence(jax.nn.log_softmax(said), jax.nn.softmax(wanted))
    return losses.mean(apart, weight), losses.mean(same, weight)

  target = jnp.asarray(batch.hidden)
  each = [compare(gather(stream, jnp.asarray(batch.at)), target) for stream in behind]
  loss = jnp.stack([apart for apart, _ in each]).mean()
  return loss, {"agreement": each[-1][1]}


def guessed(model: Model, other: Model, rows: PackedRows, hidden: np.ndarray) -> np.ndarray:
  """Where another model's best next token is the target's: bool[R, T].

  Args:
    hidden: [R, T, E], the target's states.

  Raises:
    ValueError: the other model has another vocabulary.
  """
  sharing(model, other, f"boost={other.name!r}")
  if other.config.vocab_size != model.config.vocab_size:
    raise ValueError(
      f"`boost` must have the target's {model.config.vocab_size} tokens, got {other.name!r} with "
      f"{other.config.vocab_size}."
    )
  small, large = Transformer(other.config), Transformer(model.config)

  @jax.jit
  def same(own: Params, params: Params, part: PackedRows, target: Array) -> Array:
    states = forward.read(small, own, part).hidden
    said, wanted = (
      jnp.asarray(network.apply(weights, x, method="head")).argmax(-1)
      for network, weights, x in ((small, own, states), (large, params, target))
    )
    return said == wanted

  found = [
    same(other.params, model.params, part, jnp.asarray(hidden[i : i + 1], jnp.float32))
    for i, _, part in forward.parts(rows, 1, "tokens that the other model guesses")
  ]
  return np.concatenate([np.asarray(x) for x in found])


@run.on_mesh
def main(config: Config) -> None:
  out, training = run.begin(config), config.training
  model = answers.teacher(config.model, causal=True, template=config.template)
  other = None if config.boost is None else load(config.boost, weights="float")
  small, params = cut(model.config, model.params, config.keep)
  exits = exits_of(config.keep, config.exit_every) if config.exit_every else ()
  labels.check_length(config.length, *([] if other is None else [other]))
  found = answers.asked(model, config)
  key = {} if other is None else other.ingredients("boost")
  run.claim(out, config, answers.content(found), model.ingredients() | key)
  documents = answers.parts(answers.answered(model, found, config), config.held_out)
  directory = pathlib.Path(config.features or out / "features")

  def examples(part: list, name: str):
    rows = labels.packed(name, part, config.length)
    hidden = compute(model, rows, (), directory / name).hidden
    # The state before a trained token predicts it.
    learned = np.pad(rows.mask[:, 1:], ((0, 0), (0, 1)))
    if other is not None:
      learned = learned & ~guessed(model, other, rows, hidden)
      labels.counted(name, learned, f" that {other.name} does not guess")
    useful = [np.flatnonzero(row) for row in learned]

    def batch(chosen: np.ndarray, step: int) -> Batch:
      rng = np.random.default_rng([training.seed, step])
      place, weight = (
        np.zeros((len(chosen), config.points), kind) for kind in (np.int32, np.float32)
      )
      for b, r in enumerate(chosen):
        count = min(config.points, len(useful[r]))
        place[b, :count] = np.sort(rng.choice(useful[r], count, replace=False))
        weight[b, :count] = 1
      some = PackedRows(*(x[chosen] for x in rows))
      return Batch(some, place, weight, np.asarray(hidden[chosen[:, None], place]))

    return rows, batch, learned.sum() / rows.mask.sum()

  (rows, batch, left), (held_out, of_held_out, _) = (
    examples(part, name) for name, part in documents.items()
  )
  network, order = Transformer(small), shuffled(len(rows.tokens), training, again=True)
  frozen = {name: x for name, x in params["params"].items() if name in FROZEN}
  layers = {name: x for name, x in params["params"].items() if name not in FROZEN}

  def loss(trained, frozen, batch: Batch, key):
    return means.over(batch.weight, loss_of(network, {"params": trained | frozen}, batch, exits))

  trained = fit(loss, layers, lambda i: batch(order(i), i), training, out, frozen=frozen)
  params = {"params": jax.device_get(trained) | jax.device_get(frozen)}
  measure = jax.jit(lambda params, batch: loss_of(network, params, batch)[1]["agreement"])
  parts = [of_held_out(np.array([r]), training.steps) for r in range(len(held_out.tokens))]
  counts = np.array([part.weight.sum() for part in parts])
  agreed = np.array([float(measure(params, part)) for part in parts])
  run.report(
    out,
    {
      "layers": config.keep,
      "trained_parameters": optax.tree.size(trained),
      "left": round(float(left), 4),
      "agreement": round(float((agreed * counts).sum() / counts.sum()), 4),
    },
  )
  if distributed.first():
    hf.save(
      out / "model",
      small,
      params,
      model.tokenizer,
      template=model.template,
      stop=model.stop,
      start=model.start,
    )


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.draft_model"))
