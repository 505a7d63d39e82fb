"""Low-rank updates: added to the weights, or applied to some rows of a pass alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import lora, sharding
from specjax.models.config import Config
from specjax.models.int8 import quantise
from specjax.models.linear import linear
from specjax.models.transformer import init, target
from specjax.models.weights import dense

MODEL = Config(
  vocab_size=40, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=24, qkv_bias=True
)
N, FIRST = 9, 4


def drawn(seed: int, *shape: int):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


W, DOWN, UP = drawn(0, 12, 20), drawn(1, 3, 20), drawn(2, 12, 3)
HELD = {
  "array": jnp.asarray(W), "int8": quantise(jnp.asarray(W), jnp.dtype(jnp.float32)),
}  # fmt: skip


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("first", [0, FIRST, N])
def test_a_product_has_the_update_for_later_rows_alone(held, first):
  x = drawn(3, 2, N, 20)
  weight = lora.Gated(HELD[held], jnp.asarray(DOWN), jnp.asarray(UP), first)
  base = W if held != "int8" else np.asarray(dense(HELD[held]))
  want = x @ base.T + (np.arange(N) >= first)[:, None] * (x @ DOWN.T @ UP.T)
  got = jax.jit(linear)(jnp.asarray(x), weight)
  np.testing.assert_allclose(got, want, atol=1e-3)
  np.testing.assert_allclose(linear(jnp.asarray(x), weight[5:9]), want[..., 5:9], atol=1e-3)


@functools.cache
def weights():
  """(a network's weights, updates that are not 0)."""
  frozen = jax.tree.map(lambda x: 3 * x + 0.01, init(MODEL, jax.random.key(0)))
  updates = lora.start(jax.random.key(1), frozen, 2)
  return frozen, jax.tree.map(lambda x: x + jnp.asarray(drawn(x.size, *x.shape)) / 4, updates)


@jax.jit
def run(params):
  """The stream [1, N, E] after all layers, where no row sees another."""
  x = jnp.asarray(drawn(4, 1, N, MODEL.width))
  position = jnp.arange(N, dtype=jnp.int32)[None]
  return target(MODEL).run_layers(params, x, position, jnp.eye(N, dtype=bool)[None])[0]


@pytest.mark.slow
def test_gated_rows_are_those_of_the_merged_network_and_others_those_of_the_frozen_one():
  frozen, updates = weights()
  old, new = run(frozen), run(lora.merge(frozen, updates))
  got = run(lora.gate(frozen, updates, FIRST))
  np.testing.assert_array_equal(got[:, :FIRST], old[:, :FIRST])
  np.testing.assert_allclose(got[:, FIRST:], new[:, FIRST:], rtol=1e-4, atol=1e-5)
  assert np.abs(new - old).max() > 0.1


def test_weights_that_lie_otherwise_in_memory_have_the_same_updates():
  frozen, updates = weights()
  want = run(lora.gate(frozen, updates, FIRST))
  got = run(lora.gate(sharding.split(frozen), updates, FIRST))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_updates_that_went_bad_leave_the_other_rows_alone(bad):
  """All rows see each other but the first ones, which see themselves."""
  frozen, updates = weights()
  mask = np.ones((1, N, N), bool)
  mask[:, :FIRST, FIRST:] = False
  position = jnp.arange(N, dtype=jnp.int32)[None]
  x = jnp.asarray(drawn(4, 1, N, MODEL.width))

  @jax.jit
  def run(params):
    return target(MODEL).run_layers(params, x, position, jnp.asarray(mask))[0]

  broken = jax.tree.map(lambda x: jnp.full_like(x, bad), updates)
  got = run(lora.gate(frozen, broken, FIRST))
  want = run(lora.gate(frozen, updates, FIRST))
  np.testing.assert_array_equal(got[:, :FIRST], want[:, :FIRST])


def test_updates_begin_with_nothing_and_are_of_all_matrices_of_the_layers():
  frozen, _ = weights()
  updates = lora.start(jax.random.key(1), frozen, 2)
  assert updates.keys() == {"layer_0", "layer_1"}
  assert {frozenset(x) for x in updates.values()} == {frozenset(["qkv", "out", "gate_up", "down"])}
  jax.tree.map(np.testing.assert_array_equal, lora.merge(frozen, updates), frozen)
