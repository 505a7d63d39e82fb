"""Turned weights: the same products and networks, taken where they pay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.models import sharding
from specjax.models.linear import linear
from specjax.models.transformer import Config, init, target
from specjax.models.turned import FEW, Turned, turn

CONFIG = Config(
  vocab_size=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_length=128
)
MATRICES = {"qkv", "out", "gate_up", "down"}


def turned_names(params) -> set[str]:
  layer = params["params"]["layer_1"]
  return {name for name, x in layer.items() if isinstance(x, Turned)}


@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40), (FEW[-1], 40), (70, 40)])
def test_a_product_is_that_of_the_matrix(shape):
  rng = np.random.default_rng(0)
  x, w = rng.normal(size=shape), rng.normal(size=(24, 40))
  columns = jnp.asarray(w.T, jnp.float32)
  got = jax.jit(linear)(jnp.asarray(x, jnp.float32), Turned(columns))
  np.testing.assert_allclose(got, x @ w.T, atol=1e-4)
  some = linear(jnp.asarray(x, jnp.float32), Turned(columns)[5:9])
  np.testing.assert_allclose(some, (x @ w.T)[..., 5:9], atol=1e-4)


@pytest.mark.parametrize("change", [{}, {"qkv_bias": True}, {"tied": False, "qk_norm": True}])
@pytest.mark.parametrize("rows", [1, 8, 30])
def test_a_network_is_the_same(change, rows):
  config = dataclasses.replace(CONFIG, **change)
  params = jax.tree.map(lambda x: x * 3 + 0.01, init(config, jax.random.key(1)))
  own = target(config)
  tokens = jnp.arange(rows, dtype=jnp.int32)[None]
  run = jax.jit(own.prefill, static_argnums=3)
  (_, want), (_, got) = (
    run(p, tokens, jnp.array([rows]), rows) for p in (params, own.few_rows(params))
  )
  np.testing.assert_allclose(got.hidden, want.hidden, atol=1e-4)


def test_only_float32_of_one_device_is_turned(mesh):
  params = init(CONFIG, jax.random.key(0))
  assert turned_names(turn(params)) == MATRICES
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  with jax.set_mesh(mesh):
    spread = sharding.place(params, mesh)
  for left in (half, spread):
    assert not turned_names(turn(left))


def test_decoders_take_what_pays():
  model = specjax.load("gsm8k-7m")
  drafters = {("none", 1): False, ("prompt_lookup-8", 1): True, ("none", 3): True,
              ("prompt_lookup-8", 4): False}  # fmt: skip
  for (name, batch), turned in drafters.items():
    weights = specjax.Decoder(model, name, batch=batch).weights.target
    assert turned_names(weights) == (MATRICES if turned else set()), (name, batch)
    assert (weights is model.params) is not turned
  assert model.params_for(8) is model.params_for(16)
