r"""A target's pass compared with the reading of its weights, and what more nodes add to it.

    python benchmarks/speed/streaming.py
    python benchmarks/speed/streaming.py --weights int8

The model is a random Llama: 8B on an accelerator (bf16, Llama 3's shape), 134M parameters on CPU
(float32). A pass over N nodes is given in passes over one. Plain decoding is compared with reading
the weights (without the embedding, which is only looked up) at the bandwidth of a copy, measured in
turns. A copy reads and writes, so that the share can exceed 100 % where reading alone is faster.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from specjax import command_line
from specjax.base import Params
from specjax.decoding.decoder import Decoder
from specjax.eval import report, verify_cost
from specjax.eval.random_model import SIZES, Size, random_weights
from specjax.kernels.tree_attention.tune import timed
from specjax.models import transformer
from specjax.models.config import Config as ModelConfig
from specjax.names.load import Model

ON_CPU = jax.default_backend() == "cpu"


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  size: Size = "134m" if ON_CPU else "8b"  # of the target
  dtype: str = "float32" if ON_CPU else "bfloat16"  # dtype of the arithmetic
  weights: Literal["float", "int8"] = "float"  # matrices in this dtype, or in 8 bits
  batch: int = 1  # B, texts decoded together
  context: int = 256  # cached tokens
  nodes: tuple[int, ...] = (1, 4, 8, 16, 32, 64)  # N of each pass; the first is the unit
  tokens: int = 32 if ON_CPU else 128  # number of tokens decoded in one timing
  repeats: int = 7  # timings; their median counts
  out: str = "results/streaming"  # directory of the report


def plain(config: Config, model: ModelConfig, params: Params) -> Callable[[], float]:
  """Plain decoding; a call returns the seconds of a pass, without prefill and compilation."""
  loaded = Model(
    "random", model, params, None, (), (), None, dtype=config.dtype, weights=config.weights
  )
  decode = Decoder(loaded, batch=config.batch)
  text = [i % model.vocab_size for i in range(config.context)]

  def once() -> float:
    result = decode([text] * config.batch, config.tokens)[0]
    return result.seconds / result.passes

  return once


def main(config: Config) -> None:
  report.check(config, "repeats", "tokens", "nodes", "context", "batch")
  length = config.context + config.tokens
  model = dataclasses.replace(SIZES[config.size], max_length=length)
  out = report.directory(config.out)
  params = random_weights(model, config.dtype, config.weights)
  read = params["params"] | {"embedding": ()}  # which is only looked up: the head is another matrix
  bytes_read = sum(x.nbytes for x in jax.tree.leaves(read))
  copied = jnp.zeros(bytes_read // 8, jnp.float32)  # as many bytes, half of them written
  ways = {"copy": timed(lambda x: x + 1, (copied,), 4), "plain": plain(config, model, params)}
  turns = [{name: once() for name, once in ways.items()} for _ in range(config.repeats)]
  seconds = {name: float(np.median([turn[name] for turn in turns])) for name in ways}
  bandwidth = 2 * copied.nbytes / seconds["copy"]
  share = bytes_read / bandwidth / seconds["plain"]
  del ways, copied
  text = (
    f"Weights read: {bytes_read / 1e9:.2f} GB; a copy moves {bandwidth / 1e9:.1f} GB/s. Plain "
    f"decoding takes {1e3 * seconds['plain']:.2f} ms a pass, {config.batch / seconds['plain']:.1f} "
    f"tokens a second, {share:.0%} of a copy's speed."
  )
  found: dict[str, Any] = {
    "bytes": bytes_read, "copy_bytes_per_second": bandwidth, "plain_seconds": seconds["plain"],
    "tokens_per_second": config.batch / seconds["plain"], "share": share,
  }  # fmt: skip
  report.save(out, report.summary(config, found), text)  # what follows takes longer
  cost = verify_cost.measure(
    transformer.target(model),
    params,
    config.context,
    batch=config.batch,
    nodes=config.nodes,
    repeats=config.repeats,
  )
  report.publish(config, found | {"verify": cost._asdict()}, f"{text}\n\n{cost.markdown}")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
