r"""Our draft heads, trees and rules of acceptance beside the published programs.

    python benchmarks/claims/published_heads.py --eagle EAGLE --medusa Medusa

The options are checkouts of SafeAILab/EAGLE (in `eagle/model`: `cnets.py` of EAGLE-3, `cnets1.py`
of EAGLE-1 and 2, `utils.py`) and FasterDecoding/Medusa (in `medusa/model`: `medusa_model.py`,
`utils.py`); nothing is fetched, and what is not given is left out. Their heads, trees and rules run
as they are, in torch, with random weights, which are saved under the published names and read by
our loader. In the place of the target stands ours, so that both sides get the same states and
logits. All weights are large enough for choices to be far from uniform: of 12 tokens EAGLE's
likeliest has a probability of 0.25 to 0.8 on average.

Every cell decodes the same prompts for several rounds. In each round a tree is equal if it has the
same tokens in the same order, at the same depths and below the same nodes, and acceptance is equal
if it ends at the same node. A text ends at its first difference.

What is known to differ is kept out of the way:

- EAGLE's `depth` leaves out the first level of a tree, and ours counts it.
- Medusa fills paths that are shorter than the longest with token 0, and accepts it where the target
  says so. Its tokens are numbered from 1 here, so that the target never does.
- Where scores are equal, as those of a node and of a child whose probability rounds to 1, EAGLE may
  keep a child without its parent and then hang it below another node; ours keeps parents first.
  Weights here are small enough that no scores are equal.
- After typical acceptance Medusa goes on with the likeliest token, and ours draws it. Both go on
  with what was drawn.
"""

import dataclasses
import functools
import importlib.util
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, command_line, speculate
from specjax.base import Features, Params
from specjax.checkpoints import formats
from specjax.eval import report, table
from specjax.eval.published_heads import FILES, Eagle, Medusa, Published, program
from specjax.heads.drafting import drafter
from specjax.models import transformer
from specjax.models.config import Config as NetworkConfig
from specjax.sampling import Noise, Settings, new_key, request_keys
from specjax.speculate import DecodeRequest, DecodeState, Method, Weights
from specjax.trees.base import Tree
from specjax.trees.dynamic import Dynamic
from specjax.trees.static import Static, best_first
from specjax.trees.structure import ancestors
from specjax.verifiers.greedy import greedy
from specjax.verifiers.typical import typical

