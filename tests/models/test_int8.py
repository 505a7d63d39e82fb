"""Weights in 8 bits: their error, their products, and networks that are made of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.checkpoints import hf
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.models import int8, sharding
from specjax.models.config import Config
from specjax.models.linear import linear, lookup
from specjax.models.transformer import Transformer, init, target
from specjax.models.weights import dense

CONFIG = Config(
  vocab_size=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=64, max_length=128
)
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [7, 8, 9, 10, 7, 8]]


def matrix(out=24, width=40, seed=0) -> np.ndarray:
  """Rows of many magnitudes, one of zeros and one that is mostly small."""
  rng = np.random.default_rng(seed)
  w = rng.normal(size=(out, width)) * 10.0 ** rng.integers(-3, 3, (out, 1))
  w[3], w[5, 1:] = 0, w[5, 1:] * 1e-3
  return w.astype(np.float32)


def values(w: int8.Int8) -> np.ndarray:
  """f64[out, in], by the definition."""
  return np.asarray(w.rows, np.float64) * np.asarray(w.scale, np.float64)[:, None]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_value_is_off_by_half_a_step_at_most(dtype):
  x = matrix()
  w = int8.quantise(jnp.asarray(x), jnp.dtype(dtype))
  step = np.abs(x).max(1, keepdims=True) / 127
  room = 0.5 + 127 * float(jnp.finfo(dtype).eps) / 2  # the step itself is rounded to the dtype
  assert w.rows.dtype == jnp.int8 and (w.shape, w.dtype) == (x.shape, dtype)
  assert np.all(np.abs(values(w) - x) <= room * step * (1 + 1e-5))
  assert not values(w)[3].any()
  near = {jnp.float32: 1e-6, jnp.bfloat16: 2**-8, jnp.float16: 2**-10}[dtype]
  np.testing.assert_allclose(dense(w).astype(jnp.float32), values(w), rtol=near)


@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40), (70, 40)])
@pytest.mark.parametrize(
  ("platform", "dtype"),
  [("cpu", jnp.float32), ("cpu", jnp.bfloat16), ("tpu", jnp.float32), ("tpu", jnp.bfloat16)],
)
def test_a_product_is_that_of_the_values(platform, dtype, shape, monkeypatch):
  """On CPU a number of a row is known to 1/127/254 of the row's largest, half of that at most."""
  monkeypatch.setattr(int8, "platform", lambda: platform)
  x = np.random.default_rng(1).normal(size=shape).astype(np.float32) * 5
  x = jnp.asarray(x).astype(dtype)
  w = int8.quantise(jnp.asarray(matrix()), jnp.dtype(dtype))
  got, exact = linear(x, w), np.asarray(x, np.float64)
  assert got.dtype == dtype and got.shape == (*shape[:-1], 24)
  known = np.abs(exact).max(-1, keepdims=True) / 127 / int8._FINE / 2
  size = np.abs(values(w)).sum(1)
  rounding = 2**-8 if dtype == jnp.bfloat16 else 2e-6
  error = np.abs(np.asarray(got, np.float64) - exact @ values(w).T)
  assert np.all(error <= known * size * 1.01 + rounding * (np.abs(exact) @ np.abs(values(w)).T))


def test_a_row_does_not_depend_on_the_rows_beside_it():
  """So that a tree of nodes says what plain decoding says."""
  x = jnp.asarray(np.random.default_rng(1).normal(size=(16, 40)), jnp.float32)
  w = int8.quantise(jnp.asarray(matrix()), jnp.dtype(jnp.float32))
  together = jax.jit(linear)(x, w)
  for i in range(16):
    np.testing.assert_array_equal(jax.jit(linear)(x[i : i + 1], w)[0], together[i])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows(bad):
  x = jnp.ones((2, 40)).at[0, 7].set(bad)
  y = linear(x, int8.quantise(jnp.asarray(matrix()), jnp.dtype(jnp.float32)))
  assert not np.isfinite(y[0]).any() and np.isfinite(y[1]).all()


def test_lookup_and_slices():
  w = int8.quantise(jnp.asarray(matrix()), jnp.dtype(jnp.float32))
  ids = jnp.array([[5, 0], [23, 3]])
  np.testing.assert_allclose(lookup(w, ids), values(w)[np.asarray(ids)], rtol=1e-6)
  np.testing.assert_allclose(values(w[4:9]), values(w)[4:9])


def in_int8(params, dtype=jnp.float32):
  return jax.tree.map(
    lambda x: int8.quantise(x, jnp.dtype(dtype)) if x.ndim == 2 else x.astype(dtype), params
  )


