r"""The whole generation loop of an 8B model, compiled for chips that this machine lacks.

    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py
    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py --topologies h100:1
    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py --topologies v5e:1 --weights int8 \
      --batch 1
    JAX_PLATFORMS=cpu python benchmarks/compile/sharded_loop.py --topologies v5e:1 h100:1 \
      --layers 2 --caches dense int8 gear-4 mustafar-0.5 keyformer-0.5 sinks-4-508 \
      token_select-384-4-124

The report has for each topology the bytes per chip, the number of copies of the cache, which should
be 0, and of collectives, which should be two a layer and a few more. Nothing is executed or timed.
The script needs the compilers (pip install .[aot]).
"""

import collections
import dataclasses
import functools
import itertools
import math
import re
import sys
import time
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from specjax import drafters, script, speculate
from specjax.decoding.builders.cache import DENSE, make_cache
from specjax.decoding.method import method as pair
from specjax.decoding.spec import parse_one
from specjax.eval import report, table
from specjax.eval.memory import size_of
from specjax.kernels import topology
from specjax.models import sharding, transformer
from specjax.models.compressed import compressed
from specjax.models.config import Config as ModelConfig
from specjax.models.weights import parameter
from specjax.sampling import Settings, request_keys
from specjax.verifiers import target_only

MESHES = {  # chips along "data" and "model"
  "v5e:1": (1, 1), "v5e:2x2": (1, 4), "v5e:4x4": (2, 8), "h100:1": (1, 1), "h100:4": (1, 4),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  topologies: tuple[str, ...] = ("v5e:2x2", "v5e:4x4")  # chips to compile for, names of MESHES
  layers: int = 32  # number of layers of Llama 3 8B's shape; fewer compile faster and show as much
  batch: int = 8  # B, texts decoded together
  capacity: int = 8192  # S, capacity of the cache
  caches: tuple[str, ...] = ("dense",)  # names as after --cache; others than dense on one chip
  drafted: int = 15  # number of tokens that prompt lookup drafts
  weights: Literal["float", "int8"] = "float"  # matrices in bfloat16, or in 8 bits
  out: str = "results/sharded_loop"  # directory of the report


def abstract(tree, place):
  """The shapes of `tree` with the sharding `place`, one or a tree of them."""
  if isinstance(place, NamedSharding):
    place = jax.tree.map(lambda _: place, tree)
  return jax.tree.map(lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), tree, place)


def compiled_for(name: str, cache: str, config: Config) -> dict:
  """Compiles the loop over one cache for one topology."""
  # The smallest topology of TPUs has four chips, of which one may do.
  chips = topology.devices("v5e:2x2" if name == "v5e:1" else name)[: math.prod(MESHES[name])]
  mesh = Mesh(
    np.array(chips).reshape(MESHES[name]), ("data", "model"), axis_types=(AxisType.Auto,) * 2
  )
  everywhere = NamedSharding(mesh, PartitionSpec())
  model = ModelConfig(
    vocab_size=128256, width=4096, layers=config.layers, heads=32, kv_heads=8, head_dim=128,
    mlp_width=14336, max_length=config.capacity, rope_theta=500000.0, tied=False,
  )  # fmt: skip
  B = config.batch

  def weights():
    params = sharding.split(transformer.init(model, jax.random.key(0)))
    return jax.tree.map(lambda x: parameter(x, jnp.bfloat16, config.weights), params)

  def request():
    one, zero = jnp.ones(B), jnp.zeros(B, jnp.int32)
    keys = request_keys(0, jnp.arange(B))
    return speculate.Request(Settings(one, zero, one, one * 0), keys, zero + 100, zero[:1])

  guess = drafters.prompt_lookup(config.drafted)
  whole = transformer.target(model)
  target = whole if cache == DENSE else compressed(model, make_cache(parse_one("cache", cache))[1])
  method = pair(target, guess, target_only())
  shapes = jax.eval_shape(weights)
  params = speculate.Weights(abstract(shapes, sharding.of_params(shapes, mesh)), ())
  asked = abstract(jax.eval_shape(request), everywhere)
  prompt = jnp.zeros((B, 64), jnp.int32), jnp.ones(B, jnp.int32)
  start = time.perf_counter()
  with jax.set_mesh(mesh):
    start_ = functools.partial(speculate.start, method, capacity=config.capacity)
    state = jax.eval_shape(start_, params, *prompt, asked)
    held = state.cache
    state = abstract(state, everywhere)
    if cache == DENSE:
      kv = abstract(held.kv, NamedSharding(mesh, sharding.KV_CACHE))
      state = state._replace(cache=held._replace(kv=kv, length=state.cache.length))
    rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    lowered = speculate.compiled_advance.lower(method, params, asked, state, rounds)
    compiled = lowered.compile()
  data, model_axis = MESHES[name]
  rows, heads = B // data, 8 // model_axis
  text = compiled.as_text() or ""
  # A copy in pieces ends in a custom call that joins them, and XLA makes two products one by
  # concatenating their operands.
  shape = rf"{rows},{heads},(?:{config.capacity}|{config.capacity + method.drafter.nodes}),128"
  copying = rf"= bf16\[{shape}\]\S* (?:copy|copy-done|custom-call|concatenate)\("
  copies = re.findall(copying, text)
  talk = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
  memory = compiled.memory_analysis()
  assert memory is not None
  cache_bytes = size_of(state.cache)
  return {
    "topology": name, "cache": cache, "data": data, "model": model_axis, "layers": config.layers,
    "batch": B, "capacity": config.capacity, "nodes": method.drafter.nodes,
    "kernels": len(re.findall("tpu_custom_call", lowered.as_text())),
    "argument_bytes": memory.argument_size_in_bytes, "cache_bytes": cache_bytes,
    "temp_bytes": memory.temp_size_in_bytes, "cache_copies": len(copies),
    "collectives": collections.Counter(re.findall(talk, text)),
    "seconds": round(time.perf_counter() - start, 1),
  }  # fmt: skip


def main(config: Config) -> None:
  for name in config.topologies:
    reason = topology.absent(name) if name in MESHES else f"accepted are {', '.join(MESHES)}"
    if reason is None and math.prod(MESHES[name]) > 1 and config.caches != (DENSE,):
      reason = f"accepted with caches={' '.join(config.caches)} are topologies of one chip"
    if reason is not None:
      raise ValueError(f"topologies={name!r}: {reason}.")
  report.directory(config.out)
  each = itertools.product(config.topologies, config.caches)
  cells = [compiled_for(name, cache, config) for name, cache in each]
  text = table.markdown([cell | {"collectives": dict(cell["collectives"])} for cell in cells])
  report.publish(config, {"topologies": cells}, text)


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
