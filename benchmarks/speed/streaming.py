r"""A target's pass compared with the reading of its weights, and what more nodes add to it.

    python benchmarks/speed/streaming.py

The model is a random Llama: 8B on an accelerator (bf16, Llama 3's shape), 134M parameters on CPU
(float32). A pass over N nodes is given in passes over one. Plain decoding is compared with reading
the weights (without the embedding, which is only looked up) at the bandwidth of a copy, measured in
turns. A copy reads and writes, so that the share can exceed 100 % where reading alone is faster.
"""

import dataclasses
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specjax import script
from specjax.base import Params
from specjax.decoding.decoder import Decoder
from specjax.decoding.model import Model
from specjax.eval import report, verify_cost
from specjax.kernels.tree_attention.tune import timed
from specjax.models import transformer
from specjax.models.config import Config as ModelConfig
from specjax.train.recipe.config import Network

ON_CPU = jax.default_backend() == "cpu"
SMALL = Network(width=768, layers=12, heads=12, kv_heads=12, head_dim=64, mlp_width=2048)
LLAMA_3_8B = Network(width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp_width=14336)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  network: Network = SMALL if ON_CPU else LLAMA_3_8B  # shape of the target
  vocab_size: int = 32000 if ON_CPU else 128256  # V, size of the vocabulary
  dtype: str = "float32" if ON_CPU else "bfloat16"  # dtype of the weights
  batch: int = 1  # B, texts decoded together
  context: int = 256  # cached tokens
  nodes: tuple[int, ...] = (1, 4, 8, 16, 32, 64)  # N of each pass; the first is the unit
  tokens: int = 32 if ON_CPU else 128  # number of tokens decoded in one timing
  repeats: int = 7  # timings; their median counts
  out: str = "results/streaming"  # directory of the report


def random_weights(model: ModelConfig, dtype: str) -> Params:
  """Random weights, drawn one matrix at a time, so that they take no more memory than the model."""
  shapes = jax.eval_shape(lambda: transformer.init(model, jax.random.key(0)))
  leaves, tree = jax.tree.flatten(shapes)
  draw = jax.jit(lambda key, shape: 0.02 * jax.random.normal(key, shape, dtype), static_argnums=1)
  keys = jax.random.split(jax.random.key(0), len(leaves))
  drawn = [draw(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
  return jax.tree.unflatten(tree, drawn)


def plain(config: Config, model: ModelConfig, params: Params) -> Callable[[], float]:
  """Plain decoding; a call returns the seconds of a pass, without prefill and compilation."""
  loaded = Model("random", model, params, None, (), (), None)
  decode = Decoder(loaded, batch=config.batch)
  text = [i % model.vocab_size for i in range(config.context)]

  def once() -> float:
    result = decode([text] * config.batch, config.tokens)[0]
    return result.seconds / result.forwards

  return once


def main(config: Config) -> None:
  report.check(config, "repeats", "tokens", "nodes", "context", "batch")
  model = ModelConfig(
    vocab_size=config.vocab_size, **dataclasses.asdict(config.network), tied=False,
    max_length=config.context + config.tokens,
  )  # fmt: skip
  report.directory(config.out)
  params = random_weights(model, config.dtype)
  looked_up = params["params"]["embedding"]  # the model is not tied: its head is another matrix
  bytes_read = sum(x.nbytes for x in jax.tree.leaves(params)) - looked_up.nbytes
  copied = jnp.zeros(bytes_read // 8, jnp.float32)  # as many bytes, half of them written
  ways = {"copy": timed(lambda x: x + 1, (copied,), 4), "plain": plain(config, model, params)}
  turns = [{name: once() for name, once in ways.items()} for _ in range(config.repeats)]
  seconds = {name: float(np.median([turn[name] for turn in turns])) for name in ways}
  bandwidth = 2 * copied.nbytes / seconds["copy"]
  share = bytes_read / bandwidth / seconds["plain"]
  cost = verify_cost.measure(
    transformer.target(model), params, config.context, batch=config.batch, nodes=config.nodes,
    repeats=config.repeats,
  )  # fmt: skip
  text = (
    f"Weights read: {bytes_read / 1e9:.2f} GB; a copy moves {bandwidth / 1e9:.1f} GB/s. Plain "
    f"decoding takes {1e3 * seconds['plain']:.2f} ms a pass, {share:.0%} of a copy's speed.\n\n"
    + cost.markdown
  )
  report.publish(config, {
    "bytes": bytes_read, "copy_bytes_per_second": bandwidth, "plain_seconds": seconds["plain"],
    "share": share, "verify": cost._asdict(),
  }, text)  # fmt: skip


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
