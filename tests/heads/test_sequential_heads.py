"""Hydra, MLPSpeculator and ReDrafter: the published formulas in numpy, and their less common forms.

What they share with every head is in test_every_head.py.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_every_head as every

from specjax.base import Context
from specjax.heads import HEADS, drafting
from specjax.heads.base import Examples
from specjax.heads.hydra import HydraConfig, hydra
from specjax.heads.mlp_speculator import MLPSpeculatorConfig, mlp_speculator
from specjax.heads.redrafter import ReDrafterConfig, redrafter
from specjax.models.config import Config
from specjax.models.transformer import Transformer, target
from specjax.trees import Beam

B, T = 2, 12
CUTS = np.array([[0, 3, 7], [6, 2, 5]], np.int32)
VARIANTS = {
  "hydra": (hydra, HydraConfig(depth=3, blocks=3)),
  "hydra, blocks untied": (hydra, HydraConfig(depth=2, blocks=3, tied_blocks=False)),
  "hydra, shared": (hydra, HydraConfig(depth=2, shared=True)),
  "hydra++": (hydra, HydraConfig(depth=3, blocks=2, prefix=True)),
  "mlp": (mlp_speculator, MLPSpeculatorConfig(depth=3, inner_width=20)),
  "mlp, untied, scaled": (
    mlp_speculator, MLPSpeculatorConfig(depth=3, inner_width=12, tied=False, scale_input=True)
  ),
  "mlp, one step": (mlp_speculator, MLPSpeculatorConfig(depth=1)),
  "redrafter": (redrafter, ReDrafterConfig(depth=3, blocks=1)),
  "redrafter, sums": (redrafter, ReDrafterConfig(depth=3, rnn=False)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def registered(monkeypatch):
  """The variants, under their names, as heads that test_every_head.py finds."""
  for name, (build, config) in VARIANTS.items():
    monkeypatch.setitem(HEADS, f"variant {name}", (build, lambda config=config: config))


def numbers(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def embeddings():
  return numbers(every.target_params()["params"]["embedding"])


def silu(x):
  return x / (1 + np.exp(-x))


def gelu(x):
  return np.array([v * 0.5 * (1 + math.erf(v / 2**0.5)) for v in x])


def rms(x):
  return x / np.sqrt((x * x).mean() + 1e-6)


def hydra_logits(config, p, hidden, tokens, embedding):
  known = [hidden]
  for d, token in enumerate(tokens, 1):
    own = p[f"head_{d}"]
    known.append(embedding[token])
    u = np.concatenate(known)
    y = own["residual"] @ u + own["residual_bias"] + silu(own["block_0"] @ u + own["bias_0"])
    for i in range(1, config.blocks):
      j = 1 if config.tied_blocks else i
      y = y + silu(own[f"block_{j}"] @ y + own[f"bias_{j}"])
    yield embedding @ y if config.shared else own["lm_head"] @ y + own["lm_bias"]


def mlp_logits(config, p, hidden, tokens, embedding):
  n, inner = config.depth, config.inner_width or len(hidden)
  keep = 0.5 ** (0.5 / n)
  state = rms(hidden) / 2**0.5 if config.scale_input else hidden
  for d, token in enumerate(tokens, 1):
    shared = p["step_1"] if config.tied else p[f"step_{d}"]
    projection = p["step_2" if config.tied and d > 1 else f"step_{d}"]["projection"]
    x = projection @ state
    x = x + (1 - keep**2) ** 0.5 * (inner / 2) ** 0.5 / keep * shared["embedding"][token]
    state = gelu(shared["norm"]["weight"] * rms(x) + shared["norm_bias"])
    yield shared["lm_head"] @ state


def redrafter_logits(config, p, hidden, tokens, embedding):
  state = np.zeros(len(hidden))
  for token in tokens:
    e = embedding[token]
    state = silu(p["rnn_w"] @ e + p["rnn_u"] @ state + p["rnn_bias"]) if config.rnn else state + e
    z = np.concatenate([hidden, state])
    for i in range(config.blocks):
      z = z + silu(p[f"block_{i}"] @ z + p[f"bias_{i}"])
    yield p["lm_head"] @ z


ORACLES = {hydra: hydra_logits, mlp_speculator: mlp_logits, redrafter: redrafter_logits}


def positions(segment):
  return np.stack([[list(row[:t]).count(row[t]) for t in range(T)] for row in segment])


@functools.cache
def text(packed: bool):
  """tokens, position, segment i32[B, T] and the target's features; packed: two texts in row 0."""
  tokens = np.random.default_rng(5).integers(0, every.V, (B, T)).astype(np.int32)
  segment = np.zeros((B, T), np.int32)
  segment[0, 3:] = packed
  position = positions(segment).astype(np.int32)
  mask = (segment[:, :, None] == segment[:, None]) & np.tril(np.ones((T, T), bool))
  features, _ = jax.jit(functools.partial(Transformer(every.MODEL).apply, method="features"))(
    every.target_params(), tokens, position, mask
  )
  return tokens, position, segment, features


@jax.jit
def one_layer(prefix, hidden, position, mask):
  """A transformer of one layer whose embedding is the states [T, E] of a row, one "token" each."""
  one = dataclasses.replace(every.MODEL, layers=1, vocab_size=T)
  weights = {"embedding": hidden, "layer_0": prefix["layers"]["layer_0"], "norm": prefix["norm"]}
  tokens = jnp.arange(T, dtype=jnp.int32)[None]
  return Transformer(one).apply({"params": weights}, tokens, position[None], mask[None])[0][0]


