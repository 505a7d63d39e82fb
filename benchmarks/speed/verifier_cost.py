r"""The time of each rule, as a share of the target pass that it judges.

    python benchmarks/speed/verifier_cost.py

A random Llama of 134M parameters (width 768, 12 layers, vocabulary 32000) evaluates 8 nodes; every
rule then judges 8 nodes of such distributions, drafted as it accepts them. The distributions
(softmax and settings, without and with top-p) are timed apart, since plain decoding needs them too.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import command_line
from specjax.base import Draft, Drafter, Features
from specjax.drafters import draft_tree
from specjax.eval import report, table, timing, verify_cost
from specjax.models import transformer
from specjax.models.config import Config as ModelConfig
from specjax.sampling import Noise, Settings, new_key, request_keys, warp
from specjax.testing import table_model
from specjax.train.recipe.config import Network
from specjax.trees import IID, Guesser, Sampling, WithoutReplacement
from specjax.verifiers import VERIFIERS
from specjax.verifiers.judge import Judge

NODES = 8
TREE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1))
CHAIN = tuple((0,) * d for d in range(1, NODES))
SETTINGS = Settings(jnp.ones(1), jnp.zeros(1, jnp.int32), jnp.ones(1), jnp.zeros(1))
LOOP_FREE = ("greedy", "target_only", "token", "block", "typical", "judge")


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  # shape of the target
  network: Network = Network(768, 12, heads=12, kv_heads=12, head_dim=64, mlp_width=2048)
  vocab_size: int = 32000  # V, size of the vocabulary
  context: int = 256  # cached tokens
  repeats: int = 30  # timings; their median counts
  out: str = "results/verifier_cost"  # directory of the report


def draft_for(name: str, q, noise: Noise) -> tuple[Draft, Drafter]:
  """A draft of 8 nodes from q f32[1, 1, V], of a kind that the rule accepts."""
  chain = VERIFIERS[name]().accepts <= {"chain", "truncated", "coupled"}
  tree = (IID if name == "k_seq" else WithoutReplacement)(CHAIN if chain else TREE)
  root, sampling = jnp.zeros((1, 1), jnp.int32), Sampling(SETTINGS, noise, q.shape[-1])
  draft = tree.fill(root, Guesser(lambda *_: (q, (), ()), sampling=sampling))
  return draft, draft_tree(table_model(q.shape[-1]), tree)


def calls(f: Callable, *arguments) -> Callable[[int], Any]:
  """Calls of a compiled function, each after the one before."""
  return lambda count: [jax.block_until_ready(f(*arguments)) for _ in range(count)]


def main(config: Config) -> None:
  report.check(config, "repeats", "context")
  V = config.vocab_size
  model = ModelConfig(vocab_size=V, **config.network.sizes, tied=False)
  report.directory(config.out)
  params = jax.jit(transformer.init, static_argnums=0)(model, new_key(0))
  cost = verify_cost.measure(transformer.target(model), params, config.context, nodes=(1, NODES))
  verify = cost.seconds[1]
  keys = jax.random.split(new_key(1))
  logits = 3 * jax.random.normal(keys[0], (1, NODES, V))
  guess = 3 * jax.random.normal(keys[1], (1, 1, V))
  log_probs, q = warp(logits, SETTINGS), warp(guess, SETTINGS)
  noise = Noise(request_keys(0, np.arange(1)), jnp.array([9]))
  features = Features(jax.random.normal(keys[0], (1, NODES, model.width)))
  top_p = SETTINGS._replace(top_p=jnp.full(1, 0.9))
  head = Judge(jnp.zeros(model.width), jnp.float32(0))  # the other rules have no weights
  loops = {
    "the distribution": calls(jax.jit(warp), logits, SETTINGS),
    "the distribution, with top-p": calls(jax.jit(warp), logits, top_p),
  }
  for name, build in VERIFIERS.items():
    draft, drafter = draft_for(name, q, noise)
    rule = functools.partial(build().verify, depth=drafter.depth, proposal=drafter.proposal)
    loops[name] = calls(jax.jit(rule), head, draft, log_probs, features, noise)
  seconds = np.median(timing.per_pass(list(loops.values()), config.repeats), 0)
  cells = [
    {"rule": name, "loop_free": name in LOOP_FREE, "seconds": each, "share": each / verify}
    for name, each in zip(loops, seconds.tolist(), strict=True)
  ]
  rows = [
    {
      "rule": c["rule"],
      "loop-free": "yes" if c["loop_free"] else "",
      "ms": f"{1e3 * c['seconds']:.2f}",
      "share of the pass": f"{100 * c['share']:.1f} %",
    }
    for c in cells
  ]
  text = f"The pass over {NODES} nodes takes {1e3 * verify:.1f} ms.\n\n{table.markdown(rows)}"
  report.publish(config, {"verify": verify, "rules": cells}, text)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
