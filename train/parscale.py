"""Teaches a frozen model to read in parallel streams: their prefixes, and how they are weighed.

    python -m specjax.train.parscale --model gsm8k-7m --data gsm8k_train.jsonl --out runs/streams

ParScale, Chen et al. 2025, arXiv 2505.10475, with the model as it is. What is learned are the keys
and values of a prefix for each stream and layer, and the MLP that weighs the streams. A stream
begins behind a text of the data, and all weigh the same at first (neither is of the paper). The
loss is the cross-entropy of the answers. The result is a NEW MODEL in `model`, whose texts are not
those of the old one. The same command again continues a run that was killed.

Letters: B rows, T row length, P streams, M rows of a prefix, E width.
"""

import dataclasses
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax import distributed
from specjax.base import Params
from specjax.checkpoints import families, hf
from specjax.data.packing import PackedRows
from specjax.models import transformer
from specjax.models.layers import of_layer
from specjax.models.parscale import STREAMS, ParScale, combined, of_lm, prefixes, start
from specjax.models.rotary import angles_of_layers
from specjax.sampling import new_key
from specjax.train.recipe import answers, forward, labels, losses, means, options, run
from specjax.train.recipe.config import Count, Length, Positive, Share, Training
from specjax.train.recipe.fit import batches, fit


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """Streams of a model that stays as it is.

  Attributes:
    streams: P.
    prefix: M.
    smoothing: share of the weights that all streams have alike.
    prefix_rate: learning rate of the prefixes, as a multiple of `rate`.
    answer_field: name of the answer in a record.
    held_out: number of questions, the first, on which the result is measured.
    length: T, number of tokens of a row.
  """

  streams: Count = 4
  prefix: Count = 48
  smoothing: Share = 0.01
  prefix_rate: Positive = 10.0
  answer_field: str = "answer"
  held_out: Count = 100
  length: Length = 256
  training: Training = Training(steps=150, batch=4, warmup=20)


def read(config: ParScale, params: Params, rows: PackedRows) -> Array:
  """The states [B, T, E] of rows, of which each document sees itself and the prefixes alone: the
  pass of `models.parscale`, with a gradient."""
  lm, P, M = transformer.target(config.lm), config.streams, config.prefix
  B, T = rows.tokens.shape

  def spread(x: Any, axis: int = 1) -> Array:
    """Each row P times; along axis 0 all rows B times."""
    times = (B, *x.shape) if axis == 0 else (B, P, *x.shape[1:])
    return jnp.broadcast_to(jnp.expand_dims(x, axis), times).reshape(B * P, *x.shape[1:])

  own = transformer.attention_mask(jnp.asarray(rows.segment), True)
  mask = spread(jnp.concatenate([jnp.ones((B, T, M), bool), own], 2))
  angle = angles_of_layers(config.lm, spread(rows.position))
  x = spread(lm.embed(of_lm(params), jnp.asarray(rows.tokens)))
  for i, before in enumerate(zip(*prefixes(config, params), strict=True)):
    of_this = {"params": params["params"][f"layer_{i}"]}
    earlier = tuple(spread(y, 0) for y in before)
    found: Any = of_layer(config.lm, i).apply(of_this, x, angle[i], mask, None, earlier)
    x = found[0]
  return combined(config, params, lm.norm(of_lm(params), x).reshape(B, P, T, -1))


def surprise(
  network: ParScale, streams: bool, params: Params, rows: PackedRows
) -> dict[str, means.Mean]:
  """The cross-entropy of the trained tokens in nats, by the streams or by the model alone."""
  if streams:
    hidden = read(network, params, rows)
  else:
    hidden = forward.read(transformer.Transformer(network.lm), of_lm(params), rows).hidden
  logits = transformer.target(network.lm).head(of_lm(params), hidden[:, :-1])
  each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(rows.tokens)[:, 1:])
  weight = jnp.asarray(rows.mask)[:, 1:].astype(jnp.float32)
  return means.over(weight, {"entropy": losses.mean(each.reshape(-1), weight.reshape(-1))})


@run.on_mesh
def main(config: Config) -> None:
  out, seed = run.begin(config), config.training.seed
  model = answers.teacher(config.model, causal=True, template=config.template)
  network: Any = ParScale(model.config, config.streams, config.prefix, config.smoothing)
  families.to_json(network)  # which refuses some models
  labels.check_length(config.length, model)
  documents, cut = answers.given(model, config, config.answer_field), config.held_out
  answers.check_held_out(cut, len(documents))
  train, held_out = (
    labels.packed(part, some, config.length)
    for part, some in ((labels.TRAIN, documents[cut:]), (labels.HELD_OUT, documents[:cut]))
  )
  answers.check_batch(config.training.batch, len(train.tokens))
  run.claim(out, config, [ids for ids, _ in documents], model.ingredients())
  some = np.random.default_rng(seed).permutation(len(train.tokens))
  texts = train.tokens[np.resize(some, config.streams), : config.prefix]
  texts = np.resize(texts, (config.streams, config.prefix))
  begin = start(network, model.params, jnp.asarray(texts), new_key(seed))

  def whole(frozen: Params, streams: Params) -> Params:
    return {"params": {**frozen["params"], STREAMS: streams}}

  streams = fit(
    lambda own, frozen, rows, key: (surprise(network, True, whole(frozen, own), rows), {}),
    begin,
    batches(train, config.training),
    config.training,
    out,
    frozen=model.params,
    rates={name: config.prefix_rate if "layer" in name else 1.0 for name in begin},
  )

  def nats(streams: bool, own: Params) -> float:
    measure, params = (
      jax.jit(functools.partial(surprise, network, streams)),
      whole(model.params, own),
    )
    parts = forward.parts(held_out, 16, "held out")
    found = [measure(params, some)["entropy"] for *_, some in parts]
    value, weight = (np.array([float(x[i]) for x in found]) for i in (0, 1))
    return round(float(np.average(value, weights=weight)), 4)

  run.report(
    out,
    {
      "exactness": "a new model: its texts are not those of the old one",
      "parameters": sum(x.size for x in jax.tree.leaves(streams)),
      "held_out": {
        "model": nats(False, begin), "begun": nats(True, begin), "streams": nats(True, streams),
      },
    },
  )  # fmt: skip
  if distributed.first():
    params, more = whole(jax.device_get(model.params), streams), model.template
    hf.save(out / "model", network, params, model.tokenizer, template=more, stop=model.stop,
            start=model.start)  # fmt: skip


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.parscale"))
