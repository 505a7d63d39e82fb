"""Teaches small MLPs beside those of a frozen model, and routers that choose between them.

    python -m specjax.train.duo --model gsm8k-7m --data gsm8k_train.jsonl --out runs/duo --keep 0.5

Duo-LLM, Alizadeh et al. 2024, arXiv 2410.10846, where the model learns, too. First the small MLPs
learn: each token of an answer takes in each layer the big MLP, the small one or none at random, so
that all of them work in any company. Then the routers learn, and the MLPs stay as they are: a
token takes the module of the highest probability, and the gradient is that of the probabilities
(straight through), for an expected mixture of modules would teach a network that never decodes. A
penalty holds the share of the MLPs' parameters that a token reads at `keep`. The loss is the
cross-entropy of the answer. A small MLP begins as the part of the big one whose outputs are
largest by their weights (this is not of the paper). `--steps` is the number of either part. The
result decodes with `--skipping "duo[runs/duo/model]"`. The same command again continues a run that
was killed.

Letters: B rows, T row length, E width, M width of a small MLP.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from specjax import distributed
from specjax.base import Params
from specjax.checkpoints import duo as files
from specjax.data.packing import PackedRows
from specjax.models.config import Config as Network
from specjax.models.layers import TransformerBlock
from specjax.models.skipping.base import Skipping, whole
from specjax.models.skipping.duo import (
  BIG,
  DUO,
  SMALL,
  Beside,
  beside,
  in_all_layers,
  normed,
  read,
  scores,
  small,
)
from specjax.train.recipe import answers, options, reading, run
from specjax.train.recipe.config import Amount, Share
from specjax.train.recipe.fit import batches, fit
from specjax.train.recipe.reading import loss_of

# (layer, the router's log-probabilities f32[B, T, 3]) -> f32[B, T, 3], which module counts
Choice = Callable[[int, Array], Array]


@dataclasses.dataclass(frozen=True)
class Config(reading.Config):
  """What is taught.

  Attributes:
    small: M as a share of the width of the big MLP.
    router_rate: learning rate of the routers, whose logits sum over E and move so much farther.
  """

  keep: Share = 0.5
  small: Share = 0.25
  router_rate: Amount = 2e-4


def start(network: Network, params: Params, width: int) -> Params:
  """{layer: `Beside` as a dict} to begin with: every token takes the big MLP, and M is `width`."""
  begin = {}
  for layer in (f"layer_{i}" for i in range(network.layers)):
    gate, up = jnp.split(params["params"][layer]["gate_up"], 2)
    down = params["params"][layer]["down"]
    norms = (jnp.linalg.norm(x, axis=axis) for x, axis in ((gate, 1), (up, 1), (down, 0)))
    top = jax.lax.top_k(functools.reduce(jnp.multiply, norms), width)[1]
    begin[layer] = Beside(
      router=jnp.zeros((3, network.width)),
      bias=jnp.array([0, 0, 0.5]),
      small_gate_up=jnp.concatenate([gate[top], up[top]]),
      small_down=down[:, top],
    )._asdict()
  return begin


def by(layers: int, choice: Choice) -> Skipping:
  """A skipping whose modules all run, of which a choice counts; so it has a gradient."""

  def mlp(params: Params, layer: int, block: TransformerBlock, x: Array) -> tuple[Array, Array]:
    own, h = beside(params, layer), normed(params, layer, block, x)
    gate = choice(layer, scores(own, h))
    big, _ = whole(params, layer, block, x)
    added = gate[..., BIG, None] * big + gate[..., SMALL, None] * small(own, h)
    return added, gate @ read(own, block)

  return in_all_layers(layers, mlp)


def routed(layer: int, log_p: Array) -> Array:
  """The likeliest module, whose gradient is that of the probabilities."""
  p = jnp.exp(log_p)
  return jax.nn.one_hot(log_p.argmax(-1), 3) + p - jax.lax.stop_gradient(p)


def at_random(key: Array, chances: Array) -> Choice:
  """Modules drawn with chances f32[3] or f32[L, 3] for a layer each, token by token."""

  def choice(layer: int, log_p: Array) -> Array:
    own = jnp.log(chances if chances.ndim == 1 else chances[layer])
    drawn = jax.random.categorical(
      jax.random.fold_in(key, layer), own, shape=log_p.shape[:2], mode="low"
    )
    return jax.nn.one_hot(drawn, 3)

  return choice


def given(chosen: Array) -> Choice:
  """Modules that have been chosen, f32[B, L, T, 3]."""
  return lambda layer, log_p: chosen[:, layer]


def always(module: int) -> Choice:
  """One module for every token."""
  return lambda layer, log_p: jnp.broadcast_to(jax.nn.one_hot(module, 3), log_p.shape)


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True, template=config.template)
  network, L = model.config, model.config.layers
  if network.experts is not None:
    raise ValueError(f"`model` must have dense MLPs, got {config.model!r}.")
  train, held_out = reading.claimed(model, config, out)
  begin = start(network, model.params, max(1, round(config.small * network.mlp_width)))
  names = ("small_gate_up", "small_down"), ("router", "bias")
  mlps, routers = ({i: {k: own[k] for k in part} for i, own in begin.items()} for part in names)

  def joined(params: Params, *parts: Params) -> Params:
    return {**params, DUO: {i: {k: x for p in parts for k, x in p[i].items()} for i in begin}}

  def drawn(batch: PackedRows, key: Array) -> tuple[PackedRows, Array]:
    choice = at_random(key, jnp.full(3, 1 / 3))
    like = jnp.zeros((*batch.tokens.shape, 3))
    return batch, jnp.stack([choice(i, like) for i in range(L)], 1)

  def of_mlps(mlps: Params, frozen, batch: tuple[PackedRows, Array], key: Array):
    params, (rows, chosen) = joined(frozen[0], mlps, frozen[1]), batch
    return reading.terms(network, params, rows, by(L, given(chosen)))["entropy"], {}

  def of_routers(routers: Params, frozen, batch: PackedRows, key: Array):
    found = reading.terms(network, joined(frozen[0], frozen[1], routers), batch, by(L, routed))
    return found, found

  rows, training = batches(train, config.training), config.training
  for part in ("mlps", "routers"):
    (out / part).mkdir(exist_ok=True)
  mlps = fit(
    of_mlps, mlps, rows, training, out / "mlps", frozen=(model.params, routers), draw=drawn
  )
  training = dataclasses.replace(training, rate=config.router_rate)
  routers = fit(
    of_routers,
    routers,
    rows,
    training,
    out / "routers",
    frozen=(model.params, mlps),
    total=reading.penalised(config),
  )
  params = joined(model.params, mlps, routers)
  ways = {"whole": None, "duo": by(L, routed), "small": by(L, always(SMALL))}
  found = {
    name: jax.jit(functools.partial(loss_of, network, chosen=x))(params, rows=held_out)
    for name, x in ways.items()
  }
  run.report(
    out,
    {
      "held_out": {name: round(float(nats), 4) for name, (nats, _) in found.items()},
      "kept": reading.kept_of_layers(found["duo"][1], held_out),
    },
  )
  if distributed.first():
    files.save(out / "model", params[DUO], base=model.identity)


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.duo"))
