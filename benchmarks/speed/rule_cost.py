r"""What a rule costs: its time over that of the target pass it judges.

    python benchmarks/rule_cost.py

A random Llama of 134M parameters (width 768, 12 layers, vocabulary 32000) verifies 8 nodes; every
rule then judges 8 nodes of such distributions, drafted in a way it is exact for. The distribution itself (softmax and
settings, without and with top-p) is counted apart: plain decoding needs it too.
"""

import dataclasses
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from specjax.base import Draft, Drafter, Features
from specjax.drafters import draft_tree
from specjax.eval import verify_cost
from specjax.eval.environment import environment
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer, target
from specjax.sampling import Noise, Settings, request_keys, warp
from specjax.testing import table_model
from specjax.trees import IID, Sampling, WithoutReplacement
from specjax.verifiers import VERIFIERS
from specjax.verifiers.judge import Judge

NODES = 8
TREE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1))
CHAIN = tuple((0,) * d for d in range(1, NODES))
LOOP_FREE = ("greedy", "target_only", "token", "block", "typical", "judge")


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured.

  Attributes:
    width, layers, heads, kv_heads, mlp_width, vocab_size: of the target.
    context: cached tokens.
    repeats: timings; their median counts.
    out: where the report goes.
  """

  width: int = 768
  layers: int = 12
  heads: int = 12
  kv_heads: int = 12
  mlp_width: int = 2048
  vocab_size: int = 32000
  context: int = 256
  repeats: int = 30
  out: str = "results/rule_cost.json"


def median_seconds(run, repeats: int) -> float:
  jax.block_until_ready(run())  # compiles
  seconds = []
  for _ in range(repeats):
    begin = time.perf_counter()
    jax.block_until_ready(run())
    seconds.append(time.perf_counter() - begin)
  return float(np.median(seconds))


def draft_for(name: str, q, noise: Noise) -> tuple[Draft, Drafter]:
  """A draft of 8 nodes from the distribution q f32[1, 1, V], of a kind the rule accepts."""
  chain = VERIFIERS[name]().accepts <= {"chain", "truncated"}
  tree = (IID if name == "k_seq" else WithoutReplacement)(CHAIN if chain else TREE)
  one, V = jnp.ones(1), q.shape[-1]
  sampling = Sampling(Settings(one, jnp.zeros(1, jnp.int32), one, 0 * one), noise, V)
  draft = tree.fill(jnp.zeros((1, 1), jnp.int32), lambda *_: (q, (), ()), sampling=sampling)
  return draft, draft_tree(table_model(V), tree)


def main(config: Config) -> None:
  V = config.vocab_size
  model = ModelConfig(
    vocab_size=V, width=config.width, layers=config.layers, heads=config.heads,
    kv_heads=config.kv_heads, head_dim=config.width // config.heads, mlp_width=config.mlp_width,
  )  # fmt: skip
  z = jnp.zeros((1, 2), jnp.int32)
  params = jax.jit(Transformer(model).init)(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  cost = verify_cost.measure(target(model), params, config.context, nodes=(1, NODES))
  verify = cost.seconds[1]
  keys = jax.random.split(jax.random.key(1))
  logits = 3 * jax.random.normal(keys[0], (1, NODES, V))
  guess = 3 * jax.random.normal(keys[1], (1, 1, V))
  one = jnp.ones(1)
  settings = Settings(one, jnp.zeros(1, jnp.int32), one, 0 * one)
  log_probs, q = warp(logits, settings), warp(guess, settings)
  noise = Noise(request_keys(0, np.arange(1)), jnp.array([9]))
  features = Features(jax.random.normal(keys[0], (1, NODES, config.width)))
  head = Judge(jnp.zeros(config.width), jnp.float32(0))  # the other rules have no weights
  warp_seconds, top_p_seconds = (
    median_seconds(lambda s=s: jax.jit(warp)(logits, s), config.repeats)
    for s in (settings, settings._replace(top_p=0.9 * one))
  )
  rows = []
  for name, build in VERIFIERS.items():
    draft, drafter = draft_for(name, q, noise)
    rule = jax.jit(build().verify, static_argnames=("depth", "proposal"))
    seconds = median_seconds(
      lambda rule=rule, draft=draft, drafter=drafter: rule(
        head,
        draft,
        log_probs,
        features,
        noise,
        depth=drafter.depth,
        proposal=drafter.proposal,
      ),
      config.repeats,
    )
    rows.append((name, name in LOOP_FREE, seconds, seconds / verify))
  print(
    f"verify 8 nodes {1e3 * verify:.1f} ms, their distribution {1e3 * warp_seconds:.2f} ms, "
    f"with top-p {1e3 * top_p_seconds:.2f} ms"
  )
  print("| rule | loop-free | ms | share of the pass |\n|---|---|---|---|")
  for name, free, seconds, share in rows:
    print(f"| {name} | {'yes' if free else ''} | {1e3 * seconds:.2f} | {100 * share:.1f} % |")
  out = pathlib.Path(config.out)
  out.parent.mkdir(parents=True, exist_ok=True)
  report = {
    "config": dataclasses.asdict(config), **environment(), "verify": verify, "distribution": warp_seconds,
    "law_top_p": top_p_seconds,
    "rules": [dict(zip(("rule", "loop_free", "seconds", "share"), r, strict=True)) for r in rows],
  }  # fmt: skip
  out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
  main(tyro.cli(Config, description=__doc__))
