"""Answers in given texts, read by a network whose layers leave tokens out.

All layers read the question of a record, and those of a `Skipping` or of routers its answer.

Letters: B rows, T row length, V vocabulary, L layers.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax.base import Params
from specjax.data.packing import PackedRows, pack
from specjax.data.sources import open_source
from specjax.models import transformer
from specjax.models.config import Config as Network
from specjax.models.layers import of_layer
from specjax.models.rotary import angles_of_layers
from specjax.models.skipping import Skipping
from specjax.models.skipping.base import MLP, whole
from specjax.models.skipping.first import Routers, probability
from specjax.names.load import Model
from specjax.train.recipe import answers, labels, losses, means, run
from specjax.train.recipe.config import Amount, Count, Length, Share, Training
from specjax.train.recipe.texts import Document


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """The options of a trainer of layers that leave tokens out.

  Attributes:
    keep: the share that should be read of an answer's layers, or of their MLPs' parameters.
    penalty: weight of the squared distance to `keep`.
    answer_field: name of the answer in a record.
    held_out: number of questions, the first, on which the result is measured.
    length: T, number of tokens of a row, which holds one record.
  """

  keep: Share = 0.75
  penalty: Amount = 20.0
  answer_field: str = "answer"
  held_out: Count = 100
  length: Length = 256
  training: Training = Training(steps=300, batch=4, rate=1e-3, save_every=100)


def one_each(documents: Sequence[Document], length: int) -> PackedRows:
  """A row for each document (ids, mask), cut to `length` T."""
  return PackedRows(*map(np.concatenate, zip(*(pack([x], length) for x in documents), strict=True)))


def of_records(model: Model, data: str, count: int) -> PackedRows:
  """A row for each of the first `count` records of a file, with `question` and `answer`."""
  template, tokenizer = model.template, model.tokenizer
  assert template is not None and tokenizer is not None
  source, documents = open_source(data), []
  for record in (source[i] for i in range(count)):
    texts = zip(("user", "assistant"), (record["question"], record["answer"]), strict=True)
    turns = [{"role": role, "content": text} for role, text in texts]
    documents.append(template.encode(tokenizer, turns))
  return one_each(documents, max(len(ids) for ids, _ in documents))


def claimed(model: Model, config: Config, out: pathlib.Path) -> tuple[PackedRows, PackedRows]:
  """(rows to train on, those held out) of the records, once the run's directory is tied to them."""
  labels.check_length(config.length, model)
  documents, cut = answers.given(model, config, config.answer_field), config.held_out
  answers.check_held_out(cut, len(documents))
  train, held_out = (
    labelled(labels.packed(part, some, config.length, one_each))
    for part, some in ((labels.TRAIN, documents[cut:]), (labels.HELD_OUT, documents[:cut]))
  )
  answers.check_batch(config.training.batch, len(train.tokens))
  run.claim(out, config, [ids for ids, _ in documents], model.ingredients())
  return train, held_out


def labelled(rows: PackedRows) -> PackedRows:
  """The rows that have a label."""
  return PackedRows(*(x[rows.mask.any(1)] for x in rows))


def read(
  network: Network, params: Params, rows: PackedRows, chosen: Skipping | Routers | None
) -> tuple[Array, Array]:
  """(logits f32[B, T, V], the share f32[B, L] of each layer's MLP that an answer's token reads).

  Args:
    rows: a document in each.
    chosen: what skips layers; None is nothing. A layer of routers runs whole or not at all.
  """
  lm = transformer.target(network)
  position = jnp.asarray(rows.position)
  angle = angles_of_layers(network, position)
  mask = transformer.attention_mask(jnp.asarray(rows.segment), True)
  trained = jnp.asarray(rows.mask)
  begun = jnp.cumsum(trained, 1) > 0
  later = jnp.pad(begun[:, 1:], ((0, 0), (0, 1)), mode="edge")  # the last of the question too
  asked = jnp.pad(trained[:, 1:], ((0, 0), (0, 1))).astype(jnp.float32)  # a token follows it
  gates = jnp.ones((*trained.shape, network.layers))
  mlp: MLP = whole
  if isinstance(chosen, Skipping):
    state = chosen.start(params, (), (~begun).sum(1).astype(jnp.int32))
    gates = chosen.runs(state, position).astype(jnp.float32)
    mlp = chosen.mlp
  x, every = lm.embed(params, jnp.asarray(rows.tokens)), []
  for i in range(network.layers):
    gate, block = gates[:, :, i], of_layer(network, i)
    if isinstance(chosen, Routers):
      p = probability(chosen, i, x, ~later)
      one = (p >= 0.5).astype(p.dtype) + p - jax.lax.stop_gradient(p)
      gate = jnp.broadcast_to(one[:, None], gate.shape)
    own = {"params": params["params"][f"layer_{i}"]}
    heard: Any = block.apply(own, x, angle[i], mask, None, method="attended")
    y, _, _ = heard
    read_whole = whole(params, i, block, y)
    added, share = read_whole if mlp is whole else mlp(params, i, block, y)
    after = y + jnp.where(later[..., None], added, read_whole[0])
    x = x + jnp.where(later, gate, 1)[..., None] * (after - x)
    every.append((gate * share * asked).sum(1) / jnp.maximum(asked.sum(1), 1))
  return lm.head(params, lm.norm(params, x)), jnp.stack(every, 1)


def loss_of(
  network: Network, params: Params, rows: PackedRows, chosen: Skipping | Routers | None
) -> tuple[Array, Array]:
  """(cross-entropy of the answers in nats, the shares f32[B, L] of `read`)."""
  logits, shares = read(network, params, rows, chosen)
  after = jnp.asarray(rows.tokens)[:, 1:]
  each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], after)
  weight = jnp.asarray(rows.mask)[:, 1:].astype(jnp.float32)
  return losses.mean(each.reshape(-1), weight.reshape(-1)), shares


def terms(
  network: Network, params: Params, rows: PackedRows, chosen: Skipping | Routers | None
) -> dict[str, means.Mean]:
  """The `entropy` of `loss_of`, and the share that is `kept` in all answers' tokens and layers."""
  nats, shares = loss_of(network, params, rows, chosen)
  weight = jnp.asarray(rows.mask)[:, 1:].astype(jnp.float32)
  kept = losses.mean(shares.mean(1), weight.sum(1))
  return means.over(weight, {"entropy": nats, "kept": kept})


def penalised(config: Config) -> means.Total:
  """The loss: the cross-entropy, and the penalty for what is kept of the whole batch."""
  return lambda x: x["entropy"] + config.penalty * (x["kept"] - config.keep) ** 2


def kept_of_layers(shares: Array, rows: PackedRows) -> list[float]:
  """The share f32[L] of each layer over all answers' tokens, from the shares f32[B, L] of rows."""
  tokens = np.asarray(rows.mask)[:, 1:].sum(1)
  return np.average(np.asarray(shares), axis=0, weights=tokens).round(3).tolist()
