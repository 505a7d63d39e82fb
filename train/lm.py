"""Trains a small causal language model from text, and writes it as `specjax.load` reads it.

    python -m specjax.train.lm --data my.jsonl --out runs/my-lm

A record of `data` holds `text`; or a question and its answer in the two fields named by `--fields`,
or a conversation in `messages` or `conversations`, which are written in the chat template. The same
command again continues a run that was killed.
"""

import dataclasses
import sys
from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from specjax import checks, distributed
from specjax.checkpoints import hf
from specjax.data.chat import BEGUN, TEMPLATES
from specjax.data.packing import PackedRows
from specjax.data.sources import numbered
from specjax.data.tokenizer import END, Tokenizer, train_bpe
from specjax.models.transformer import Transformer
from specjax.names.load import Model, load
from specjax.train.recipe import (
  chunk_sparsity,
  early_exits,
  forward,
  labels,
  losses,
  means,
  options,
  run,
  scheduled,
  texts,
)
from specjax.train.recipe.config import Length, Network, Training
from specjax.train.recipe.fit import batches, fit


@dataclasses.dataclass(frozen=True)
class Config(
  texts.Config, early_exits.EarlyExits, scheduled.Scheduled, chunk_sparsity.ChunkSparsity
):
  """A causal language model from text.

  Attributes:
    start: a model to go on from, by name, in place of a new tokenizer and random weights.
  """

  start: str | None = None
  template: str = "qa"
  network: Network = Network(width=256, layers=8, heads=4, kv_heads=2, head_dim=64, mlp_width=768)
  length: Length = 384
  training: Training = Training(steps=1000, batch=16, rate=3e-3, decay=0.1)


def documents(text: texts.Text, config: Config, tokenizer: Tokenizer) -> list[texts.Document]:
  """The ids of a record, all of them trained; texts longer than a row are split.

  Of a conversation with an answer that had `begun`, the rest of the answers alone is trained.
  """
  if not isinstance(text, str) and any(turn.get(BEGUN) for turn in text):
    return said(text, config, tokenizer)
  if isinstance(text, str):
    ids, size = tokenizer.encode(text + END), config.length
    parts = [ids[i : i + size] for i in range(0, len(ids), size)]
  else:
    parts = [TEMPLATES[config.template].encode(tokenizer, text)[0]]
  return [(ids, [True] * len(ids)) for ids in parts]


def said(text: texts.Text, config: Config, tokenizer: Tokenizer) -> list[texts.Document]:
  """The same documents, of which the tokens count that a model would say."""
  if isinstance(text, str):
    return documents(text, config, tokenizer)
  return [TEMPLATES[config.template].encode(tokenizer, text)]


def loss_fn(
  params, model: Transformer, rows: PackedRows, read: Array | None = None
) -> tuple[Array, dict[str, Array]]:
  """Mean cross-entropy in nats over the trained tokens of rows [B, T]; the share guessed right.

  Args:
    read: i32[B, T], what the model reads in place of the rows' tokens.
  """
  context = rows if read is None else rows._replace(tokens=read)  # type: ignore[arg-type]  # traced
  return cross_entropy(params, model, rows, forward.read(model, params, context).hidden)


def cross_entropy(
  params, model: Transformer, rows: PackedRows, hidden: Array
) -> tuple[Array, dict[str, Array]]:
  """`loss_fn` of what was read, hidden [B, T, E]."""
  logits = jnp.asarray(model.apply(params, hidden[:, :-1], method="head"))
  nll = optax.softmax_cross_entropy_with_integer_labels(logits, rows.tokens[:, 1:])
  weight = jnp.asarray(rows.mask[:, 1:]).astype(jnp.float32)
  right = (logits.argmax(-1) == rows.tokens[:, 1:]).astype(jnp.float32)
  return losses.mean(nll, weight), {"accuracy": losses.mean(right, weight)}


def begun(name: str, length: int) -> Model:
  """The model to go on from.

  Raises:
    ValueError: no such model, or it has no tokenizer, sees both sides, or has too few positions.
  """
  model = load(name, weights="float")
  if model.tokenizer is None or not model.config.causal or model.config.max_length < length:
    raise ValueError(
      f"`start` must be a causal model with a tokenizer and at least {length} positions, got "
      f"{name!r}."
    )
  return model


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)

  records = texts.read(config)
  model = None if config.start is None else begun(config.start, config.length)
  tokenizer = texts.kept_tokenizer(
    out,
    lambda: model.tokenizer if model else train_bpe(texts.contents(records), config.vocab_size),
  )
  early = bool(config.layer_dropout or config.exit_loss)
  if early and config.own_tokens:
    checks.refuse("own_tokens", config.own_tokens, "0 with layer_dropout or exit_loss")
  routed = config.network.sizes.get("experts") if model is None else model.config.experts
  sparse = chunk_sparsity.is_used(config, routed)
  if sparse and (early or config.own_tokens):
    raise ValueError(
      "`locality_loss` and `chunk_loss` must be 0 with layer_dropout, exit_loss or own_tokens, got "
      f"{config.locality_loss} and {config.chunk_loss}."
    )
  parts, spoken = [], []
  for i, record in enumerate(records):
    with numbered(i):
      parts += documents(record, config, tokenizer)
      spoken += said(record, config, tokenizer) if config.own_tokens else []
  rows = labels.packed(labels.TRAIN, parts, config.length)
  every: Any = scheduled.replaceable(rows, spoken, config.length) if spoken else rows
  batch = batches(every, config.training)
  run.claim(out, config, rows, None if model is None else model.ingredients("start"))
  texts.keep_tokenizer(out, tokenizer)

  if model is None:
    network, params = texts.new_network(config, tokenizer, max_length=config.length)
  else:
    network, params = model.config, model.params
  print(f"{rows.mask.sum() / 1e6:.2f}M tokens fill {len(rows.tokens)} rows.")

  def loss(params, frozen, batch, key: Array):
    rows, drawn = batch if early or spoken else (batch, None)
    made = Transformer(network)
    if sparse:
      hidden, scores = chunk_sparsity.read(made, params, rows)
      terms, figures = chunk_sparsity.terms(scores, rows, config)
      nats, right = means.over(rows.mask[:, 1:], cross_entropy(params, made, rows, hidden))
      return {"nats": nats, **terms}, {"nats": nats, **right, **figures}
    if early:
      found = early_exits.loss_of(params, made, rows, drawn, config)
    elif spoken:
      own = scheduled.read(made, params, rows, drawn, config.own_passes)
      found = loss_fn(params, made, rows, own)
    else:
      found = loss_fn(params, made, rows)
    return means.over(rows.mask[:, 1:], found)

  def drawn(rows: Any, key: Array) -> tuple[PackedRows, early_exits.Drawn | scheduled.Drawn]:
    if spoken:
      return scheduled.draw(rows, key, config)
    return rows, early_exits.draw(key, network.layers, len(rows.tokens), config)

  params = fit(loss, params, batch, config.training, out, draw=drawn if early or spoken else None)

  template = None if all(isinstance(r, str) for r in records) else TEMPLATES[config.template]
  if distributed.first():
    hf.save(out / "model", network, params, tokenizer, template=template)


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.lm"))
