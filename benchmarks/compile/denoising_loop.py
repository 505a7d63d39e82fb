r"""The whole denoising loop of a large model, compiled for chips that this machine lacks.

    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 2 --canvas 4096 --batch 1
    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 1 2 \
      --topologies v5e:2x2 v5p:1 h100:1 --caches none prefix dual
    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 1 2 \
      --topologies v5e:2x2 v5p:1 h100:1 --model sdar-8b --caches none committed
    JAX_PLATFORMS=cpu python benchmarks/compile/denoising_loop.py --layers 6 12 \
      --topologies h100:1 --model diffusion-gemma-26b --caches encoded --canvas 256 --block 256

The network has the shape of LLaDA-8B, of SDAR-8B or of DiffusionGemma, in bfloat16. The report has
for each topology and cache the bytes per chip: of the arguments, which are weights, cache and
canvas, and beyond them, and both over those of a chip that has exactly its share of the arguments;
the number of copies of the cache, which should be 0; how many arrays of float32 the program writes
that have a number for each slot of the window and token of the vocabulary; and the bytes of the
scores of one layer, heads x slots x slots in float32, which no pass should hold. Layers are alike,
those of DiffusionGemma six by six, so that from two numbers of them follows the whole model, which
the report has beside them. Nothing is executed or timed. The script needs the compilers (pip
install .[aot]).
"""

import dataclasses
import functools
import itertools
import math
import sys
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax import checks, command_line
from specjax.checkpoints import families
from specjax.diffusion import denoise, draws, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.blocks import fixed
from specjax.diffusion.caches import CACHES as OF_DENOISERS
from specjax.diffusion.caches.encoded import encoded
from specjax.diffusion.cooling import Cooling, cooling
from specjax.diffusion.policies.best import EntropyBound, entropy_bound
from specjax.diffusion.policies.renoise import Renoised, Settled, renoise, settled
from specjax.diffusion.policies.threshold import threshold
from specjax.eval import compiled, report, table
from specjax.eval.compiled import placed
from specjax.kernels import topology
from specjax.models import denoiser, sharding, transformer
from specjax.models.config import Config as ModelConfig
from specjax.models.weights import parameter
from specjax.sampling import new_key, request_keys

