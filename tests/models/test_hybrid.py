"""Networks with recurrent layers, and layers that read what these read: trees, prompts in pieces,
refilled rows, a mesh, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from specjax import Decoder
from specjax.drafters.models.draft_model import draft_model
from specjax.models import chunks, sharding, transformer
from specjax.models.config import Config, GatedDelta, GatedMemory, Kind, Mamba
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.names.load import Model
from specjax.serving.refill import refilled
from specjax.trees.structure import ancestors

ATTENDS, RECURRENT = Kind(), Kind(recurrence=GatedDelta(2, 4, 8, 6))
MAMBA = Kind(recurrence=Mamba(4, 8, 6, 2))
UNITS = tuple(Kind(source=i, recurrence=GatedMemory(M)) for i, M in ((0, 24), (2, 32)))
CONFIG = Config(
  vocab_size=32, width=16, layers=6, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=128,
  qk_norm=True, attention_gate=True, kinds=(RECURRENT, ATTENDS, MAMBA, *UNITS, Kind(source=1)),
  residual_scale=0.7,
)  # fmt: skip
PARAMS = jax.tree.map(
  lambda x: x * 8 if x.ndim > 1 else x, transformer.init(CONFIG, jax.random.key(1))
)
LM = target(CONFIG)
S = 64
rng = np.random.default_rng(0)
# 16 nodes, 6 deep.
PARENT = np.array([0, 0, 0, 1, 1, 2, 3, 3, 4, 6, 6, 7, 9, 9, 12, 12])
prefill = jax.jit(LM.prefill, static_argnums=3)
evaluate, commit = jax.jit(LM.evaluate), jax.jit(LM.commit)


@jax.jit
def one_pass(tokens):
  network, place = Transformer(CONFIG), jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  hidden, _ = network.apply(PARAMS, tokens, place, attention_mask(jnp.zeros_like(tokens), True))
  return network.apply(PARAMS, hidden, method="head")[0]


def logits_of(text):
  """[T, V], of one pass over a text, which is padded behind to be one shape for all."""
  return one_pass(jnp.pad(jnp.asarray(text, jnp.int32), (0, S - len(text)))[None])[: len(text)]


def path_of(node):
  path = [int(node)]
  while path[-1]:
    path.append(int(PARENT[path[-1]]))
  return path[::-1]


def arrays(tokens):
  """Tokens i32[B, 16] of the tree, depths and mask."""
  parent = jnp.broadcast_to(jnp.asarray(PARENT, jnp.int32), tokens.shape)
  depth = [len(path_of(i)) - 1 for i in range(len(PARENT))]
  depth = jnp.broadcast_to(jnp.asarray(depth, jnp.int32), tokens.shape)
  return jnp.asarray(tokens, jnp.int32), depth, ancestors(parent, 6)


def rounds(prompts, length):
  """Texts that grow by parts of paths of trees, and the logits at the trees' nodes."""
  cache, _ = prefill(PARAMS, jnp.asarray(prompts, jnp.int32), jnp.asarray(length, jnp.int32), S)
  texts = [list(prompt[:n]) for prompt, n in zip(prompts, length, strict=True)]
  draws = np.random.default_rng(5)
  for leaf, rows in (([15, 5], [7, 1]), ([11, 14], [3, 0]), ([0, 13], [1, 6])):
    tokens = draws.integers(32, size=(2, 16))
    tokens[:, 0] = [text[-1] for text in texts]
    evaluation = evaluate(PARAMS, cache, *arrays(tokens))
    yield texts, tokens, evaluation.logits
    paths = [path_of(node) for node in leaf]
    padded = jnp.array([(path + path[-1:] * 7)[:7] for path in paths])
    cache = commit(cache, evaluation.kv, padded, jnp.array(rows, jnp.int32))
    for text, path, n, own in zip(texts, paths, rows, tokens, strict=True):
      # What is committed is the root, which the text has, and more; a new root follows.
      text += [int(own[node]) for node in path[1:n]] + ([7] if n else [])


def test_trees_are_one_pass_over_each_chain():
  prompts = rng.integers(32, size=(2, 12)).tolist()
  for texts, tokens, logits in rounds(prompts, (12, 5)):
    for b in range(2):
      for leaf in (5, 8, 10, 11, 13, 14, 15):
        path = path_of(leaf)
        want = logits_of(texts[b][:-1] + [int(tokens[b][node]) for node in path])
        found = logits[b, jnp.array(path)]
        np.testing.assert_allclose(found, want[len(texts[b]) - 1 :], rtol=0, atol=1e-5)


