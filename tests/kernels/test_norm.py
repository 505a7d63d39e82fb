"""Rows of a root mean square of 1 in C++: their values, their bits, their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels import compiled, norm

EPSILON = 1e-5


@pytest.fixture(autouse=True)
def _made(monkeypatch):
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  monkeypatch.setattr(jax, "device_count", lambda: 1)


def rows(*shape):
  return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 3


def truth(x):
  wide = x.astype(np.float64)
  return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (2, 3, 4, 100), (40, 1536)], ids=str)
def test_values(shape):
  x = rows(*shape)
  np.testing.assert_allclose(norm.unit(x, EPSILON), truth(x), rtol=2e-6)
  of_each = jax.vmap(lambda x: norm.unit(x, EPSILON))(x)
  np.testing.assert_array_equal(of_each, norm.unit(x, EPSILON))


def test_a_row_that_is_zero_and_one_that_is_not_finite():
  x = rows(3, 40)
  x[0], x[1, 3] = 0, np.nan
  y = np.asarray(norm.unit(x, EPSILON))
  assert (y[0] == 0).all() and np.isnan(y[1]).all() and np.isfinite(y[2]).all()


def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it():
  x = rows(40, 1536)
  whole = np.asarray(norm.unit(x, EPSILON))
  for n in (1, 2, 5, 33):
    np.testing.assert_array_equal(norm.unit(x[:n], EPSILON), whole[:n])


def test_derivatives():
  x, weight = rows(4, 24), rows(4, 24)

  def by_xla(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON)

  def loss(f):
    return jax.grad(lambda x: (weight * f(x)).sum())(x)

  np.testing.assert_allclose(
    loss(lambda x: norm.unit(x, EPSILON)), loss(by_xla), rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize(
  ("dtype", "devices", "wanted"),
  [(jnp.float32, 1, True), (jnp.bfloat16, 1, False), (jnp.float32, 2, False)],
)
def test_which_rows_are_served(dtype, devices, wanted, monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: devices)
  assert norm.serves(jnp.zeros((2, 3), dtype)) == wanted