@pytest.mark.slow
@pytest.mark.full(but=["change2"])
@pytest.mark.parametrize("change", [{}, {"qkv_bias": True}, {"tied": False, "qk_norm": True}])
def test_a_network_in_8_bits_is_that_of_its_values(change):
  config = dataclasses.replace(CONFIG, **change)
  params = jax.tree.map(lambda x: x * 2 + 0.01, init(config, jax.random.key(1)))
  small = in_int8(params)
  wide = jax.tree.map(dense, small, is_leaf=lambda x: isinstance(x, int8.Int8))
  tokens = jnp.arange(10, dtype=jnp.int32)[None]

  @jax.jit
  def logits(params):
    hidden, _ = Transformer(config).apply(
      params, tokens, tokens, jnp.tril(jnp.ones((1, 10, 10), bool))
    )
    return target(config).head(params, hidden)

  expected = np.asarray(logits(wide))
  for p in (small, sharding.split(small)):
    np.testing.assert_allclose(logits(p), expected, atol=1e-3 * np.abs(expected).max())


def test_a_mesh_spreads_rows_with_their_scales(mesh):
  placed = sharding.place(in_int8(init(CONFIG, jax.random.key(0))), mesh)["params"]
  embedding, out = placed["embedding"], placed["layer_0"]["out"]
  assert embedding.rows.sharding.spec == sharding.COLUMNS
  assert embedding.scale.sharding.spec == sharding.COLUMNS
  assert out.rows.sharding.spec == sharding.ROWS
  assert out.scale.sharding.is_fully_replicated


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  path = tmp_path_factory.mktemp("model")
  params = jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, init(CONFIG, jax.random.key(0)))
  hf.save(path, CONFIG, params, dtype=jnp.float32)
  return str(path)


@pytest.mark.slow
def test_load_in_8_bits(directory):
  whole = specjax.load(directory).params["params"]
  model = specjax.load(directory, jnp.bfloat16, weights="int8")
  own = model.params["params"]
  assert (model.weights, model.label) == ("int8", f"{directory}, bfloat16, int8 weights")
  assert own["norm"]["weight"].dtype == jnp.bfloat16
  for w, x in ((own["embedding"], whole["embedding"]),
               (own["layer_1"]["down"], whole["layer_1"]["down"])):  # fmt: skip
    step = np.abs(x).max(1, keepdims=True) / 127
    assert w.rows.dtype == jnp.int8 and w.scale.dtype == jnp.bfloat16
    assert np.all(np.abs(values(w) - np.asarray(x)) <= step)
  tokens = specjax.Decoder(model)(PROMPTS, 4)
  assert all(len(r.tokens) == 4 for r in tokens)


def test_a_bad_value_is_one_sentence(directory):
  accepted = "one of float, bfloat16, int8, int4, native"
  with pytest.raises(ValueError, match=rf"^`weights` must be {accepted}, got 'int3'\.$"):
    specjax.load(directory, weights="int3")
  with pytest.raises(ValueError, match=r"^`weights` must be .*can hold no matrix, got 'native'"):
    specjax.load(directory, weights="native")


def medusa_of(model):
  """A head of random weights, which stand for those that were trained for the float model."""
  head = medusa(model.target, MedusaConfig(depth=3))
  return head, head.init(jax.random.key(3), specjax.load(model.name).params, jnp.arange(40))


@pytest.mark.slow
@pytest.mark.full(but=["*medusa-0.8-2"])
@pytest.mark.parametrize(("temperature", "batch"), [(0.0, 1), (0.8, 2)])
@pytest.mark.parametrize("name", ["prompt_lookup-4", "medusa", "draft_model"])
@pytest.mark.parametrize("weights", ["int8", "bfloat16", "int4"])
def test_drafters_change_no_token(directory, weights, name, temperature, batch):
  model = specjax.load(directory, weights=weights)
  part = {"medusa": medusa_of, "draft_model": lambda m: f"draft_model-3[{directory}]"}.get(
    name, lambda m: name
  )(model)
  settings = dict(temperature=temperature, batch=batch)
  plain = specjax.Decoder(model, **settings)(PROMPTS, 24)
  drafted = specjax.Decoder(model, part, "target_only" if temperature else None, **settings)
  assert [r.tokens for r in drafted(PROMPTS, 24)] == [r.tokens for r in plain]


def test_untrained_heads_start_as_the_values_of_the_lm_head(directory):
  model = specjax.load(directory, weights="int8")
  ids = jnp.array([1, 5, 6])
  head = medusa(model.target, MedusaConfig(depth=2))
  rows = head.init(jax.random.key(0), model.params, ids)["params"]["lm_head"]
  want = values(model.params["params"]["embedding"])[np.asarray(ids)]
  np.testing.assert_allclose(rows, np.stack([want] * 2), rtol=1e-6)
