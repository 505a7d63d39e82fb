"""Trains a small model to say several tokens in one pass, from masks: a draft model of PARD.

    python -m specjax.train.pard --model gsm8k-7m --start small/model --data q.jsonl --out runs/pard

An et al. 2025, arXiv 2504.18583. A whole model that exists, of the target's vocabulary, goes on
learning from the target's answers by cross-entropy: the next token at every place, and behind each
place also the tokens after it, from masks. By conditional drop most of the later masks are left
out: mask i stands behind a share `kept` ** i of the places, but no fewer than `least`, and a place
that has it has those before it. The result is a directory as the paper's own program reads it, and
`--drafter "draft_model-8[runs/pard/model]/masks"` drafts with it. The same command again continues
a run that was killed.

Letters: B rows, T row length, D depth, X masks of a row, R = T + X.
"""

import dataclasses
import functools
import math
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, distributed
from specjax.base import Params
from specjax.checkpoints import hf
from specjax.data.packing import PackedRows
from specjax.models.transformer import Transformer, attention_mask
from specjax.names.build.drafters import sharing
from specjax.names.load import load
from specjax.sampling import new_key
from specjax.train.recipe import answers, forward, labels, losses, means, options, run
from specjax.train.recipe.config import Count, Share, Training
from specjax.train.recipe.fit import batches, fit
from specjax.trees.structure import gather


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(answers.AnswersConfig):
  """A draft model that is trained on.

  Attributes:
    start: zoo name or directory of the small model; its vocabulary must be the target's.
    depth: D, number of tokens that are learned in one pass; all masks are alike, so that a longer
      draft may be asked for.
    kept: share of the places behind a mask that have one more; 1 drops none.
    least: share of the places that have every mask.
    mask: id of the mask, a token that texts do not have; by default the last of the vocabulary.
  """

  start: str
  depth: Count = 8
  kept: Share = 0.7
  least: Share = 0.2
  mask: int | None = None
  training: Training = Training(steps=400, batch=4, rate=3e-4, warmup=20)


class Layout(NamedTuple):
  """Which masks a row has: number i of each, from 1, and the rank i32[X] of its place."""

  number: np.ndarray
  rank: np.ndarray


def laid_out(length: int, depth: int, kept: float, least: float) -> Layout:
  """The masks of conditional drop behind the `length` places of a row, by rising number."""
  counts = [math.ceil(length * max(kept**i, least)) for i in range(1, depth)]
  number = np.repeat(np.arange(1, depth, dtype=np.int32), counts)
  rank = np.concatenate([np.arange(n, dtype=np.int32) for n in counts] or [number])
  return Layout(number, rank)


class Said(NamedTuple):
  """f32[B, R] of the places and then the masks: nats, whether the best guess is right, weight."""

  nats: Array
  right: Array
  weight: Array


def said(
  network: Transformer, params: Params, rows: PackedRows, keys: Array, layout: Layout, mask: int
) -> Said:
  """One pass over rows [B, T] and the masks behind places that keys [B] draw.

  A place sees the text up to itself. A mask sees what its place sees, the masks of that place
  before it, and itself.
  """
  tokens, position, segment, trained = map(jnp.asarray, rows)
  (B, T), X = tokens.shape, len(layout.number)
  number, rank = jnp.asarray(layout.number), jnp.asarray(layout.rank)
  order = jnp.argsort(jax.vmap(lambda key: jax.random.uniform(key, (T,)))(keys), axis=1)
  place = jnp.broadcast_to(order.astype(jnp.int32)[:, rank], (B, X))
  own = (rank[:, None] == rank[None]) & (number[None] <= number[:, None])
  text = attention_mask(segment, causal=True)
  sees = jnp.concatenate(
    [
      jnp.pad(text, ((0, 0), (0, 0), (0, X))),
      jnp.concatenate([gather(text, place), jnp.broadcast_to(own, (B, X, X))], 2),
    ],
    1,
  )

  def of_each(x: Array) -> Array:
    """What each place and each mask has of its place: [B, T] -> [B, R]."""
    return jnp.concatenate([x, gather(x, place)], 1)

  later = jnp.concatenate([jnp.zeros(T, jnp.int32), number])[None]
  following = of_each(jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))) + later + 1
  there = jnp.minimum(following, T - 1)
  weight = (following < T) & gather(trained, there) & (gather(segment, there) == of_each(segment))
  read = jnp.concatenate([tokens, jnp.full((B, X), mask, jnp.int32)], 1)
  hidden = network.apply(params, read, of_each(position) + later, sees)[0]
  logits = jnp.asarray(network.apply(params, hidden, method="head"))
  log_p, wanted = jax.nn.log_softmax(logits), gather(tokens, there)
  nats = -jnp.take_along_axis(log_p, wanted[..., None], -1)[..., 0]
  right = logits.argmax(-1) == wanted
  return Said(nats, right.astype(jnp.float32), weight.astype(jnp.float32))


@run.on_mesh
def main(config: Config) -> None:
  out, training = run.begin(config), config.training
  model = answers.teacher(config.model, causal=True, template=config.template)
  small = load(config.start, weights="float")
  sharing(model, small, f"start={config.start!r}")
  V = small.config.vocab_size
  mask = V - 1 if config.mask is None else checks.whole("mask", config.mask, 0, V - 1)
  labels.check_length(config.length, model, small)
  found = answers.asked(model, config)
  run.claim(out, config, answers.content(found), model.ingredients() | small.ingredients("start"))
  documents = answers.parts(answers.answered(model, found, config), config.held_out)
  rows, held_out = (labels.packed(name, part, config.length) for name, part in documents.items())
  network, T = Transformer(small.config), config.length
  layout = laid_out(T, config.depth, config.kept, config.least)
  print(f"A row of {T} tokens has {len(layout.number)} masks of {T * (config.depth - 1)}.")
  if small.tokenizer is not None and (text := small.tokenizer.inner.id_to_token(mask)):
    print(f"The mask is token {mask}, {text!r}: texts that have it are drafted worse.")

  def loss(params, frozen, batch: tuple[PackedRows, Array], key):
    found = said(network, params, *batch, layout, mask)
    mean = losses.mean(found.nats, found.weight), {"right": losses.mean(found.right, found.weight)}
    return means.over(found.weight, mean)

  def drawn(rows: PackedRows, key: Array) -> tuple[PackedRows, Array]:
    return rows, means.row_keys(key, training.batch)

  batch = batches(rows, training, again=True)
  params = jax.device_get(fit(loss, small.params, batch, training, out, draw=drawn))
  whole = laid_out(T, config.depth, 1.0, 1.0)
  measure = jax.jit(functools.partial(said, network, layout=whole, mask=mask))
  right, count = np.zeros(config.depth), np.zeros(config.depth)
  for _, _, row in forward.parts(held_out, 1, "held-out answers"):
    one = measure(params, rows=row, keys=new_key(0)[None])
    for sums, x in ((right, one.right * one.weight), (count, one.weight)):
      sums += np.asarray(x).reshape(config.depth, T).sum(1)
  run.report(
    out,
    {
      "held_out": (right / np.maximum(count, 1)).round(4).tolist(),
      "rows_of_a_place": round(1 + len(layout.number) / T, 3),
      "mask": int(mask),
    },
  )
  if distributed.first():
    hf.save(
      out / "model",
      small.config,
      params,
      small.tokenizer,
      template=small.template,
      stop=small.stop,
      start=small.start,
      mask=mask,
    )


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.pard"))
