"""Teaches a coprocessor to write latent rows into a frozen model's cache, for what follows there.

    python -m specjax.train.coprocessor --model gsm8k-7m --data gsm8k_train.jsonl --out runs/latents

Deliberation by cache augmentation, Liu et al. 2024, arXiv 2412.17747, see `models.coprocessor`. At
some places of each text, which are drawn anew in every step, latents are written behind what the
model has read, and the loss is the model's own, of the tokens that follow. Its gradient reaches the
coprocessor alone. The report has nats of these tokens at places of held-out texts, by the model
with the latents and without. The same command again continues a run that was killed.

Letters: B rows, T row length, G places of a row, L latents, A tokens ahead.
"""

import dataclasses
import functools
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from specjax import checks
from specjax.base import Params
from specjax.data.packing import PackedRows
from specjax.models import coprocessor, transformer
from specjax.models.config import Config as Network
from specjax.models.coprocessor import Coprocessor
from specjax.sampling import new_key
from specjax.train.recipe import answers, forward, labels, means, options, run
from specjax.train.recipe.config import Count, Length, Positive, Training
from specjax.train.recipe.fit import batches, fit


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """A coprocessor of a model that stays as it is.

  Attributes:
    latents: L.
    ahead: A, number of tokens behind the latents that are learned.
    places: G.
    soft_rate: learning rate of the soft tokens, as a multiple of `rate`.
    answer_field: name of the answer in a record.
    held_out: number of questions, the first, on which the result is measured.
    length: T, number of tokens of a row.
  """

  latents: Count = 8
  ahead: Count = 16
  places: Count = 4
  soft_rate: Positive = 10.0
  answer_field: str = "answer"
  held_out: Count = 100
  length: Length = 256
  training: Training = Training(steps=150, batch=4, rate=3e-4, warmup=20)


class Batch(NamedTuple):
  """Rows [B, T], and places i32[B, G] in them."""

  rows: Any
  at: Any


def drawn(rows: PackedRows, count: int, key: Array) -> Batch:
  """Rows with `count` places each, of those whose next token is trained; where there are fewer, the
  others weigh nothing."""
  goes_on = jnp.asarray(rows.segment)[:, 1:] == jnp.asarray(rows.segment)[:, :-1]
  score = jax.random.uniform(key, goes_on.shape)
  score = jnp.where(goes_on & jnp.asarray(rows.mask)[:, 1:], score, -1.0)
  return Batch(rows, lax.top_k(score, count)[1].astype(jnp.int32))


def surprise(
  network: Network, ahead: int, own: Coprocessor | None, params: Params, batch: Batch
) -> tuple[Array, Array]:
  """(nats, weights), f32[B, G, A], of the tokens behind each place, with latents or, without a
  coprocessor, as the model reads them anyway."""
  rows, at = batch
  lm = transformer.target(network)
  tokens, segment, trained = (jnp.asarray(x) for x in (rows.tokens, rows.segment, rows.mask))
  (B, T), G = tokens.shape, at.shape[1]
  index = at[:, :, None] + jnp.arange(ahead + 1, dtype=jnp.int32)[None, None]
  within = jnp.minimum(index, T - 1).reshape(B, -1)

  def of_each(x: Array) -> Array:
    """[B, T, ..] -> [B, G, 1 + A, ..]: what each place has, and what each token behind it."""
    rest = within.reshape(*within.shape, *[1] * (x.ndim - 2))
    return jnp.take_along_axis(x, rest, 1).reshape(B, G, ahead + 1, *x.shape[2:])

  text, near = of_each(tokens), of_each(segment)
  weight = (near[..., 1:] == near[..., :1]) & of_each(trained)[..., 1:] & (index[..., 1:] < T)
  weight = weight & weight[..., :1]
  mask, position = transformer.attention_mask(segment, True), jnp.asarray(rows.position)
  found: Any = transformer.Transformer(network).apply(params, tokens, position, mask)
  hidden, kv = found
  if own is None:
    said = of_each(hidden)[:, :, :-1]
  else:
    place = of_each(position)[..., 0]
    seen = jnp.arange(T, dtype=jnp.int32)[None, None] <= at[:, :, None]
    seen = seen & (segment[:, None] == near[..., :1])
    x = coprocessor.latents(network, own, place, kv, seen)
    following = lm.embed(params, text[:, :, 1:-1].reshape(B, -1))
    following = following.reshape(B, G, ahead - 1, network.width)
    x = jnp.concatenate([x, following], 2)
    said = coprocessor.read(network, params, x, place, kv, seen)[0][:, :, len(own.soft) - 1 :]
  logits = lm.head(params, said)
  each = optax.softmax_cross_entropy_with_integer_labels(logits, text[..., 1:])
  return each, weight.astype(jnp.float32)