NETWORK = NetworkConfig(
  vocab_size=12,
  width=32,
  layers=4,
  heads=4,
  kv_heads=2,
  head_dim=8,
  mlp_width=48,
  max_length=256,
  tied=False,
)
TARGET = transformer.target(NETWORK)
EAGLE_JSON = {
  "model_type": "llama", "num_hidden_layers": 1, "hidden_size": NETWORK.width,
  "intermediate_size": 40, "num_attention_heads": NETWORK.heads, "pretraining_tp": 1,
  "num_key_value_heads": NETWORK.kv_heads, "vocab_size": NETWORK.vocab_size, "hidden_act": "silu",
  "rms_norm_eps": NETWORK.norm_epsilon, "rope_theta": NETWORK.rope_theta, "rope_scaling": None,
  "max_position_embeddings": NETWORK.max_length, "pad_token_id": 0,
}  # fmt: skip
TREES = ((60, 7, 10), (31, 5, 5), (16, 3, 4), (7, 5, 1))  # total_tokens, depth and top_k of EAGLE
HEADS = 4  # of Medusa


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared."""

  eagle: str | None = None  # checkout of SafeAILab/EAGLE
  medusa: str | None = None  # checkout of FasterDecoding/Medusa
  prompts: int = 4  # number of prompts, of 7 random tokens each
  rounds: int = 8  # of each text
  seed: int = 0  # seed of weights, prompts and Medusa's trees
  out: str = "results/published_heads"


class Setting(NamedTuple):
  """A cell.

  Attributes:
    program: whose checkout it needs.
    method: by its published name.
    options: of the head, as config.json has them.
    tree: three numbers as in `TREES`, or how many nodes Medusa's has without the root.
    rule: temperature, and for typical acceptance the threshold and alpha.
  """

  program: str
  method: str
  options: dict[str, Any]
  tree: tuple[int, ...]
  rule: tuple[float, ...] = (0.0,)


class Round(NamedTuple):
  """Whether the tree is equal, whether the accepted path is, and how long ours is."""

  tree: bool
  accepted: bool
  length: int


def settings() -> list[Setting]:
  """All cells."""
  variants: list[tuple[str, dict[str, Any]]] = [
    ("EAGLE-3", {"draft_vocab_size": 12}), ("EAGLE-3", {"draft_vocab_size": 10}),
    ("EAGLE-2", {"bias": True}), ("EAGLE-2", {"bias": False, "qkv_bias": True}),
  ]  # fmt: skip
  cells = [Setting("eagle", *variant, tree) for variant in variants for tree in TREES]
  rules = ((0.0,), (0.7, 0.09, 0.3), (1.0, 0.02, 0.1))
  return cells + [
    Setting("medusa", "Medusa", {"medusa_num_layers": layers}, (nodes,), rule)
    for layers, nodes in ((1, 64), (1, 26), (2, 8))
    for rule in rules
  ]


def build(
  setting: Setting, modules: Mapping[str, Any], params: Params, seed: int
) -> tuple[Published, Tree]:
  """The published head of a setting, and our tree for it; `params` are the target's."""
  V, E = NETWORK.vocab_size, NETWORK.width
  if setting.program == "eagle":
    cnets = modules["cnets" if setting.method == "EAGLE-3" else "cnets1"]
    embedding = np.array(TARGET.embed(params, jnp.arange(V)[None])[0])
    lm_head = np.array(TARGET.lm_head(params))
    eagle = Eagle(
      cnets, modules["utils"], EAGLE_JSON | setting.options, setting.tree, embedding, lm_head, seed
    )
    nodes, depth, top_k = setting.tree
    return eagle, Dynamic(nodes, depth + 1, top_k)
  rates = np.sort(np.random.default_rng(seed).uniform(size=(HEADS, 10)))[:, ::-1]
  choices = best_first(rates, setting.tree[0])
  raw = {"medusa_num_heads": HEADS, **setting.options}
  model, utils = modules["medusa_model"], modules["utils"]
  return Medusa(model, utils, raw, choices, setting.rule, (V, E), seed), Static(choices)


@functools.partial(jax.jit, static_argnums=0)
def one_round(method: Method, weights: Weights, request: DecodeRequest, state: DecodeState) -> Any:
  """(draft, evaluation, log_probs to verify against, verdict, the state after it)."""
  noise = Noise(request.key, state.context.length)
  draft, _, evaluation, log_probs, _ = speculate.guess(method, weights, request, state, noise)
  verdict = method.verifier.verify(
    weights.verifier,
    draft,
    log_probs,
    evaluation.features,
    noise,
    depth=method.drafter.depth,
    proposal=method.drafter.proposal,
  )
  after = speculate.decode_round(method, weights, request, state, Noise)
  return draft, evaluation, log_probs, verdict, after


def follow(
  published: Published,
  method: Method,
  weights: Weights,
  prompt: list[int],
  rounds: int,
  temperature: float,
) -> list[Round]:
  """A text by both."""
  depth, one = method.drafter.depth, jnp.ones(1)
  limit = len(prompt) + rounds * (depth + 1)
  capacity = limit + depth + 1
  request = DecodeRequest(
    Settings(temperature * one, jnp.zeros(1, jnp.int32), one, 0 * one),
    request_keys(0, 0 * one),
    jnp.full(1, limit + 1, jnp.int32),
    jnp.full(1, -1, jnp.int32),
  )
  text, length = jnp.asarray([prompt], jnp.int32), jnp.full(1, len(prompt), jnp.int32)
  layers = method.drafter.hidden_layers
  _, features = TARGET.prefill(weights.target, text, length, capacity, hidden_layers=layers)
  state = speculate.start(method, weights, text, length, request, capacity)
  published.begin(prompt, _states(features)[: len(prompt) - 1])
  found = []
  for _ in range(rounds):
    draft, evaluation, log_probs, verdict, state = one_round(method, weights, request, state)
    ours = (draft.tokens, draft.depth, ancestors(draft.parent, depth))
    pairs = zip(published.draft(), ours, strict=True)
    same = all(np.array_equal(theirs, mine[0]) for theirs, mine in pairs)
    count = int(verdict.count[0])
    path, tokens = (x[0, : count + 1].tolist() for x in (verdict.path, verdict.tokens))
    logits = np.array(log_probs[0]) * (temperature or 1)
    found.append(Round(same, same and published.accept(logits) == path, count))
    if not found[-1].accepted:
      break
    published.go_on(tokens, _states(evaluation.features)[path])
  return found