def test_long_prompts_are_read_in_pieces(monkeypatch):
  prompts = jnp.asarray(rng.integers(32, size=(3, 48)), jnp.int32)
  length = jnp.array([48, 17, 1], jnp.int32)

  def read():
    return jax.jit(lambda params: LM.prefill(params, prompts, length, S, (1,)))(PARAMS)

  whole = read()
  monkeypatch.setattr(chunks, "LONG", 32)
  monkeypatch.setattr(chunks, "CHUNK", 16)
  pieces = read()
  for b, n in enumerate(length.tolist()):
    for x, y in zip(*(jax.tree.leaves(found[1]) for found in (whole, pieces)), strict=True):
      np.testing.assert_allclose(x[b, :n], y[b, :n], rtol=0, atol=1e-5)
    for i in (0, 2):
      states = (jax.tree.leaves(found[0].kv.k[i]) for found in (whole, pieces))
      for x, y in zip(*states, strict=True):
        np.testing.assert_allclose(x[b], y[b], rtol=0, atol=1e-5)
  assert whole[0].length.tolist() == pieces[0].length.tolist() == [47, 16, 0]


MODEL = Model("hybrid", CONFIG, PARAMS, None, (), (), None)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["token_recycling-8", "prompt_lookup-4"])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_refilled_rows_say_what_they_say_alone(drafter, temperature):
  prompts = [[1, 2, 3, 1, 2, 3, 1], [4], [5, 6, 8] * 6, [7, 8, 9]]
  options = {"temperature": temperature, "seed": 3}
  together = dict(refilled(Decoder(MODEL, drafter, batch=2, **options), prompts, 14, rounds=3))
  alone = Decoder(MODEL, "none", **options)
  for i, prompt in enumerate(prompts):
    (expected,) = alone([prompt], 14, first=i)
    assert together[i].tokens == expected.tokens


def test_states_are_spread_over_a_mesh():
  prompts = rng.integers(32, size=(2, 12)).tolist()
  alone = [logits for *_, logits in rounds(prompts, (12, 5))]
  mesh = sharding.mesh(data=2, model=2)
  with jax.set_mesh(mesh):
    params = sharding.place(PARAMS, mesh)
    cache, _ = prefill(params, jnp.asarray(prompts, jnp.int32), jnp.array([12, 5]), S)
    tokens, *rest = arrays(np.zeros((2, 16), int))
    tokens = tokens.at[:, 0].set(jnp.array([prompts[0][11], prompts[1][4]]))
    evaluation = evaluate(params, cache, tokens, *rest)
    path = jnp.broadcast_to(jnp.array([0, 1, 3]), (2, 3))
    after = commit(cache, evaluation.kv, path, jnp.array([3, 1], jnp.int32))
  np.testing.assert_allclose(evaluation.logits[:, 0], alone[0][:, 0], rtol=0, atol=1e-5)
  spread = NamedSharding(mesh, PartitionSpec("data", "model"))
  for layer in (0, 2):
    assert cache.kv.k[layer].memory.sharding.is_equivalent_to(spread, 4)
    assert after.kv.k[layer].memory.sharding.is_equivalent_to(spread, 4)


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"drafter": "layerskip-4,exit=1"}, "`kinds` must be without recurrent layers for drafts by"),
    ({"cache": "int8"}, "`cache` must be dense for a model with recurrent layers, got 'int8'"),
  ],
)
def test_what_needs_rows_of_every_layer_is_refused(options, words):
  with pytest.raises(ValueError, match=words):
    Decoder(MODEL, **options)([[1, 2, 3]], 4)


def test_a_recurrent_model_drafts_for_none():
  drafter = draft_model(LM, nodes=3)
  cache, _ = prefill(PARAMS, jnp.array([[1, 2, 3]]), jnp.array([3]), S)
  with pytest.raises(ValueError, match="a draft model must have no recurrent layers"):
    drafter.update(PARAMS, (), cache, None, None, None, jnp.array([1]))


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"causal": False}, "`kinds` must have no recurrent layer with a window, or causal=False"),
    ({"kinds": (RECURRENT,) * 6}, "`kinds` must have a layer of attention"),
  ],
)
def test_networks_that_are_none(changes, words):
  with pytest.raises(ValueError, match=words):
    dataclasses.replace(CONFIG, **changes)
