"""The comparison with published draft heads, on programs that are written here."""

import jax
import numpy as np
import pytest
from test_benchmarks import load

from specjax.eval import published_heads
from specjax.heads.drafting import drafter
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.trees.dynamic import Dynamic
from specjax.trees.static import Static
from specjax.verifiers.greedy import greedy

CHOICES = [*([i] for i in range(8)), *([i, j] for i in range(8) for j in range(6))]


class Plain:
  """Medusa's heads in plain NumPy, with the tree of `CHOICES` and the greedy rule."""

  def __init__(self, params, best=0, most=2):
    self.params, self.best, self.most = params["params"], best, most
    self.paths = [(), *map(tuple, CHOICES)]

  def begin(self, prompt, states):
    self.root, self.last = prompt[-1], states[-1]

  def draft(self):
    ranked = []
    for d in range(2):
      block, bias, lm_head = (
        np.asarray(self.params[k][d]) for k in ("block_0", "bias_0", "lm_head")
      )
      z = block @ self.last + bias
      ranked.append(np.argsort(-(lm_head @ (self.last + z / (1 + np.exp(-z)))), kind="stable"))
    tokens = [ranked[len(path) - 1][path[-1] + self.best] if path else self.root
              for path in self.paths]  # fmt: skip
    self.token = dict(zip(self.paths, tokens, strict=True))
    above = [[path[: len(other)] == other for other in self.paths] for path in self.paths]
    return published_heads.Drafted(
      np.array(tokens), np.array([len(path) for path in self.paths]), np.array(above)
    )

  def accept(self, logits):
    path, found = (), [0]
    while len(path) < self.most:
      said = logits[found[-1]].argmax()
      below = [p for p in self.paths if p and p[:-1] == path and self.token[p] == said]
      if not below:
        break
      path = below[0]
      found.append(self.paths.index(path))
    return found

  def go_on(self, tokens, states):
    self.root, self.last = tokens[-1], states[-1]


@pytest.mark.slow
def test_rounds_are_followed_to_the_first_difference():
  script = load("benchmarks/claims/published_heads.py")
  target = script.TARGET
  own = script.transformer.init(script.NETWORK, jax.random.key(0))
  own = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, own)
  head = medusa(target, MedusaConfig(depth=2))
  params = head.init(jax.random.key(1), own)
  keys = iter(jax.random.split(jax.random.key(2), 3))
  params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape), params)
  method = script.Method(target, drafter(head, Static(CHOICES)), greedy())
  weights = script.Weights(own, params)

  def rounds(**fault):
    return script.follow(Plain(params, **fault), method, weights, [1, 2, 3, 4, 5], 12, 0.0)

  found = rounds()
  assert len(found) == 12 and all(r.tree and r.accepted for r in found)
  assert {r.length for r in found} == {0, 1, 2}  # so that each is seen to be equal
  wrong_tree = rounds(best=1)
  assert [r.tree for r in wrong_tree] == [False]
  short = rounds(most=1)  # a rule that stops a node too early
  assert short == [*found[: len(short) - 1], script.Round(True, False, 2)]


UTILS = """
import torch


def generate_medusa_buffers(choices, device):
  nodes = [[], *sorted(choices, key=lambda path: (len(path), path))]
  above = torch.tensor([[node[: len(other)] == other for other in nodes] for node in nodes])
  leaves = [n for n in nodes if sum(m[: len(n)] == n for m in nodes) == 1]
  deepest = max(map(len, nodes))
  paths = [[nodes.index(n[:d]) for d in range(len(n) + 1)] + [-1] * (deepest - len(n))
           for n in leaves]
  return {
    "tree_indices": torch.tensor([n[-1] + 10 * len(n) - 9 if n else 0 for n in nodes]),
    "medusa_attn_mask": above[None, None], "retrieve_indices": torch.tensor(paths),
    "medusa_position_ids": torch.tensor([len(n) for n in nodes]),
  }


def generate_candidates(guesses, logits, place, paths):
  best = guesses[:, 0, -1].topk(10, largest={largest}).indices.flatten()
  tokens = torch.cat([logits[0, -1].argmax()[None], best])[place]
  return torch.cat([tokens, torch.tensor([0])])[paths], tokens[None]


def evaluate_posterior(logits, candidates, temperature):
  hits = (candidates[:, 1:] == logits[:, :-1].argmax(-1)).int().cumprod(1).sum(1)
  return hits.argmax(), hits.max()
"""
MODEL = """
from torch import nn
from .modeling_llama_kv import LlamaForCausalLM
from .utils import evaluate_posterior


class ResBlock(nn.Module):
  def __init__(self, size):
    super().__init__()
    self.linear = nn.Linear(size, size)

  def forward(self, x):
    return x + nn.functional.silu(self.linear(x))


class Whole(nn.Module, LlamaForCausalLM):
  pass
"""


@pytest.mark.parametrize(("surest", "verdict"), [(True, "equal"), (False, "DIFFERENT")])
def test_a_checkout_is_compared(tmp_path, surest, verdict):
  pytest.importorskip("torch", reason="torch is not installed")
  pytest.importorskip("transformers", reason="transformers is not installed")
  script = load("benchmarks/claims/published_heads.py")
  place = tmp_path / "medusa" / "model"
  place.mkdir(parents=True)
  (place / "utils.py").write_text(UTILS.replace("{largest}", str(surest)))
  (place / "medusa_model.py").write_text(MODEL)
  modules = published_heads.program("medusa", str(tmp_path))
  setting = script.Setting("medusa", "Medusa", {"medusa_num_layers": 2}, (20,))
  cell = script.compare(setting, modules, [[1, 2, 3], [4, 5, 6]], script.Config(rounds=3))
  assert cell["verdict"] == verdict
  assert cell["trees"] == cell["accepted"] == (6 if surest else 0)
  assert verdict in str(script.rows([cell]))


def test_a_checkout_without_the_files_is_refused(tmp_path):
  with pytest.raises(
    ValueError, match=(r"`eagle` must be a checkout with eagle/model/cnets\.py and.*got")
  ):
    published_heads.program("eagle", str(tmp_path))


def test_cells_name_what_there_is():
  """Every cell is another one, and ours has each of EAGLE's trees."""
  script = load("benchmarks/claims/published_heads.py")
  cells = script.settings()
  assert len({str(cell) for cell in cells}) == len(cells)
  for nodes, depth, top_k in script.TREES:
    assert Dynamic(nodes, depth + 1, top_k).nodes == nodes


def test_what_is_not_given_is_left_out(capsys, tmp_path):
  script = load("benchmarks/claims/published_heads.py")
  script.main(script.Config(out=str(tmp_path / "out")))
  said = capsys.readouterr().out
  assert "eagle: left out, for --eagle is not given" in said
  assert "medusa: left out, for --medusa is not given" in said
  assert not (tmp_path / "out").exists()
