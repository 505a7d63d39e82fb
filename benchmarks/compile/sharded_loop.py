r"""The whole generation loop of a large model, compiled for chips that this machine lacks.

    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py
    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py --sizes 8b 32b 70b --layers 2 3 \
      --drafter eagle3 --topologies v5e:4x4 v5p:2x2x2 v6e:2x4 v7x:2x2x1 h100:8
    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py --topologies v5e:1 --weights int8 \
      --batch 1
    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py --topologies v5e:1 h100:1 \
      --layers 2 --caches dense int8 gear-4 mustafar-0.5 keyformer-0.5 sinks-4,recent=508 \
      token_select-384,first=4,recent=124

The report has for each topology the bytes per chip, also over those of a chip that has exactly its
share of weights and caches; the number of copies of the cache, which should be 0; and that of
collectives, which should be two a layer and a few more, their bytes, and how many of them are under
way while the chip multiplies. To compile all layers takes
long; they are alike, so that from two numbers of layers follows the whole model, which the report
has beside them. Nothing is executed or timed. The script needs the compilers (pip install .[aot]).
"""

import dataclasses
import functools
import itertools
import re
import sys
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from specjax import command_line, drafters, speculate
from specjax.base import Cache, Drafter, LayeredTarget, Params
from specjax.decoding.method import method as pair
from specjax.eval import compiled, report, table
from specjax.eval.compiled import placed
from specjax.eval.memory import size_of
from specjax.eval.random_model import SIZES, HeadName, Size, large_head, own_vocabulary
from specjax.heads import drafting
from specjax.kernels import topology
from specjax.models import sharding, transformer
from specjax.models.compressed import compressed
from specjax.models.weights import parameter
from specjax.names.build.cache import DENSE, make_cache
from specjax.names.grammar import parse_one
from specjax.sampling import Settings, new_key, request_keys
from specjax.trees.dynamic import Dynamic
from specjax.verifiers import target_only


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  topologies: tuple[str, ...] = ("v5e:2x2", "v5e:4x4")  # names of `topology.CHIPS`
  sizes: tuple[Size, ...] = ("8b",)  # of the target
  layers: tuple[int, ...] = ()  # numbers of layers that are compiled, rising; () is all
  batch: int = 8  # B, texts decoded together
  capacity: int = 8192  # S, capacity of the cache
  caches: tuple[str, ...] = ("dense",)  # names as after --cache; others than dense on one chip
  drafter: Literal["prompt_lookup", "eagle3", "dflash", "dspark"] = "prompt_lookup"
  drafted: int = 15  # number of tokens that are drafted, by a head in a dynamic tree of depth 5
  weights: Literal["float", "int8"] = "float"  # matrices in bfloat16, or in 8 bits
  out: str = "results/sharded_loop"  # directory of the report


def head_drafter(
  name: HeadName, target: LayeredTarget, config: Config, params: Params
) -> tuple[Drafter, Params]:
  """A head with as many guesses as nodes, and the shapes of its weights in bfloat16."""
  head = large_head(name, target, 5)
  vocabulary = jnp.arange(32000) if own_vocabulary(name) else None
  shapes = jax.eval_shape(functools.partial(head.init, vocabulary=vocabulary), new_key(0), params)
  weights = jax.tree.map(
    lambda x: x.update(dtype=jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, shapes
  )
  return drafting.drafter(head, Dynamic(config.drafted + 1, 5, 4)), weights


def compiled_for(name: str, size: Size, layers: int, cache: str, config: Config) -> dict:
  """Compiles the loop of one target over one cache for one topology."""
  mesh = topology.mesh(name)
  everywhere = NamedSharding(mesh, PartitionSpec())
  model = dataclasses.replace(SIZES[size], layers=layers, max_length=config.capacity)
  B = config.batch

  def weights():
    params = sharding.split(transformer.init(model, new_key(0)))
    return jax.tree.map(lambda x: parameter(x, jnp.bfloat16, config.weights), params)

  def request():
    one, zero = jnp.ones(B), jnp.zeros(B, jnp.int32)
    keys = request_keys(0, jnp.arange(B))
    return speculate.DecodeRequest(Settings(one, zero, one, one * 0), keys, zero + 100, zero[:1])

  whole = transformer.target(model)
  target = whole if cache == DENSE else compressed(model, make_cache(parse_one("cache", cache))[1])
  shapes = jax.eval_shape(weights)
  guess, own = drafters.prompt_lookup(config.drafted + 1), ()
  if config.drafter != "prompt_lookup":
    guess, own = head_drafter(config.drafter, target, config, shapes)
    own = jax.eval_shape(sharding.split_head, own)
  method = pair(target, guess, target_only())
  params = speculate.Weights(
    placed(shapes, sharding.of_params(shapes, mesh)),
    placed(own, sharding.of_head(own, mesh)),
  )
  asked = placed(jax.eval_shape(request), everywhere)
  prompt = jnp.zeros((B, 64), jnp.int32), jnp.ones(B, jnp.int32)
  with jax.set_mesh(mesh):
    start_ = functools.partial(speculate.start, method, capacity=config.capacity)
    state = jax.eval_shape(start_, params, *prompt, asked)
    state = placed(state, everywhere)
    if cache == DENSE:
      spread = NamedSharding(mesh, sharding.KV_CACHE)  # the target's, and a head's own
      state = jax.tree.map(
        lambda x: x._replace(kv=placed(x.kv, spread)) if isinstance(x, Cache) else x,
        state,
        is_leaf=lambda x: isinstance(x, Cache),
      )
    rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    lowered = speculate.compiled_advance.lower(method, params, asked, state, rounds)
    found, text = compiled.found(lowered)
    found["ideal_bytes"] = compiled.share((params, state), mesh.size)
  chips = topology.CHIPS[name]
  rows, heads = B // chips.data, model.kv_heads // chips.model
  shape = rf"{rows},{heads},(?:{config.capacity}|{config.capacity + method.drafter.nodes}),128"
  # XLA makes two products one by concatenating their operands.
  copies = compiled.copies(text, shape, "copy|custom-call|concatenate")
  return {
    "topology": name, "size": size, "drafter": config.drafter, "cache": cache, "data": chips.data,
    "model": chips.model,
    "layers": layers, "batch": B, "capacity": config.capacity, "nodes": method.drafter.nodes,
    "kernels": len(re.findall("tpu_custom_call|custom_call @mosaic_gpu", lowered.as_text())),
    "cache_bytes": size_of(state.cache), "cache_copies": copies, **found,
  }  # fmt: skip


def main(config: Config) -> None:
  topology.check(config.topologies)
  if config.caches != (DENSE,):
    for name in config.topologies:
      if topology.CHIPS[name].data * topology.CHIPS[name].model > 1:
        raise ValueError(
          f"`topologies` must be of one chip with caches={' '.join(config.caches)}, got {name!r}."
        )
  compiled.check_layers(config.layers)
  report.directory(config.out)
  cells = []
  for name, size, cache in itertools.product(config.topologies, config.sizes, config.caches):
    one = functools.partial(compiled_for, name, size, cache=cache, config=config)
    cells += compiled.by_layers(one, config.layers, SIZES[size].layers)
  report.publish(config, {"topologies": cells}, table.markdown(list(map(compiled.row, cells))))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