@run.on_mesh
def main(config: Config) -> None:
  out, training = run.begin(config), config.training
  model = answers.teacher(config.model, causal=True, template=config.template)
  network: Any = model.config
  coprocessor.check(network)
  behind = config.latents + config.ahead
  most = network.max_length - behind
  note = f"for {model.name} has {network.max_length} positions, {behind} of them for what follows"
  checks.whole("length", config.length, 2, most, note=note)
  checks.whole("places", config.places, 1, config.length - 1)
  documents, cut = answers.given(model, config, config.answer_field), config.held_out
  answers.check_held_out(cut, len(documents))
  train, held_out = (
    labels.packed(part, some, config.length)
    for part, some in ((labels.TRAIN, documents[cut:]), (labels.HELD_OUT, documents[:cut]))
  )
  answers.check_batch(training.batch, len(train.tokens))
  run.claim(out, config, [ids for ids, _ in documents], model.ingredients())
  some = np.random.default_rng(training.seed).choice(train.tokens[train.mask], config.latents)
  begin = coprocessor.start(network, model.params, jnp.asarray(some))

  def loss(own: Coprocessor, frozen: Params, batch: Batch, key: Array):
    each, weight = surprise(network, config.ahead, own, frozen, batch)
    value = (each * weight).sum() / jnp.maximum(weight.sum(), 1.0)
    return means.over(weight, {"entropy": value}), {}

  trained: Any = fit(
    loss,
    begin,
    batches(train, training),
    training,
    out,
    frozen=model.params,
    rates=Coprocessor(network=1.0, soft=config.soft_rate, size=config.soft_rate),
    draw=lambda rows, key: drawn(rows, config.places, key),
  )

  def nats(own: Coprocessor | None) -> list[float]:
    """Of each token ahead, over places that are the same for all."""
    measure = jax.jit(functools.partial(surprise, network, config.ahead))
    sums = np.zeros((2, config.ahead))
    for i, _, rows in forward.parts(held_out, 8, "held out"):
      for turn in range(2):
        key = jax.random.fold_in(new_key(training.seed), 2 * i + turn)
        each, weight = measure(own, model.params, drawn(rows, config.places, key))
        sums += np.stack([(each * weight).sum((0, 1)), weight.sum((0, 1))])
    mean = sums[0].sum() / sums[1].sum()
    return [round(float(x), 4) for x in (mean, *(sums[0] / np.maximum(sums[1], 1)))]

  ends = ("embedding", "lm_head")
  read = {k: x for k, x in begin.network["params"].items() if k not in ends}, begin.soft
  found = {"model": nats(None), "begun": nats(begin), "latents": nats(trained)}
  run.report(
    out,
    {
      "exactness": "a model with latents is another: its texts are not those of the model alone",
      "parameters": sum(x.size for x in jax.tree.leaves(read)),
      "held_out": {name: own[0] for name, own in found.items()},
      "by_tokens_ahead": [own[1:] for own in found.values()],
    },
  )


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.coprocessor"))
