r"""The whole denoising loop of an 8B model, compiled for chips that this machine lacks.

    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 2 --canvas 4096 --batch 1

The network has the shape of LLaDA-8B, in bfloat16. The report has for each topology and cache the
bytes per chip: of the arguments, which are weights, cache and canvas, and beyond them. Next to
these stand the bytes of the scores of one layer, heads x slots x slots in float32, which no pass
should hold. Nothing is executed or timed. The script needs the compilers (pip install .[aot]).
"""

import dataclasses
import functools
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from specjax import checks, script
from specjax.diffusion import denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.blocks import fixed
from specjax.diffusion.caches import CACHES
from specjax.diffusion.policies.threshold import threshold
from specjax.eval import report, table
from specjax.kernels import topology
from specjax.models import denoiser, sharding, transformer
from specjax.models.config import Config as ModelConfig
from specjax.models.weights import parameter
from specjax.sampling import request_keys


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  topologies: tuple[str, ...] = ("v5p:1",)  # names of `topology.CHIPS`
  caches: tuple[str, ...] = ("none",)  # what of earlier passes is used again
  layers: int = 32  # of LLaDA-8B's shape; fewer compile faster
  batch: int = 8  # B, texts filled together
  canvas: int = 1024  # L, slots of a text
  block: int = 32  # slots that are filled together
  out: str = "results/denoising_loop"  # directory of the report


def compiled_for(name: str, cache: str, config: Config) -> dict:
  """Compiles the loop for one topology and one cache."""
  mesh = topology.mesh(name)
  everywhere = NamedSharding(mesh, PartitionSpec())
  model = ModelConfig(
    vocab_size=126464, width=4096, layers=config.layers, heads=32, kv_heads=32, head_dim=128,
    mlp_width=12288, max_length=config.canvas + config.block, rope_theta=500000.0, tied=False,
    causal=False,
  )  # fmt: skip
  B, L = config.batch, config.canvas + config.block
  network, blocks = denoiser.denoiser(model, 126336), fixed(config.block)
  method = denoise.Method(
    network, CACHES[cache](network, blocks.window), threshold(), blocks, stopping.after_end()
  )

  def weights():
    params = sharding.split(transformer.init(model, jax.random.key(0)))
    return jax.tree.map(lambda x: parameter(x, jnp.bfloat16, "float"), params)

  def parts():
    knobs = jax.tree.map(lambda x: jnp.full(B, x, jnp.float32), threshold().knobs())
    canvas = Canvas(
      jnp.zeros((B, L), jnp.int32), jnp.ones((B, L), bool), jnp.full(B, config.canvas)
    )
    return knobs, canvas, denoise.Request(request_keys(0, jnp.arange(B)), jnp.zeros(B))

  def placed(tree, place=everywhere):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)

  shapes = jax.eval_shape(weights)
  params = jax.tree.map(
    lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p),
    shapes, sharding.of_params(shapes, mesh),
  )  # fmt: skip
  knobs, canvas, request = placed(jax.eval_shape(parts))
  ends = jax.ShapeDtypeStruct((1,), jnp.int32, sharding=everywhere)
  own = denoise.Weights(params, knobs, stopping=ends)
  begin = time.perf_counter()
  with jax.set_mesh(mesh):
    state = placed(jax.eval_shape(functools.partial(denoise.start, method), own, canvas))
    kept = [x for x in jax.tree.leaves(state.cache) if x.ndim == 4]
    rows = jax.tree.map(
      lambda x: placed(x, NamedSharding(mesh, sharding.KV_CACHE)) if x.ndim == 4 else x, state.cache
    )
    rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    compiled = denoise.compiled_advance.lower(
      method, own, request, state._replace(cache=rows), rounds
    ).compile()
  memory = compiled.memory_analysis()
  assert memory is not None
  chips = topology.CHIPS[name]
  shares = chips.data * chips.model  # of rows and heads
  return {
    "topology": name, "cache": cache, "layers": config.layers, "batch": B, "canvas": config.canvas,
    "argument GB": round(memory.argument_size_in_bytes / 1e9, 2),
    "cache GB": round(sum(x.size * x.dtype.itemsize for x in kept) / shares / 1e9, 2),
    "beyond GB": round(memory.temp_size_in_bytes / 1e9, 2),
    "scores GB": round(4 * B * model.heads / shares * L * L / 1e9, 2),
    "seconds": round(time.perf_counter() - begin, 1),
  }  # fmt: skip


def main(config: Config) -> None:
  topology.check(config.topologies)
  for name in config.caches:
    checks.choice("caches", name, CACHES)
  report.directory(config.out)
  cells = [compiled_for(t, cache, config) for t in config.topologies for cache in config.caches]
  report.publish(config, {"loops": cells}, table.markdown(cells))


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
