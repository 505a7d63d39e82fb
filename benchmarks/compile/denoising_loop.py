r"""The whole denoising loop of an 8B model, compiled for chips that this machine lacks.

    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 2 --canvas 4096 --batch 1
    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 1 2 \
      --topologies v5e:2x2 v5p:1 h100:1 --caches none prefix dual
    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 1 2 \
      --topologies v5e:2x2 v5p:1 h100:1 --model sdar-8b --caches none committed

The network has the shape of LLaDA-8B or of SDAR-8B, in bfloat16. The report has for each topology
and cache the bytes per chip: of the arguments, which are weights, cache and canvas, and beyond
them; the number of copies of the cache, which should be 0; and the bytes of the scores of one
layer, heads x slots x slots in float32, which no pass should hold. Layers are alike, so that from
two numbers of them follows the whole model, which the report has beside them. Nothing is executed
or timed. The script needs the compilers (pip install .[aot]).
"""

import dataclasses
import functools
import itertools
import sys
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from specjax import checks, command_line
from specjax.diffusion import denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.blocks import fixed
from specjax.diffusion.caches import CACHES
from specjax.diffusion.policies.threshold import threshold
from specjax.eval import compiled, report, table
from specjax.eval.compiled import placed
from specjax.kernels import topology
from specjax.models import denoiser, sharding, transformer
from specjax.models.config import Config as ModelConfig
from specjax.models.weights import parameter
from specjax.sampling import new_key, request_keys

MODELS = {
  "llada-8b": ModelConfig(
    vocab_size=126464,
    width=4096,
    layers=32,
    heads=32,
    kv_heads=32,
    head_dim=128,
    mlp_width=12288,
    rope_theta=500000.0,
    tied=False,
    causal=False,
  ),
  "sdar-8b": ModelConfig(
    vocab_size=151936,
    width=4096,
    layers=36,
    heads=32,
    kv_heads=8,
    head_dim=128,
    mlp_width=12288,
    rope_theta=1000000.0,
    tied=False,
    qk_norm=True,
    causal=False,
  ),
}
"""LLaDA sees the whole canvas, SDAR is causal over blocks."""


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  model: Literal["llada-8b", "sdar-8b"] = "llada-8b"  # whose shape the network has
  topologies: tuple[str, ...] = ("v5p:1",)  # names of `topology.CHIPS`
  caches: tuple[str, ...] = ("none",)  # what of earlier passes is used again
  layers: tuple[int, ...] = ()  # numbers of layers that are compiled, rising; () is all
  batch: int = 8  # B, texts filled together
  canvas: int = 1024  # L, slots of a text
  block: int = 32  # slots that are filled together
  out: str = "results/denoising_loop"  # directory of the report


def compiled_for(name: str, cache: str, layers: int, config: Config) -> dict:
  """Compiles the loop of so many layers for one topology and one cache."""
  mesh = topology.mesh(name)
  everywhere = NamedSharding(mesh, PartitionSpec())
  model = dataclasses.replace(
    MODELS[config.model],
    layers=layers,
    max_length=config.canvas + config.block,
    block_length=config.block if config.model == "sdar-8b" else None,
  )
  B, L = config.batch, config.canvas + config.block
  network, blocks = denoiser.denoiser(model, model.vocab_size - 1), fixed(config.block)
  method = denoise.DenoiseMethod(
    network, CACHES[cache](network, blocks.window), threshold(), blocks, stopping.after_end()
  )

  def weights():
    params = sharding.split(transformer.init(model, new_key(0)))
    return jax.tree.map(lambda x: parameter(x, jnp.bfloat16, "float"), params)

  def parts():
    parameters = jax.tree.map(lambda x: jnp.full(B, x, jnp.float32), threshold().parameters())
    canvas = Canvas(
      jnp.zeros((B, L), jnp.int32), jnp.ones((B, L), bool), jnp.full(B, config.canvas)
    )
    return parameters, canvas, denoise.DenoiseRequest(request_keys(0, jnp.arange(B)), jnp.zeros(B))

  shapes = jax.eval_shape(weights)
  params = placed(shapes, sharding.of_params(shapes, mesh))
  parameters, canvas, request = placed(jax.eval_shape(parts), everywhere)
  ends = jax.ShapeDtypeStruct((1,), jnp.int32, sharding=everywhere)
  own = denoise.Weights(params, parameters, stopping=ends)
  with jax.set_mesh(mesh):
    start = functools.partial(denoise.start, method)
    state = placed(jax.eval_shape(start, own, canvas), everywhere)
    kept = [x for x in jax.tree.leaves(state.cache) if x.ndim == 4]
    spread = NamedSharding(mesh, sharding.KV_CACHE)
    rows = jax.tree.map(lambda x: placed(x, spread) if x.ndim == 4 else x, state.cache)
    rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    found, text = compiled.found(
      denoise.compiled_advance.lower(method, own, request, state._replace(cache=rows), rounds)
    )
  chips = topology.CHIPS[name]
  shares = chips.data * chips.model  # of rows and heads
  copies = sum(
    compiled.copies(text, f"{b // chips.data},{K // chips.model},{S},{C}")
    for b, K, S, C in {x.shape for x in kept}
  )
  return {
    "topology": name, "cache": cache, "layers": layers, "batch": B, "canvas": config.canvas,
    "cache_bytes": sum(x.size * x.dtype.itemsize for x in kept) // shares, "cache_copies": copies,
    "scores_bytes": 4 * B * model.heads // shares * L * L, **found,
  }  # fmt: skip


def main(config: Config) -> None:
  for name in config.caches:
    checks.choice("caches", name, CACHES)
  compiled.check_layers(config.layers)
  topology.check(config.topologies)
  report.directory(config.out)
  cells = []
  for name, cache in itertools.product(config.topologies, config.caches):
    one = functools.partial(compiled_for, name, cache, config=config)
    cells += compiled.by_layers(one, config.layers, MODELS[config.model].layers)
  report.publish(config, {"loops": cells}, table.markdown(list(map(compiled.row, cells))))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