CACHES = OF_DENOISERS | {"encoded": encoded}  # DiffusionGemma has that one alone
Name = Literal["llada-8b", "sdar-8b", "diffusion-gemma-26b"]
MODELS: dict[Name, ModelConfig] = {
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
GEMMA_LAYERS = 30
GEMMA = {
  "model_type": "diffusion_gemma_text", "vocab_size": 262144, "hidden_size": 2816,
  "intermediate_size": 2112, "num_attention_heads": 16,
  "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
  "num_global_key_value_heads": 2, "sliding_window": 1024, "num_experts": 128,
  "top_k_experts": 8, "moe_intermediate_size": 704, "canvas_length": 256,
}  # fmt: skip
"""DiffusionGemma, with the sizes of Gemma 4's 26B with 4B active."""


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  model: Name = "llada-8b"  # whose shape the network has
  topologies: tuple[str, ...] = ("v5p:1",)  # names of `topology.CHIPS`
  caches: tuple[str, ...] = ("none",)  # what of earlier passes is used again
  layers: tuple[int, ...] = ()  # numbers of layers that are compiled, rising; () is all
  batch: int = 8  # B, texts filled together
  canvas: int = 1024  # L, slots of a text
  block: int = 32  # slots that are filled together
  out: str = "results/denoising_loop"  # directory of the report


def model_of(layers: int, config: Config) -> ModelConfig:
  """The network with so many layers."""
  length = config.canvas + config.block
  if config.model == "diffusion-gemma-26b":
    sizes = {"num_hidden_layers": layers, "max_position_embeddings": length}
    return families.FAMILIES["diffusion_gemma_text"].from_json(GEMMA | sizes)
  block = config.block if config.model == "sdar-8b" else None
  own = MODELS[config.model]
  return dataclasses.replace(own, layers=layers, max_length=length, block_length=block)


def method_of(model: ModelConfig, cache: str, block: int) -> tuple[denoise.DenoiseMethod, Any, Any]:
  """The method as it is published, with the parameters of its policy and of its transforms."""
  blocks = fixed(block)
  uniform = model.canvas is not None
  network = denoiser.denoiser(model, None if uniform else model.vocab_size - 1)
  parts = network, CACHES[cache](network, blocks.window)
  if not uniform:
    policy = threshold()
    method = denoise.DenoiseMethod(*parts, policy, blocks, stopping.after_end())
    return method, policy.parameters(), ()
  policy = settled(renoise(entropy_bound()))
  method = denoise.DenoiseMethod(
    *parts, policy, blocks, stopping.after_end(), (cooling(),), draws.anew()
  )
  return method, Settled(Renoised(EntropyBound())), (Cooling(),)


def spread(x: Any, mesh: Mesh) -> Any:
  """Keys or values [B, K, S, C] of a cache, with heads over "model" if it divides them; all else
  stays."""
  if x.ndim != 4:
    return x
  heads = "model" if x.shape[1] % mesh.shape["model"] == 0 else None
  return placed(x, NamedSharding(mesh, PartitionSpec("data", heads)))


def compiled_for(name: str, cache: str, layers: int, config: Config) -> dict:
  """Compiles the loop of so many layers for one topology and one cache."""
  mesh = topology.mesh(name)
  everywhere = NamedSharding(mesh, PartitionSpec())
  model = model_of(layers, config)
  B, W, L = config.batch, config.block, config.canvas + config.block
  method, policy, transforms = method_of(model, cache, config.block)

  def weights():
    params = sharding.split(transformer.init(model, new_key(0)))
    return jax.tree.map(lambda x: parameter(x, jnp.bfloat16, "float"), params)

  def parts():
    parameters = jax.tree.map(lambda x: jnp.full(B, x), (policy, transforms))
    canvas = Canvas(
      jnp.zeros((B, L), jnp.int32), jnp.ones((B, L), bool), jnp.full(B, config.canvas)
    )
    return parameters, canvas, denoise.DenoiseRequest(request_keys(0, jnp.arange(B)), jnp.zeros(B))

  shapes = jax.eval_shape(weights)
  params = placed(shapes, sharding.of_params(shapes, mesh))
  parameters, canvas, request = placed(jax.eval_shape(parts), everywhere)
  ends = jax.ShapeDtypeStruct((1,), jnp.int32, sharding=everywhere)
  own = denoise.Weights(params, parameters[0], stopping=ends, transforms=parameters[1])
  with jax.set_mesh(mesh):
    start = functools.partial(denoise.start, method)
    state = placed(jax.eval_shape(start, own, canvas), everywhere)
    cache_ = jax.tree.map(functools.partial(spread, mesh=mesh), state.cache)
    kept = [x for x in jax.tree.leaves(cache_) if x.ndim == 4]
    rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    found, text = compiled.found(
      denoise.compiled_advance.lower(method, own, request, state._replace(cache=cache_), rounds)
    )
  shares = mesh.size  # of rows and heads
  found["ideal_bytes"] = compiled.share((own, state), shares)
  parts_ = [x.sharding.shard_shape(x.shape) for x in kept]
  copies = sum(compiled.copies(text, ",".join(map(str, shape))) for shape in set(parts_))
  held = sum(math.prod(n) * x.dtype.itemsize for n, x in zip(parts_, kept, strict=True))
  return {
    "topology": name, "model": config.model, "cache": cache, "layers": layers, "batch": B,
    "canvas": config.canvas, "cache_bytes": held, "cache_copies": copies,
    "vocabularies": compiled.written(text, "f32", B * W * model.vocab_size // shares),
    "scores_bytes": 4 * B * model.heads // shares * L * L, **found,
  }  # fmt: skip


def main(config: Config) -> None:
  for name in config.caches:
    checks.choice("caches", name, CACHES)
  compiled.check_layers(config.layers)
  topology.check(config.topologies)
  report.directory(config.out)
  whole = MODELS[config.model].layers if config.model in MODELS else GEMMA_LAYERS
  cells = []
  for name, cache in itertools.product(config.topologies, config.caches):
    one = functools.partial(compiled_for, name, cache, config=config)
    cells += compiled.by_layers(one, config.layers, whole)
  report.publish(config, {"loops": cells}, table.markdown(list(map(compiled.row, cells))))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
