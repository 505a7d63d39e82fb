r"""A round of an EAGLE-3 head on a random target: the target's pass, the draft and the commit.

    python benchmarks/speed/head_round.py

Neither network is trained: a dynamic tree has the same number of nodes whatever is guessed, and
times do not depend on what is accepted. The draft counts `propose` and `update`. The pass holds a
commit of 8 rows, which is timed by itself as well.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specjax import command_line
from specjax.base import Cache, Params, Target
from specjax.eval import draft_cost, report, table, timing, verify_cost
from specjax.eval.random_model import SIZES, Size, random_weights
from specjax.heads import drafting
from specjax.heads.eagle3 import Eagle3Config, eagle3
from specjax.models import transformer
from specjax.sampling import new_key
from specjax.trees.dynamic import Dynamic

ON_CPU = jax.default_backend() == "cpu"
ROWS = 8  # that a commit writes


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  size: Size = "134m" if ON_CPU else "8b"  # of the target
  dtype: str = "float32" if ON_CPU else "bfloat16"  # dtype of the weights
  draft_vocab: int = 32000  # W', number of tokens among which the head guesses, at most all
  nodes: int = 32  # N, nodes of the tree with its root
  depth: int = 5  # D, levels below the root
  beam: int = 8  # nodes that are expanded in a level
  batch: int = 1  # B, texts decoded together
  context: int = 1024  # cached tokens
  repeats: int = 7  # timings; their median counts
  out: str = "results/head_round"  # directory of the report


@functools.partial(jax.jit, static_argnames="target", donate_argnames="cache")
def commits(target: Target, cache: Cache, kv, count) -> Cache:
  """`count` commits of ROWS rows each to the same place of the cache."""
  B = len(cache.length)
  path = jnp.broadcast_to(jnp.arange(ROWS, dtype=jnp.int32), (B, ROWS))

  def body(_, cache):
    written = target.commit(cache, kv, path, jnp.full(B, ROWS, jnp.int32))
    return written._replace(length=cache.length)

  return jax.lax.fori_loop(0, count, body, cache)


def commit_seconds(config: Config, target: Target, params: Params) -> float:
  """Median seconds of a commit to a cache of the measured length."""
  capacity = config.context + 64
  *_, cache, _ = timing.prefilled(target, params, config.context, config.batch, capacity)
  kv = jax.tree.map(lambda x: x[:, :, : config.nodes] + 1, cache.kv)

  def loop(count: int) -> Cache:
    nonlocal cache  # every loop gives its buffers to the next
    cache = commits(target, cache, kv, jnp.int32(count))
    return cache

  return float(np.median(timing.per_pass([loop], config.repeats)))


def main(config: Config) -> None:
  report.check(config, "draft_vocab", "nodes", "depth", "beam", "batch", "context", "repeats")
  model = dataclasses.replace(SIZES[config.size], max_length=config.context + 128)
  tree = Dynamic(config.nodes, config.depth, config.beam)
  target = transformer.target(model)
  head = eagle3(target, Eagle3Config(depth=config.depth))
  out = report.directory(config.out)
  params = random_weights(model, config.dtype)
  vocabulary = np.arange(min(config.draft_vocab, model.vocab_size))
  weights = jax.jit(head.init)(new_key(1), params, vocabulary)
  weights = jax.tree.map(
    lambda x: x.astype(config.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, weights
  )
  cost = verify_cost.measure(
    target,
    params,
    config.context,
    batch=config.batch,
    nodes=(1, config.nodes),
    repeats=config.repeats,
  )
  found: dict = {"verify": cost._asdict(), "head_parameters": optax.tree.size(weights["params"])}
  report.save(out, report.summary(config, found), cost.markdown)  # what follows may fail
  commit = commit_seconds(config, target, params)
  (draft,) = draft_cost.measure(
    target,
    params,
    [drafting.drafter(head, tree)],
    weights,
    config.context,
    batch=config.batch,
    repeats=config.repeats,
  )
  one, verify = cost.seconds
  whole = verify + draft
  found |= {"draft_seconds": draft, "commit_seconds": commit, "draft_share": draft / whole,
            "commit_share": commit / whole, "round_in_plain_passes": whole / one}  # fmt: skip
  rows = [
    {"part": name, "ms": f"{1e3 * each:.2f}", "of the round": f"{each / whole:.1%}"}
    for name, each in {
      f"pass over {config.nodes} nodes, with its commit": verify,
      "draft": draft,
      "commit by itself": commit,
      "the round": whole,
      "pass over one node": one,
    }.items()
  ]
  report.publish(config, found, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
