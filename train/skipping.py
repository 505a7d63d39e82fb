"""Teaches a model to leave out layers: low-rank updates of its weights, and routers for FiRST.

    python -m specjax.train.skipping --model gsm8k-7m --data gsm8k_train.jsonl --out runs/first

All layers read the question of a record, and those of a `skipping` its answer. The loss is the
cross-entropy of the answer. The routers of `first` (Jain et al. 2024, arXiv 2410.12513) learn with
it: a layer's output counts whole or not at all, and the gradient is that of the probability; a
penalty holds the number of layers at the share that is asked for. The result decodes with
`--skipping "first[runs/first/model]"`. With `--skipping skip_decode-4` (Del Corro et al. 2023,
arXiv 2307.02628) `model` is a whole model that decodes with the same option. The same command again
continues a run that was killed.

Letters: L layers, E width.
"""

import dataclasses
import functools
import operator
import sys
from typing import Any

import jax
import jax.numpy as jnp

from specjax import checks, distributed
from specjax.base import Params
from specjax.checkpoints import hf, routers
from specjax.data.packing import PackedRows
from specjax.models import lora
from specjax.models.skipping import base
from specjax.models.skipping.first import Routers
from specjax.names.build.skipping import skipping
from specjax.sampling import new_key
from specjax.train.recipe import answers, options, reading, run
from specjax.train.recipe.config import Count
from specjax.train.recipe.fit import batches, fit
from specjax.train.recipe.reading import loss_of

FIRST = "first"


@dataclasses.dataclass(frozen=True)
class Config(reading.Config):
  """What a model is taught.

  Attributes:
    skipping: first, or a name without weights, such as skip_decode-4.
    rank: rank of the updates.
  """

  skipping: str = FIRST
  rank: Count = 16


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True, template=config.template)
  network, E = model.config, model.config.width
  train, held_out = reading.claimed(model, config, out)
  updates = lora.start(new_key(config.training.seed), model.params, config.rank)
  begin: dict[str, Any] = {"lora": updates}
  fixed = None
  if config.skipping == FIRST:
    L = network.layers
    begin["routers"] = Routers(jnp.zeros((L, E)), jnp.full(L, 0.5))  # all layers run at first
  else:
    fixed, _ = skipping(config.skipping, network, model.params)
    if fixed.reads or fixed.mlp is not base.whole:
      checks.refuse("skipping", config.skipping, "first, or a name without weights")

  def loss(trained, frozen: Params, batch: PackedRows, key):
    chosen = trained.get("routers", fixed)
    found = reading.terms(network, lora.gate(frozen, trained["lora"], 0), batch, chosen)
    return found, found

  total = reading.penalised(config) if fixed is None else operator.itemgetter("entropy")
  trained = fit(
    loss,
    begin,
    batches(train, config.training),
    config.training,
    out,
    frozen=model.params,
    total=total,
  )
  merged, chosen = lora.merge(model.params, trained["lora"]), trained.get("routers", fixed)
  (whole, _), (skipped, kept) = (
    jax.jit(functools.partial(loss_of, network, chosen=x))(params, rows=held_out)
    for params, x in ((model.params, None), (merged, chosen))
  )
  run.report(
    out,
    {
      "held_out": {"whole": round(float(whole), 4), "skipping": round(float(skipped), 4)},
      "kept": reading.kept_of_layers(kept, held_out),
    },
  )
  if not distributed.first():
    return
  if fixed is None:
    routers.save(out / "model", trained["lora"], chosen, base=model.identity)
  else:
    hf.save(
      out / "model",
      network,
      jax.device_get(merged),
      model.tokenizer,
      template=model.template,
      stop=model.stop,
      start=model.start,
    )


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.skipping"))
