"""Weights in bfloat16: their products, and networks that are made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.checkpoints import hf
from specjax.models import products, sharding
from specjax.models.attention import attend
from specjax.models.bfloat16 import Bfloat16, rounded
from specjax.models.config import Config
from specjax.models.linear import linear, lookup
from specjax.models.transformer import Transformer, init, target
from specjax.models.weights import dense

CONFIG = Config(
  vocab_size=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_length=128
)


def matrix(out=24, width=40) -> Bfloat16:
  rng = np.random.default_rng(0)
  w = rng.normal(size=(out, width)) * 10.0 ** rng.integers(-3, 3, (out, 1))
  return rounded(w.astype(np.float32), np.dtype("float32"))


@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40), (17, 40), (70, 40)])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_product_is_that_of_the_values(platform, shape, monkeypatch):
  """A number of a row is known to 2^-18 of itself."""
  monkeypatch.setattr(products, "platform", lambda: platform)
  x = jnp.asarray(np.random.default_rng(1).normal(size=shape) * 5, jnp.float32)
  w = matrix()
  got, exact, values = linear(x, w), np.asarray(x, np.float64), np.asarray(w.rows, np.float64)
  assert got.dtype == jnp.float32 and got.shape == (*shape[:-1], 24)
  error = np.abs(np.asarray(got, np.float64) - exact @ values.T)
  assert np.all(error <= (2.0**-18 + 2.0**-22) * (np.abs(exact) @ np.abs(values).T))


def test_a_row_does_not_depend_on_the_rows_beside_it():
  """So that a tree of nodes says what plain decoding says, whatever the order of the operands."""
  x = jnp.asarray(np.random.default_rng(1).normal(size=(40, 40)), jnp.float32)
  together = jax.jit(linear)(x, matrix())
  for rows in (1, 2, 5, 16, 17):
    np.testing.assert_array_equal(jax.jit(linear)(x[:rows], matrix()), together[:rows])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows(bad):
  y = linear(jnp.ones((2, 40)).at[0, 7].set(bad), matrix())
  assert not np.isfinite(y[0]).any() and np.isfinite(y[1]).all()


@pytest.mark.parametrize("rows", [1, 2, 9, 70])
@pytest.mark.parametrize("devices", [1, 2])
def test_arithmetic_in_bfloat16_sums_in_float32(rows, devices, monkeypatch):
  """On CPU, where `--dtype bfloat16` takes the products of bfloat16 too."""
  monkeypatch.setattr(jax, "device_count", lambda: devices)
  x = jnp.asarray(np.random.default_rng(1).normal(size=(rows, 640)), jnp.bfloat16)
  w = jnp.asarray(np.random.default_rng(2).normal(size=(24, 640)), jnp.bfloat16)
  exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
  got = linear(x, w)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=2**-8, atol=1e-4)

  g = jnp.asarray(np.random.default_rng(3).normal(size=got.shape), jnp.bfloat16)
  (dx, dw), of = jax.vjp(linear, x, w)[1](g), np.asarray(g, np.float64)
  assert (dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.bfloat16)
  for gradient, want in (
    (dx, of @ np.asarray(w, np.float64)),
    (dw, of.T @ np.asarray(x, np.float64)),
  ):
    np.testing.assert_allclose(np.asarray(gradient, np.float64), want, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("looked_up", [False, True])
def test_lookup_and_slices(looked_up):
  """On CPU an embedding's rows lie there as whole numbers too."""
  w, ids = matrix(), jnp.array([[5, 0], [23, 3]])
  w = rounded(w.rows, w.dtype, looked_up)
  assert (w.bits is not None) == looked_up
  np.testing.assert_array_equal(lookup(w, ids), np.asarray(w.rows, np.float32)[np.asarray(ids)])
  assert lookup(w, ids).dtype == jnp.float32
  np.testing.assert_array_equal(lookup(w[4:9], ids % 5), lookup(w, ids % 5 + 4))
  np.testing.assert_array_equal(dense(w[4:9]), dense(w)[4:9])


def in_bfloat16(params):
  return jax.tree.map(lambda x: rounded(x, x.dtype) if x.ndim == 2 else x, params)


@pytest.mark.slow
def test_a_network_is_that_of_its_values(mesh):
  small = in_bfloat16(jax.tree.map(lambda x: x * 2 + 0.01, init(CONFIG, jax.random.key(1))))
  wide = jax.tree.map(dense, small, is_leaf=lambda x: isinstance(x, Bfloat16))
  tokens = jnp.arange(10, dtype=jnp.int32)[None]

  @jax.jit
  def logits(params):
    seen = jnp.tril(jnp.ones((1, 10, 10), bool))
    hidden, _ = Transformer(CONFIG).apply(params, tokens, tokens, seen)
    return target(CONFIG).head(params, hidden)

  expected = np.asarray(logits(wide))
  for p in (small, sharding.split(small)):
    np.testing.assert_allclose(logits(p), expected, atol=1e-4 * np.abs(expected).max())
  placed = sharding.place(small, mesh)["params"]
  assert placed["embedding"].rows.sharding.spec == sharding.COLUMNS
  assert placed["layer_0"]["out"].rows.sharding.spec == sharding.ROWS


def test_load(tmp_path):
  params = jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, init(CONFIG, jax.random.key(0)))
  hf.save(tmp_path, CONFIG, params, dtype=jnp.float32)
  model = specjax.load(str(tmp_path), weights="bfloat16")
  own = model.params["params"]
  assert model.label == f"{tmp_path}, bfloat16 weights"
  assert model.size == sum(x.size for x in jax.tree.leaves(params))  # each once
  assert (own["embedding"].rows.dtype, own["norm"]["weight"].dtype) == (jnp.bfloat16, jnp.float32)
  np.testing.assert_allclose(dense(own["embedding"]), params["params"]["embedding"], rtol=2**-8)
  alike = specjax.load(str(tmp_path), jnp.bfloat16, weights="bfloat16").params["params"]
  assert alike["embedding"].dtype == jnp.bfloat16  # which arithmetic in bfloat16 needs no word for


def test_nodes_with_rows_of_their_own():
  """As guesses have while a head is trained; where a CPU multiplies 16 bits, XLA lacks some."""
  B, H, K, N, S, C, M = 2, 8, 2, 32, 5, 64, 4
  rng, mask = np.random.default_rng(0), jnp.ones((B, N, S), bool)
  shapes = (B, H, N, C), (B, K, S, C), (B, K, S, C), (M, B, K, N, C), (M, B, K, N, C)
  arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]

  @jax.jit
  def attended(*arrays):
    def summed(q, k, v, *own):
      rows = [jnp.stack(list(of_each), 3) for of_each in own]
      near = *rows, jnp.ones((B, N, M), bool)
      return attend(q, k, v, mask, near).astype(jnp.float32).sum()

    return jax.value_and_grad(summed, range(5))(*arrays)

  wide = [x.astype(jnp.float32) for x in arrays]
  for got, want in zip(*map(jax.tree.leaves, (attended(*arrays), attended(*wide))), strict=True):
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.05 * jnp.abs(want).max())
