"""Clover and Clover-2 against plain loops in float64, and what they are before training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.clover import CloverConfig, clover
from specjax.heads.clover2 import Clover2Config, ResidualAttention, clover2
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask, target

V, E, H, K, C, T = 11, 8, 2, 1, 6, 6
MODEL = Config(
  vocab_size=V, width=E, layers=2, heads=H, kv_heads=K, head_dim=C, mlp_width=10, tied=False
)
EPSILON = MODEL.norm_epsilon
AT = 3
HEADS = {
  "clover": (clover, CloverConfig(depth=2)),
  "clover2": (clover2, Clover2Config(depth=2, layers=2)),
}


def noisy(params, seed: int):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: x + jnp.asarray(rng.normal(size=x.shape) / 3, x.dtype), params)


@functools.cache
def target_params():
  init = jax.jit(functools.partial(transformer.init, MODEL))
  return noisy(init(jax.random.key(0)), 0)


@functools.cache
def examples() -> Examples:
  """One text of T tokens, cut at AT and at its end."""
  tokens = jnp.asarray(np.random.default_rng(5).integers(0, V, (1, T)), jnp.int32)
  position = jnp.arange(T, dtype=jnp.int32)[None]
  segment = jnp.zeros_like(tokens)
  run = functools.partial(
    Transformer(MODEL).apply, hidden_layers=(MODEL.layers,), method="features"
  )
  features, _ = jax.jit(run)(target_params(), tokens, position, attention_mask(segment, True))
  at = jnp.array([[AT, T - 2, T - 1]], jnp.int32)
  return Examples(tokens, position, segment, features, at)


def unrolled(name: str, params):
  """States [D, E] and logits [D, V] of the first drafting position."""
  build, config = HEADS[name]
  head = build(target(MODEL), config)

  @jax.jit
  def run(params, target_params, texts):
    states = drafting.unroll(head, params, target_params, texts)
    return states, [head.read(params, target_params, s, d) for d, s in enumerate(states, 1)]

  both = tuple(np.stack(xs) for xs in run(params, target_params(), examples()))
  # The other drafting positions have no tokens, or too few, after them.
  assert all(np.isfinite(x).all() and x.shape[:3] == (2, 1, 3) for x in both)
  return tuple(x[:, 0, 0] for x in both)


@functools.cache
def initial(name: str):
  build, config = HEADS[name]
  return jax.jit(build(target(MODEL), config).init)(jax.random.key(1), target_params(), None)


# The oracle: one vector at a time.


def norm(x, p):
  return x / np.sqrt(np.mean(x * x) + EPSILON) * p["weight"]


def silu(x):
  return x / (1 + np.exp(-x))


def softmax(x):
  e = np.exp(x - x.max())
  return e / e.sum()


def affine(x, p):
  return p["weight"] @ x + p["bias"]


def turned(x, position: int):
  """Rotary embedding of one head."""
  half = C // 2
  y = np.empty(C)
  for i in range(half):
    angle = position * MODEL.rope_theta ** (-2 * i / C)
    a, b = x[i], x[i + half]
    y[i] = a * np.cos(angle) - b * np.sin(angle)
    y[i + half] = b * np.cos(angle) + a * np.sin(angle)
  return y


def layer(xs, p):
  """One causal transformer layer over a list of vectors."""
  parts = [(p["qkv"] @ norm(x, p["attention_norm"])).reshape(-1, C) for x in xs]
  out = []
  for i, x in enumerate(xs):
    heads = []
    for h in range(H):
      kv = H + h // (H // K)
      q = turned(parts[i][h], i)
      scores = [q @ turned(parts[j][kv], j) / np.sqrt(C) for j in range(i + 1)]
      weight = softmax(np.array(scores))
      heads.append(sum(weight[j] * parts[j][kv + K] for j in range(i + 1)))
    x = x + p["out"] @ np.concatenate(heads)
    gate, up = np.split(p["gate_up"] @ norm(x, p["mlp_norm"]), 2)
    out.append(x + p["down"] @ (silu(gate) * up))
  return out


def layers(xs, p):
  for i in range(len(p)):
    xs = layer(xs, p[f"layer_{i}"])
  return xs


def residual_attention(x, y, p):
  q, k, v = affine(norm(x, p["norm"]), p["q"]), affine(y, p["k"]), affine(y, p["v"])
  out = x.copy()
  for h in range(H):
    part = slice(h * E // H, (h + 1) * E // H)
    cosine = q[part] @ k[part] / (np.linalg.norm(q[part]) * np.linalg.norm(k[part]))
    out[part] += cosine * v[part]
  return out


def attention_decoder(x, token, p):
  a, b = norm(token, p["token_norm"]), norm(x, p["state_norm"])
  q = (p["q"] @ b).reshape(H, C)
  keys, values = np.split(p["kv"], 2)
  k, v = ([(w @ z).reshape(H, C) for z in (a, b)] for w in (keys, values))
  heads = []
  for h in range(H):
    weight = softmax(np.array([q[h] @ k[0][h], q[h] @ k[1][h]]) / np.sqrt(C))
    heads.append(weight[0] * v[0][h] + weight[1] * v[1][h])
  return x + p["out"] @ np.concatenate(heads)


def clover_states(p, target, hidden, stream, tokens):
  state = layers(list(hidden), p["augment"])[AT]
  states = []
  for d in (1, 2):
    token = target["embedding"][tokens[AT + d]]
    state = attention_decoder(state, token, p[f"decoder_{d}"])
    states.append(state)
  return states


def clover2_states(p, target, hidden, stream, tokens):
  word = target["lm_head"][tokens]
  mixed = [residual_attention(stream[i], word[i + 1], p["root_attention"]) for i in range(T - 1)]
  m = norm(layers(mixed, p["augment"])[AT], p["norm"])
  first = norm(affine(m, p["root_output"]), p["head_norm"])
  m = residual_attention(m, word[AT + 2], p["token_attention"])
  second = affine(np.concatenate([m, word[AT + 2]]), p["token_output"])
  return [first, norm(second, p["head_norm"])]


@pytest.mark.parametrize("name", HEADS)
def test_two_depths_are_the_formula(name):
  params = {"params": noisy(initial(name)["params"], 2)}
  states, logits = unrolled(name, params)
  p, target = jax.tree.map(lambda x: np.asarray(x, np.float64), (params, target_params()))
  texts = examples()
  states_of_target = (texts.features.hidden, texts.features.hidden_layers[0])
  hidden, stream = (np.asarray(x[0], np.float64) for x in states_of_target)
  oracle = {"clover": clover_states, "clover2": clover2_states}[name]
  want = oracle(p["params"], target["params"], hidden, stream, np.asarray(texts.tokens[0]))
  np.testing.assert_allclose(states, want, rtol=2e-4, atol=2e-4)
  lm_head = target["params"]["lm_head"]
  np.testing.assert_allclose(logits, [lm_head @ x for x in want], rtol=5e-4, atol=5e-4)
  assert np.abs(want[0] - want[1]).max() > 0.1


def test_residual_attention_is_its_formula():
  x, y = np.random.default_rng(6).normal(size=(2, 3, 5, E))
  module = ResidualAttention(MODEL.heads, MODEL.norm_epsilon)
  x32, y32 = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
  params = noisy(jax.jit(module.init)(jax.random.key(0), x32, y32), 7)
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
  want = [[residual_attention(x[b, n], y[b, n], p) for n in range(5)] for b in range(3)]
  got = jax.jit(module.apply)(params, x32, y32)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_residual_attention_to_nothing_is_finite():
  """A zero key has no direction: neither the value nor the gradient is NaN."""
  module, zero = ResidualAttention(MODEL.heads, MODEL.norm_epsilon), jnp.zeros((1, E))
  params = jax.jit(module.init)(jax.random.key(0), zero, zero)
  run = jax.jit(jax.value_and_grad(lambda p: module.apply(p, zero, zero).sum()))
  value, gradient = run(params)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, gradient)))


def test_untrained_clover_is_the_targets_distribution_at_every_depth():
  states, logits = unrolled("clover", initial("clover"))
  hidden = np.asarray(examples().features.hidden[0, AT])
  want = np.asarray(target_params()["params"]["lm_head"]) @ hidden
  for d in range(2):
    np.testing.assert_allclose(states[d], hidden, rtol=1e-6)
    np.testing.assert_allclose(logits[d], want, rtol=1e-5, atol=1e-5)


def test_untrained_clover2_is_the_identity_and_the_targets_last_layer():
  p, target = initial("clover2")["params"], target_params()["params"]
  assert set(p["augment"]) == {"layer_0", "layer_1"}
  for got in p["augment"].values():
    jax.tree.map(np.testing.assert_array_equal, got, target[f"layer_{MODEL.layers - 1}"])
  for key in ("norm", "head_norm"):
    np.testing.assert_array_equal(p[key]["weight"], target["norm"]["weight"])
  eye, nothing = np.eye(E), np.zeros((E, E))
  starts = [(p["root_output"], eye), (p["token_output"], np.concatenate([eye, nothing], 1))]
  for key in ("root_attention", "token_attention"):
    starts += [(p[key]["q"], eye), (p[key]["k"], eye), (p[key]["v"], nothing)]
  for got, start in starts:
    noise = got["weight"] - start
    assert noise.min() >= -1e-6 and noise.max() <= 0.01 + 1e-6 and noise.std() > 0
    np.testing.assert_array_equal(got["bias"], np.zeros(E))
  # Of the weights that start the same, no two share their noise.
  q = [p[key][part]["weight"] for key in ("root_attention", "token_attention") for part in "qk"]
  assert all(np.abs(q[i] - q[j]).max() > 0 for i in range(4) for j in range(i))


def test_clover2_without_noise_stands_still():
  """v is zero, so m_0 is the target's last layer once more over its stream, at every depth."""
  params = jax.tree.map(jnp.round, initial("clover2")["params"])  # strips the noise
  kept = {name: initial("clover2")["params"][name] for name in ("augment", "norm", "head_norm")}
  states, _ = unrolled("clover2", {"params": params | kept})
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), target_params()["params"])
  stream = [np.asarray(x, np.float64) for x in examples().features.hidden_layers[0][0]]
  last = p[f"layer_{MODEL.layers - 1}"]
  m = norm(layers(stream, {"layer_0": last, "layer_1": last})[AT], p["norm"])
  for state in states:
    np.testing.assert_allclose(state, norm(m, p["norm"]), rtol=2e-4, atol=2e-4)


def test_a_width_that_heads_do_not_divide_is_refused():
  with pytest.raises(
    ValueError, match=(r"`width` must be a multiple of heads=3 for clover2, got 8\.")
  ):
    clover2(target(dataclasses.replace(MODEL, heads=3, kv_heads=1)), Clover2Config())