def states_of(params, b: int, packed: bool):
  """[T, E]: what the heads start from."""
  _, position, segment, features = text(packed)
  states = features.hidden[b]
  if "prefix" in params["params"]:
    mask = np.tril(segment[b][:, None] == segment[b][None])
    states = one_layer(params["params"]["prefix"], states, position[b], mask)
  return np.asarray(states, np.float64)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_published_formulas(name):
  build, config = VARIANTS[name]
  made, params = every.head(f"variant {name}")
  tokens, position, segment, features = text(packed=True)

  @jax.jit
  def run(params):
    states = drafting.unroll(
      made, params, every.target_params(), Examples(tokens, position, segment, features, CUTS)
    )
    return [made.read(params, every.target_params(), s, d) for d, s in enumerate(states, 1)]

  logits = run(params)
  assert len(logits) == config.depth
  p, embedding = numbers(params["params"]), embeddings()
  for b in range(B):
    states = states_of(params, b, packed=True)
    for m, t in enumerate(CUTS[b]):
      following = tokens[b, t + 1 : t + 1 + config.depth]
      want = ORACLES[build](config, p, states[t], following, embedding)
      for got, expected in zip(logits, want, strict=True):
        np.testing.assert_allclose(got[b, m], expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["hydra++", "mlp, untied, scaled", "redrafter"])
def test_a_beam_is_what_the_formulas_search(name):
  build, config = VARIANTS[name]
  made, params = every.head(f"variant {name}")
  tokens, *_, features = text(packed=False)
  width, depth, length = 3, 2, np.array([T, 5], np.int32)
  drafter = drafting.drafter(made, Beam(1 + width * depth, depth, width))

  @jax.jit
  def run(params):
    context = Context(jnp.asarray(tokens), jnp.asarray(length))
    weights = params, every.target_params()
    state = drafter.init(*weights, context, features, T + 4)
    return drafter.propose(*weights, state, context, None, None)[0]

  draft, p, embedding = run(params), numbers(params["params"]), embeddings()
  for b in range(B):
    hidden, root = states_of(params, b, packed=False)[length[b] - 2], tokens[b, length[b] - 1]
    kept = [(0.0, ())]
    for _ in range(depth):
      longer = []
      for score, path in kept:
        *_, logits = ORACLES[build](config, p, hidden, [root, *path], embedding)
        log_probs = logits - np.log(np.exp(logits).sum())
        longer += [(score + x, (*path, v)) for v, x in enumerate(log_probs)]
      kept = sorted(longer, reverse=True)[:width]
    found, valid = [()], np.asarray(draft.valid[b])
    for i in range(1, drafter.nodes):
      found.append((*found[draft.parent[b, i]], int(draft.tokens[b, i])))
    want = {path[:j] for _, path in kept for j in (0, 1, 2)}
    assert {path for path, ok in zip(found, valid, strict=True) if ok} == want
    assert valid.sum() == len(want)


@pytest.mark.slow
def test_the_prefix_layer_remembers_what_was_accepted():
  every.test_what_is_drafted_is_what_training_sees("variant hydra++", reduced=True)


def test_heads_start_from_the_targets_vocabulary():
  matrix = np.asarray(every.target_params()["params"]["embedding"])
  params = VARIANTS["hydra++"][0](every.TARGET, HydraConfig()).init(
    jax.random.key(0), every.target_params(), jnp.asarray(every.VOCABULARY)
  )["params"]
  for d in range(1, 5):
    np.testing.assert_array_equal(params[f"head_{d}"]["lm_head"], matrix[every.VOCABULARY])
    assert not params[f"head_{d}"]["block_0"].any()
    bound = ((d + 1) * every.MODEL.width) ** -0.5
    residual = np.abs(params[f"head_{d}"]["residual"])
    assert 0.9 * bound < residual.max() <= bound


def llama(width, mlp_width, heads, vocab_size=32000):
  return Config(vocab_size, width, 1, heads, heads, width // heads, mlp_width, tied=False)


@pytest.mark.parametrize(
  ("build", "config", "model", "billions"),
  [
    (hydra, HydraConfig(blocks=4, prefix=True), llama(4096, 11008, 32), 1.26),
    (mlp_speculator, MLPSpeculatorConfig(3, tied=False), llama(4096, 11008, 32), 0.84),
    (mlp_speculator, MLPSpeculatorConfig(3), llama(4096, 11008, 32), 0.30),
    (mlp_speculator, MLPSpeculatorConfig(4, 3072, False), llama(4096, 14336, 32, 128256), 3.2),
    (mlp_speculator, MLPSpeculatorConfig(4, 3584), llama(8192, 28672, 64, 128256), 0.96),
    (redrafter, ReDrafterConfig(), llama(4096, 11008, 32), 0.43),
  ],
)
def test_sizes_are_the_published_ones(build, config, model, billions):
  init = build(target(model), config).init
  matrix = jax.ShapeDtypeStruct((model.vocab_size, model.width), jnp.float32)
  shapes = jax.eval_shape(init, jax.random.key(0), {"params": {"lm_head": matrix}})
  size = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) / 1e9
  digits = 1 if billions > 2 else 2
  assert round(size, digits) == billions
