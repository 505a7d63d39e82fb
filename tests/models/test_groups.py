"""Weights in 4 to 8 bits: their error, their products, and networks that are made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.kernels import compiled, skinny
from specjax.models import groups, sharding
from specjax.models.config import Config
from specjax.models.linear import linear, lookup
from specjax.models.transformer import Transformer, init, target
from specjax.models.weights import count_parameters, dense, parameter

CONFIG = Config(
  vocab_size=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=64, max_length=128
)


def matrix(out: int = 24, width: int = 96) -> np.ndarray:
  """Rows of several magnitudes, one of zeros and one whose numbers are equal."""
  rng = np.random.default_rng(out + width)
  w = rng.normal(size=(out, width)) * 10.0 ** rng.integers(-2, 3, (out, 1))
  w[3], w[5] = 0, 0.25
  return w.astype(np.float32)


def random_groups(out: int, width: int, bits: int, seed: int = 0) -> groups.Groups:
  """Numbers of any kind, with steps of scales for 16 and of offsets for 256 where they fit."""
  rng = np.random.default_rng(seed)
  numbers = rng.integers(0, 2**bits, (out, width), np.uint8)
  if bits == 8:
    low, high = numbers.view(np.int8), np.zeros((out, 0), np.uint32)
  else:
    low, high = groups.pack(numbers, bits)
  of_scales = 16 if bits == 6 else 32
  large = 256 if width % 256 == 0 else 32
  none = np.zeros((out, 0), np.int8)
  held = groups.Groups(
    low=low, high=high, scale=rng.normal(size=(out, width // large)).astype(np.float16),
    offset=rng.normal(size=(out, width // large)).astype(np.float16) if bits == 4 else
    none.astype(np.float16),
    scale_steps=rng.integers(-99, 99, (out, width // of_scales)).astype(np.int8),
    offset_steps=rng.integers(0, 63, (out, width // 32)).astype(np.int8) if bits == 4 else none,
    zero=2 ** (bits - 1) if bits < 8 else 0, dtype=jnp.dtype(jnp.float32),
  )  # fmt: skip
  return jax.tree.map(jnp.asarray, held)


def values(w: groups.Groups) -> np.ndarray:
  """f64[out, in], number after number, by the definition."""
  O, K = w.shape
  low, high = np.asarray(w.low), np.asarray(w.high)
  found = np.zeros((O, K))
  for k in range(K):
    group, i = divmod(k, 32)
    if low.dtype == np.int8:
      number = low[:, k].astype(int)
    else:
      number = low[:, 16 * group + i % 16].astype(int) >> (4 if i >= 16 else 0) & 15
      planes = high.shape[1] * 32 // K
      for p in range(planes):
        number += (high[:, group * planes + p].astype(np.int64) >> i & 1) << (4 + p)

    def of(x, k=k):
      return np.asarray(x, np.float64)[:, k * x.shape[1] // K] if x.shape[1] else 1

    found[:, k] = of(w.scale) * of(w.scale_steps) * (number - w.zero)
    if w.offset.shape[1]:
      found[:, k] += of(w.offset) * of(w.offset_steps)
  return found


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_values_rows_and_outputs(bits):
  w = random_groups(12, 512, bits)
  wide = values(w)
  np.testing.assert_allclose(dense(w), wide, rtol=1e-6)
  ids = np.array([[3, 0], [11, 3]])
  np.testing.assert_array_equal(lookup(w, ids), np.asarray(dense(w))[ids])
  np.testing.assert_array_equal(dense(w[4:9]), dense(w)[4:9])
  assert w.shape == (12, 512) and count_parameters({"w": w}) == 12 * 512
  x = np.random.default_rng(1).normal(size=(2, 3, 512)).astype(np.float32)
  np.testing.assert_allclose(linear(x, w), x @ wide.T, rtol=1e-4, atol=1e-3 * np.abs(wide).max())


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_the_product_of_few_bits_is_that_of_the_values(bits):
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  x = np.random.default_rng(1).normal(size=(70, 1280)).astype(np.float32)
  w = random_groups(37, 1280, bits)
  for R in (1, 5, 11, 32):
    y = groups.product(x[:R], w)
    np.testing.assert_array_equal(y, skinny.product(x[:R], dense(w)))
    np.testing.assert_array_equal(y, groups.product(x, w)[:R])  # a prompt has the same bits
  dx = jax.grad(lambda x: groups.product(x, w).sum())(x)
  np.testing.assert_allclose(dx, jnp.broadcast_to(dense(w).sum(0), x.shape), rtol=1e-3, atol=0.1)


def rounded_rows(x: np.ndarray) -> np.ndarray:
  """f64[R, K]: 127 steps for the largest of 32 numbers, by the definition."""
  parts = x.reshape(len(x), -1, 32)
  step = np.maximum(np.abs(parts).max(-1) * np.float32(1 / 127), np.finfo(np.float32).tiny)
  whole = np.round(parts / step[..., None]).astype(np.float64)
  return (whole * step[..., None]).reshape(x.shape)


@pytest.mark.parametrize(
  ("weights", "activations", "accepted"),
  [
    ("float", "int8", "must be float, or int8 with weights int4 or native, got 'int8'"),
    ("int4", "int4", "must be one of float, int8, got 'int4'"),
  ],
)
def test_activations_that_weights_do_not_have_are_refused(weights, activations, accepted):
  with pytest.raises(ValueError, match=f"^`activations` {accepted}\\.$"):
    specjax.load(weights=weights, activations=activations)


def test_four_bits_are_off_by_half_a_step_at_most():
  w = matrix()
  held = groups.quantise(w, jnp.float32)
  parts = w.astype(np.float64).reshape(24, -1, 32)
  step = (parts.max(-1) - parts.min(-1)) / 15
  error = np.abs(values(held).reshape(parts.shape) - parts).max(-1)
  assert (error <= 0.51 * step + 2e-3 * np.abs(parts).max(-1)).all()
  np.testing.assert_array_equal(values(held)[[3, 5]], w[[3, 5]])
  assert sum(x.nbytes for x in jax.tree.leaves(held)) == w.size * 5 // 8


@pytest.mark.slow
def test_a_network_in_4_bits_is_that_of_its_values_also_on_a_mesh(mesh):
  params = jax.tree.map(lambda x: x * 2 + 0.01, init(CONFIG, jax.random.key(1)))
  small = jax.tree.map(
    lambda x: groups.quantise(x, jnp.dtype(jnp.float32)) if x.ndim == 2 else x, params
  )
  wide = jax.tree.map(dense, small, is_leaf=lambda x: isinstance(x, groups.Groups))
  tokens = jnp.arange(10, dtype=jnp.int32)[None]

  @jax.jit
  def logits(params):
    hidden, _ = Transformer(CONFIG).apply(
      params, tokens, tokens, jnp.tril(jnp.ones((1, 10, 10), bool))
    )
    return target(CONFIG).head(params, hidden)

  expected = np.asarray(logits(wide))
  near = dict(atol=1e-3 * np.abs(expected).max())
  np.testing.assert_allclose(logits(small), expected, **near)
  with jax.set_mesh(mesh):
    placed = sharding.place(small, mesh)
    assert placed["params"]["layer_0"]["q"].low.sharding.spec == sharding.COLUMNS
    np.testing.assert_allclose(logits(placed), expected, **near)


@pytest.mark.parametrize("shape", [(4, 40), (2, 4, 64)])
def test_what_does_not_lie_in_groups_is_refused(shape):
  with pytest.raises(ValueError, match=r"`weights` must be one for a matrix .*, got 'int4'"):
    parameter(np.zeros(shape, np.float32), jnp.float32, "int4")
