r"""A target's pass is the reading of its weights: how near to that it comes, and what nodes add.

    python benchmarks/streaming.py

A random Llama of 8B on an accelerator (bf16, Llama 3's shape), of 134M parameters on CPU (float32).
Verify: a pass over N nodes after a cached text, in passes over one. Plain decoding: tokens per
second, against the weights' bytes (without an embedding that is only looked up) over the bandwidth
of a copy measured in the same run, in turns. A copy reads and writes; where reading alone is faster
the share can pass 100 %.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from specjax import drafters, speculate
from specjax.base import Params
from specjax.decoding.method import method as pair
from specjax.eval import verify_cost
from specjax.eval.environment import environment
from specjax.kernels.tree_attention.tune import timed
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer, target
from specjax.sampling import Settings, request_keys
from specjax.verifiers import greedy

ON_CPU = jax.default_backend() == "cpu"


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured.

  Attributes:
    width, layers, heads, kv_heads, head_dim, mlp_width, vocab_size, dtype: of the target.
    batch: B.
    context: cached tokens.
    nodes: N of each verify pass; the first is the unit.
    tokens: decoded in one timing.
    repeats: timings; their median counts.
    out: where the report goes.
  """

  width: int = 768 if ON_CPU else 4096
  layers: int = 12 if ON_CPU else 32
  heads: int = 12 if ON_CPU else 32
  kv_heads: int = 12 if ON_CPU else 8
  head_dim: int = 64 if ON_CPU else 128
  mlp_width: int = 2048 if ON_CPU else 14336
  vocab_size: int = 32000 if ON_CPU else 128256
  dtype: str = "float32" if ON_CPU else "bfloat16"
  batch: int = 1
  context: int = 256
  nodes: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
  tokens: int = 32 if ON_CPU else 128
  repeats: int = 7
  out: str = "results/streaming.json"


def random_weights(model: ModelConfig, dtype: str) -> Params:
  """Each matrix by itself, so that nothing larger than the model is ever held."""
  z = jnp.zeros((1, 2), jnp.int32)
  shapes = jax.eval_shape(
    Transformer(model).init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool)
  )
  leaves, tree = jax.tree.flatten(shapes)
  draw = jax.jit(lambda key, shape: 0.02 * jax.random.normal(key, shape, dtype), static_argnums=1)
  keys = jax.random.split(jax.random.key(0), len(leaves))
  drawn = [draw(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
  return jax.tree.unflatten(tree, drawn)


def streamed(params: Params) -> int:
  """Bytes of the weights that a pass reads."""
  held = params["params"]
  total = sum(x.nbytes for x in jax.tree.leaves(held))
  return total - held["embedding"].nbytes if "lm_head" in held else total


def plain(config: Config, model: ModelConfig, params: Params) -> Callable[[], float]:
  """Compiled plain decoding; gives the seconds of a token, prefill aside."""
  B, T = config.batch, config.context
  method = pair(target(model), drafters.none(), greedy())
  weights = speculate.Weights(params, ())
  one, zero = jnp.ones(B), jnp.zeros(B, jnp.int32)
  settings = Settings(0 * one, zero, one, 0 * one)
  nothing = jnp.full(1, -1, jnp.int32)
  limit = zero + T + config.tokens
  request = speculate.Request(settings, request_keys(0, np.arange(B)), limit, nothing)
  capacity = speculate.capacity_for(T, config.tokens, 0)
  text = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32) % model.vocab_size, (B, T))

  def once() -> float:
    state = speculate.compiled_start(method, weights, text, zero + T, request, capacity)
    jax.block_until_ready(state)
    start = time.perf_counter()
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(config.tokens))
    forwards = int(jax.block_until_ready(state).stats.forwards.max())
    return (time.perf_counter() - start) / forwards

  once()
  return once


def main(config: Config) -> None:
  model = ModelConfig(
    vocab_size=config.vocab_size, width=config.width, layers=config.layers, heads=config.heads,
    kv_heads=config.kv_heads, head_dim=config.head_dim, mlp_width=config.mlp_width, tied=False,
  )  # fmt: skip
  params = random_weights(model, config.dtype)
  bytes_read = streamed(params)
  copied = jnp.zeros(bytes_read // 8, jnp.float32)  # as many bytes, half of them written
  ways = {
    "copy": timed(lambda x: x + 1, (copied,), 4), "plain": plain(config, model, params),
  }  # fmt: skip
  turns = [{name: once() for name, once in ways.items()} for _ in range(config.repeats)]
  seconds = {name: float(np.median([turn[name] for turn in turns])) for name in ways}
  bandwidth = 2 * copied.nbytes / seconds["copy"]
  share = bytes_read / bandwidth / seconds["plain"]
  cost = verify_cost.measure(
    target(model), params, config.context, batch=config.batch, nodes=config.nodes,
    repeats=config.repeats,
  )  # fmt: skip
  print(f"weights read {bytes_read / 1e9:.2f} GB, a copy moves {bandwidth / 1e9:.1f} GB/s")
  print(f"plain decoding {1e3 * seconds['plain']:.2f} ms a pass, {share:.0%} of a copy's speed")
  print("| nodes | ms | passes over one | fastest | slowest |\n|---|---|---|---|---|")
  for n, each, times, *ends in zip(
    cost.nodes, cost.seconds, cost.relative, cost.low, cost.high, strict=True
  ):
    low, high = (1e3 * x for x in ends)
    print(f"| {n} | {1e3 * each:.2f} | {times:.2f} | {low:.2f} | {high:.2f} |")
  out = pathlib.Path(config.out)
  out.parent.mkdir(parents=True, exist_ok=True)
  report = {
    **environment(), "config": dataclasses.asdict(config), "bytes": bytes_read,
    "copy_bytes_per_second": bandwidth, "plain_seconds": seconds["plain"], "share": share,
    "verify": cost._asdict(),
  }  # fmt: skip
  out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