def _states(features: Features) -> np.ndarray:
  """f32[N, L * E], what a head reads of the target."""
  return np.concatenate(features.hidden_layers or (features.hidden,), -1)[0]


def compare(
  setting: Setting, modules: Mapping[str, Any], prompts: Sequence[list[int]], config: Config
) -> dict[str, Any]:
  """A cell."""
  params = transformer.init(NETWORK, new_key(config.seed))
  params = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)
  published, tree = build(setting, modules, params, config.seed)
  with tempfile.TemporaryDirectory() as directory:
    published.save(pathlib.Path(directory))
    loaded = formats.load(directory, NETWORK, target_params=params)
  temperature, *limits = setting.rule
  rule = typical(*limits) if limits else greedy()
  method, weights = Method(TARGET, drafter(loaded.head, tree), rule), Weights(params, loaded.params)
  texts = [follow(published, method, weights, p, config.rounds, temperature) for p in prompts]
  rounds = [each for text in texts for each in text]
  trees, accepted = sum(r.tree for r in rounds), sum(r.accepted for r in rounds)
  return {**setting._asdict(), "rounds": len(rounds), "trees": trees,
          "accepted": accepted, "mean_accepted": float(np.mean([r.length for r in rounds])),
          "verdict": "equal" if accepted == len(rounds) else "DIFFERENT"}  # fmt: skip


def rows(cells: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
  """The table, a row per cell."""
  names = {"eagle": ("total_tokens", "depth", "top_k"), "medusa": ("nodes",)}
  return [
    {
      "method": c["method"],
      "head": _told(c["options"]),
      "tree": _told(dict(zip(names[c["program"]], c["tree"], strict=True))),
      "rule": _told(dict(zip(("temperature", "threshold", "alpha"), c["rule"], strict=False))),
      "equal trees": f"{c['trees']} of {c['rounds']}",
      "equal acceptance": f"{c['accepted']} of {c['rounds']}",
      "accepted": f"{c['mean_accepted']:.2f}",
      "verdict": c["verdict"],
    }
    for c in cells
  ]


def _told(options: Mapping[str, Any]) -> str:
  return ", ".join(f"{key}={value}" for key, value in options.items())


def main(config: Config) -> None:
  checks.whole("seed", config.seed, 0, checks.SEED)
  report.check(config, "prompts", "rounds")
  given = {name: getattr(config, name) for name in FILES}
  for name, checkout in given.items():
    if checkout is None:
      print(f"{name}: left out, for --{name} is not given")
    elif not pathlib.Path(checkout).is_dir():
      checks.refuse(name, checkout, "the directory of a checkout")
  if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    print("torch or transformers is not installed: nothing is compared")
    return
  programs = {name: program(name, x) for name, x in given.items() if x is not None}
  turns = [setting for setting in settings() if setting.program in programs]
  if not turns:
    return
  report.directory(config.out)
  rng = np.random.default_rng(config.seed)
  prompts = rng.integers(NETWORK.vocab_size, size=(config.prompts, 7)).tolist()
  cells = [
    compare(setting, programs[setting.program], prompts, config)
    for setting in report.progress(turns, "decoding")
  ]
  equal = sum(cell["verdict"] == "equal" for cell in cells)
  text = f"{table.markdown(rows(cells))}\n\n{len(cells)} cells: {equal} equal"
  report.publish(config, {"cells": cells}, text, packages=("torch", "transformers"))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
