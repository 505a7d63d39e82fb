"""Some sublayers of a network: the others are as absent as if their last matrix were 0."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Target
from specjax.drafters.layers.swift import swift
from specjax.models import sharding
from specjax.models.config import Config
from specjax.models.int8 import quantise
from specjax.models.transformer import init, target

L, B, T, N = 4, 2, 9, 5
CONFIG = Config(
  vocab_size=64, width=32, layers=L, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_length=64
)
LENGTH = jnp.array([9, 4])
TOKENS = jnp.asarray(np.random.default_rng(0).integers(64, size=(B, T + N)), jnp.int32)
RUNS = {
  "all": np.ones((L, 2), bool),
  "none": np.zeros((L, 2), bool),
  "first": np.arange(L)[:, None].repeat(2, 1) < 2,
  "mixed": np.array([[1, 1], [0, 1], [1, 0], [0, 0]], bool),
}


@functools.cache
def weights(config: Config):
  return jax.tree.map(
    lambda x: x * 3 + 0.01, jax.jit(functools.partial(init, config))(jax.random.key(1))
  )


def without(params, run):
  """The weights in which what does not run adds nothing to the stream."""
  layers = dict(params["params"])
  for i, (attention, mlp) in enumerate(np.asarray(run, np.float32)):
    own = layers[f"layer_{i}"]
    layers[f"layer_{i}"] = own | {"out": own["out"] * attention, "down": own["down"] * mlp}
  return {"params": layers}


def fresh():
  """Tokens, positions and mask of N rows behind the cached text."""
  step = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), (B, N))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((N, N), bool)), (B, N, N))
  return TOKENS[:, T:], step, LENGTH[:, None] - 1 + step, mask


@functools.cache
def compiled(config: Config):
  return jax.jit(target(config).run_some)


@functools.cache
def whole(config: Config):
  return jax.jit(target(config).evaluate, static_argnums=5)


@functools.cache
def cached(config: Config):
  """The whole network's cache of the text."""
  prefill = jax.jit(target(config).prefill, static_argnums=3)
  return prefill(weights(config), TOKENS[:, :T], LENGTH, T + N)[0]


def passed(params, run, given=None, config=CONFIG):
  """What `run_some` gives behind the text."""
  tokens, _, position, mask = fresh()
  x = target(config).embed(params, tokens)
  return compiled(config)(params, x, position, mask, cached(config), jnp.asarray(run), given=given)


@pytest.mark.slow
@pytest.mark.full(but=["change0-mixed"])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("change", [{}, {"qkv_bias": True, "qk_norm": True, "tied": False}])
def test_what_does_not_run_adds_nothing(change, run):
  config = dataclasses.replace(CONFIG, **change)
  params = weights(config)
  x, kv, inputs = passed(params, run, config=config)
  tokens, step, _, mask = fresh()
  want = whole(config)(without(params, run), cached(config), tokens, step, mask, tuple(range(L)))
  hidden = target(config).norm(params, x)
  np.testing.assert_allclose(hidden, want.features.hidden, atol=1e-4)
  for got, expected in zip(inputs, want.features.hidden_layers, strict=True):
    np.testing.assert_allclose(got, expected, atol=1e-4)
  for i, (attention, _) in enumerate(run):
    for got, expected in ((kv.k[i], want.kv.k[i]), (kv.v[i], want.kv.v[i])):
      np.testing.assert_allclose(got, expected * np.float32(attention), atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["int8", "split"])
def test_weights_of_every_kind(kind):
  params = weights(CONFIG)
  changed = {
    "split": sharding.split,
    "int8": functools.partial(
      jax.tree.map, lambda x: quantise(x, jnp.float32) if x.ndim == 2 else x
    ),
  }[kind](params)
  got, want = (passed(p, RUNS["mixed"])[0] for p in (changed, params))
  np.testing.assert_allclose(got, want, atol=0.1 if kind == "int8" else 1e-4)


@pytest.mark.full
def test_given_rows_stand_where_attention_does_not_run():
  params = weights(CONFIG)
  _, given, _ = passed(params, RUNS["all"])
  _, kv, _ = passed(params, RUNS["mixed"], given)
  for i, (attention, _) in enumerate(RUNS["mixed"]):
    same = np.array_equal(kv.k[i], given.k[i]) and np.array_equal(kv.v[i], given.v[i])
    assert same or attention
  _, again, _ = passed(params, ~RUNS["first"], given)
  assert np.array_equal(again.k[0], given.k[0])


@pytest.mark.full
def test_rows_one_by_one_are_rows_at_once():
  params, own, run = weights(CONFIG), target(CONFIG), jnp.asarray(RUNS["mixed"])
  tokens, _, position, _ = fresh()
  x = own.embed(params, tokens)
  want, kv, _ = passed(params, run)
  earlier = jax.tree.map(jnp.zeros_like, kv)
  for j in range(N):
    seen = jnp.append(jnp.arange(N) < j, True)
    got, new, _ = compiled(CONFIG)(
      params, x[:, j : j + 1], position[:, j : j + 1], jnp.broadcast_to(seen, (B, 1, N + 1)),
      cached(CONFIG), run, earlier=earlier,
    )  # fmt: skip
    np.testing.assert_allclose(got[:, 0], want[:, j], atol=1e-4)
    earlier = jax.tree.map(lambda old, x, j=j: old.at[:, :, j].set(x[:, :, 0]), earlier, new)


@pytest.mark.full
def test_one_program_serves_every_set():
  traces = []

  @jax.jit
  def run(params, x, position, mask, run):
    traces.append(1)
    return target(CONFIG).run_some(params, x, position, mask, None, run)[0]

  params, (tokens, _, position, mask) = weights(CONFIG), fresh()
  x = target(CONFIG).embed(params, tokens)
  streams = [np.asarray(run(params, x, position, mask, jnp.asarray(r))) for r in RUNS.values()]
  assert len(traces) == 1 and len({s.tobytes() for s in streams}) == len(RUNS)
  np.testing.assert_array_equal(streams[1], x)


@pytest.mark.full
def test_what_does_not_run_is_not_read():
  """A matrix of NaN in a sublayer that does not run changes nothing."""
  params, run = weights(CONFIG), RUNS["mixed"]
  broken = without(params, np.where(run, 1.0, np.nan))
  np.testing.assert_array_equal(passed(broken, run)[0], passed(params, run)[0])


def test_a_sliding_window_is_refused():
  own = target(dataclasses.replace(CONFIG, window=4))
  tokens, _, position, mask = fresh()
  x = own.embed(weights(CONFIG), tokens)
  with pytest.raises(
    ValueError, match=(r"`window` must be None for drafts by a model's own layers, got 4\.")
  ):
    own.run_some(weights(CONFIG), x, position, mask, None, jnp.ones((L, 2), bool))


def test_a_target_without_layers_says_so():
  own = target(CONFIG)
  bare = Target(own.vocab_size, own.prefill, own.evaluate, own.commit, own.head)
  with pytest.raises(
    ValueError,
    match=(r"the target of swift must be a LayeredTarget, which shows.*got one of type Target\."),
  ):
    swift(bare)
