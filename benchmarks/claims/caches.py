r"""What compressed caches cost: the likelihood of texts, and the bytes of a token.

    python benchmarks/claims/caches.py --model smollm2-135m --prompts spec_bench.jsonl \
        --caches int8 gear-4 gear-2 mustafar-0.5 keyformer-0.5 sinks-4,recent=252 \
        token_select-128,first=16,recent=112

The prompts that are long enough are cut to one length and read a few tokens at a time, as
decoding would commit them, over each cache. Perplexity is that of all tokens behind the first
`chunk`; a token agrees where the likeliest one is that of the dense cache. Bytes are those of the
whole cache, at its capacity, for each token of each text. Times are those of all passes, and of the
last ones, which read the most.
"""

import dataclasses
import functools
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from specjax import checks, command_line
from specjax.base import Params, Target
from specjax.cli.arguments import Weights
from specjax.eval import prompts, report, table
from specjax.names.build.cache import DENSE, build_cache

LAST = 16  # passes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(prompts.Questions):
  """What is compared."""

  weights: Weights = "float"  # how matrices lie in memory
  caches: tuple[str, ...] = ("int8", "gear-4", "mustafar-0.5", "keyformer-0.5")
  length: int = 1024  # tokens of a text
  chunk: int = 16  # tokens committed at a time
  batch: int = 4  # texts read together
  limit: int | None = 20
  out: str = "results/caches"


@functools.partial(jax.jit, static_argnames=("target", "capacity"))
def begin(target: Target, params: Params, tokens: Array, capacity: int) -> Any:
  """The cache of all tokens i32[B, n] but the last."""
  length = jnp.full(len(tokens), tokens.shape[1], jnp.int32)
  return target.prefill(params, tokens, length, capacity)[0]


@functools.partial(jax.jit, static_argnames="target", donate_argnames="cache")
def read(
  target: Target, params: Params, cache: Any, tokens: Array, following: Array
) -> tuple[Any, Array, Array]:
  """(cache, log-probability f32[B, N] of what follows each token, the likeliest i32[B, N])."""
  B, N = tokens.shape
  step = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), (B, N))
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((N, N), bool)), (B, N, N))
  found = target.evaluate(params, cache, tokens, step, causal)
  said = jax.nn.log_softmax(found.logits)
  cache = target.commit(cache, found.kv, step, jnp.full(B, N, jnp.int32))
  likely = jnp.argmax(said, -1).astype(jnp.int32)
  return cache, jnp.take_along_axis(said, following[..., None], -1)[..., 0], likely


def follow(target: Target, params: Params, texts: np.ndarray, config: Config) -> dict[str, Any]:
  """What a target says of texts [rows, length]."""
  said, likely, seconds, size = [], [], [], 0
  last: list[float] = []
  for first in range(0, len(texts), config.batch):
    text = jnp.asarray(texts[first : first + config.batch])
    cache = begin(target, params, text[:, : config.chunk], config.length + config.chunk)
    size = sum(x.nbytes for x in jax.tree.leaves(cache)) // len(text)
    for at in range(config.chunk - 1, config.length - config.chunk, config.chunk):
      started = time.perf_counter()
      cache, log_probs, best = read(
        target,
        params,
        cache,
        text[:, at : at + config.chunk],
        text[:, at + 1 : at + 1 + config.chunk],
      )
      said.append(np.asarray(log_probs))
      likely.append(np.asarray(best))
      seconds.append(time.perf_counter() - started)
    last += seconds[-LAST:]
  return {
    "tokens": sum(x.size for x in said), "perplexity": float(np.exp(-np.mean(said))),
    "likely": np.concatenate([x.ravel() for x in likely]),
    "bytes": size / (config.length + config.chunk), "ms": 1e3 * float(np.median(seconds)),
    "last ms": 1e3 * float(np.median(last)),
  }  # fmt: skip


def main(config: Config) -> None:
  checks.whole("chunk", config.chunk, 2, config.length // 2)
  checks.whole("batch", config.batch, 1)
  model = specjax.load(config.model, weights=config.weights)
  asked = dataclasses.replace(config, limit=None).read(model)
  texts = [item.ids[: config.length] for item in asked if len(item.ids) >= config.length]
  texts = texts[: config.limit]
  texts = texts[: len(texts) // config.batch * config.batch]  # one compiled shape
  if not texts:
    raise ValueError(
      f"`length` must be at most the tokens of batch={config.batch} prompts, got {config.length}."
    )
  kinds = [build_cache(model, name) for name in (DENSE, *config.caches)]
  report.directory(config.out)
  rows, cells, dense = [], [], np.zeros(0)
  for name, target in report.progress(kinds, "reading"):
    found = follow(target, model.params, np.asarray(texts, np.int32), config)
    likely = found.pop("likely")
    dense = likely if name == DENSE else dense
    cells.append({"cache": name, "agreement": float((likely == dense).mean()), **found})
    rows.append(
      {
        "cache": name,
        "perplexity": f"{found['perplexity']:.3f}",
        "agrees": f"{cells[-1]['agreement']:.1%}",
        "bytes / token": f"{found['bytes']:,.0f}",
        "ms / pass": f"{found['ms']:.0f}",
        f"the last {LAST}": f"{found['last ms']:.0f}",
      }
    )
  report.publish(config, {"caches": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
