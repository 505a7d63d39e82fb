"""Teaches a model to leave out layers: low-rank updates of its weights, and routers for FiRST.

    python -m specjax.train.skipping --model gsm8k-7m --data gsm8k_train.jsonl --out runs/first

All layers read the question of a record, and those of a `skipping` its answer. The loss is the
cross-entropy of the answer. The routers of `first` (Jain et al. 2024, arXiv 2410.12513) learn with
it: a layer's output counts whole or not at all, and the gradient is that of the probability; a
penalty holds the number of layers at the share that is asked for. The result decodes with
`--skipping "first[runs/first/model]"`. With `--skipping skip_decode-4` (Del Corro et al. 2023,
arXiv 2307.02628) `model` is a whole model that decodes with the same option. The same command again
continues a run that was killed.

Letters: B rows, T row length, V vocabulary, E width.
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

from specjax import checks, processes, script
from specjax.base import Params
from specjax.checkpoints import hf, routers
from specjax.data.packing import Rows, pack
from specjax.decoding.skipping import skipping
from specjax.models import lora, transformer
from specjax.models.config import Config as Network
from specjax.models.rotary import angles
from specjax.models.skipping import Skipping
from specjax.models.skipping.first import Routers, probability
from specjax.train.recipe import answers, losses, run
from specjax.train.recipe.config import Amount, Count, Length, Share, Training
from specjax.train.recipe.fit import batches, fit

FIRST = "first"


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """What a model is taught.

  Attributes:
    skipping: first, or a name without weights, such as skip_decode-4.
    keep: the share of the layers that should read an answer, for first.
    penalty: weight of the squared distance to `keep`.
    rank: rank of the updates.
    answer_field: name of the answer in a record.
    held_out: number of questions, the first, on which the result is measured.
    length: T, number of tokens of a row, which holds one record.
  """

  skipping: str = FIRST
  keep: Share = 0.75
  penalty: Amount = 20.0
  rank: Count = 16
  answer_field: str = "answer"
  held_out: Count = 100
  length: Length = 256
  training: Training = Training(steps=300, batch=4, rate=1e-3, save_every=100)


def one_each(documents: list, length: int) -> Rows:
  """A row for each document (ids, mask), cut to `length` T."""
  return Rows(*map(np.concatenate, zip(*(pack([x], length) for x in documents), strict=True)))


def read(
  network: Network, params: Params, rows: Rows, chosen: Skipping | Routers | None
) -> tuple[Array, Array]:
  """(logits f32[B, T, V], whether each layer runs f32[B, L], 0 or 1), of a document in each row.

  Args:
    chosen: what skips layers; None is nothing. All but routers run each layer.
  """
  lm = transformer.target(network)
  position = jnp.asarray(rows.position)
  angle = angles(network, position)
  mask = transformer.attention_mask(jnp.asarray(rows.segment), True)
  trained = jnp.asarray(rows.mask)
  begun = jnp.cumsum(trained, 1) > 0
  later = jnp.pad(begun[:, 1:], ((0, 0), (0, 1)), mode="edge")  # the last of the question too
  gates = jnp.ones((*trained.shape, network.layers))
  if isinstance(chosen, Skipping):
    state = chosen.start(params, (), (~begun).sum(1).astype(jnp.int32))
    gates = chosen.runs(state, position).astype(jnp.float32)
  x, every = lm.embed(params, jnp.asarray(rows.tokens)), []
  for i in range(network.layers):
    gate = gates[:, :, i]
    one = jnp.ones(len(gate))
    if isinstance(chosen, Routers):
      p = probability(chosen, i, x, ~later)
      one = (p >= 0.5).astype(p.dtype) + p - jax.lax.stop_gradient(p)
      gate = jnp.broadcast_to(one[:, None], gate.shape)
    own = {"params": params["params"][f"layer_{i}"]}
    y, _, _ = transformer.of_layer(network, i).apply(own, x, angle, mask, None)  # type: ignore[misc]
    x = x + jnp.where(later, gate, 1)[..., None] * (y - x)
    every.append(one)
  return lm.head(params, lm.norm(params, x)), jnp.stack(every, 1)


def loss_of(
  network: Network, params: Params, rows: Rows, chosen: Skipping | Routers | None
) -> tuple[Array, Array]:
  """(cross-entropy of the answers in nats, whether each layer runs f32[B, L])."""
  logits, runs = read(network, params, rows, chosen)
  after = jnp.asarray(rows.tokens)[:, 1:]
  each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], after)
  weight = jnp.asarray(rows.mask)[:, 1:].astype(jnp.float32)
  return losses.mean(each.reshape(-1), weight.reshape(-1)), runs


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True)
  network, E = model.config, model.config.width
  documents = answers.given(model, config, config.answer_field)
  answers.check_held_out(config.held_out, len(documents))
  run.claim(out, config, [ids for ids, _ in documents])
  rows = one_each(documents, config.length)
  rows = Rows(*(x[rows.mask.any(1)] for x in rows))
  train, held_out = (Rows(*(x[part] for x in rows)) for part in
                     (slice(config.held_out, None), slice(config.held_out)))  # fmt: skip
  updates = lora.start(jax.random.key(config.training.seed), model.params, config.rank)
  begin: dict[str, Any] = {"lora": updates}
  fixed = None
  if config.skipping == FIRST:
    L = network.layers
    begin["routers"] = Routers(jnp.zeros((L, E)), jnp.full(L, 0.5))  # all layers run at first
  else:
    fixed, _ = skipping(config.skipping, network, model.params)
    if fixed.reads:
      checks.refuse("skipping", config.skipping, "first, or a name without weights")

  def loss(trained, frozen: Params, batch: Rows, key):
    chosen = trained.get("routers", fixed)
    entropy, runs = loss_of(network, lora.merge(frozen, trained["lora"]), batch, chosen)
    kept = runs.mean()
    penalty = config.penalty * (kept - config.keep) ** 2 if fixed is None else 0.0
    return entropy + penalty, {"entropy": entropy, "kept": kept}

  trained = fit(loss, begin, batches(train, config.training), config.training, out,
                frozen=model.params)  # fmt: skip
  merged, chosen = lora.merge(model.params, trained["lora"]), trained.get("routers", fixed)
  (whole, _), (skipped, kept) = (
    jax.jit(functools.partial(loss_of, network, chosen=x))(params, rows=held_out)
    for params, x in ((model.params, None), (merged, chosen))
  )
  run.report(out, {
    "held_out": {"whole": round(float(whole), 4), "skipping": round(float(skipped), 4)},
    "kept": np.round(np.asarray(kept).mean(0), 3).tolist(),
  })  # fmt: skip
  if not processes.first():
    return
  if fixed is None:
    routers.save(out / "model", trained["lora"], chosen, base=config.model)
  else:
    hf.save(out / "model", network, jax.device_get(merged), model.tokenizer,
            template=model.template, stop=model.stop, start=model.start)  # fmt: skip


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__, prog="python -m specjax.train.skipping"))
