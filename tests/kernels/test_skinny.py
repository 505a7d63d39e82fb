"""Products of a few rows in C++: their values, their bits, and the library behind them."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels import compiled, skinny
from specjax.models.linear import linear

# R, K, O: one number; no whole register, tile or thread's share; several pieces of K.
SIZES = [(1, 1, 1), (5, 37, 11), (32, 800, 141), (13, 1555, 66), (3, 2304, 24)]


@pytest.fixture(scope="module")
def product():
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  return jax.jit(skinny.product)


def operands(R: int, K: int, O: int) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(R + K + O)
  return rng.normal(size=(R, K)).astype(np.float32), rng.normal(size=(O, K)).astype(np.float32)


@pytest.mark.parametrize(("R", "K", "O"), SIZES)
def test_values(product, R, K, O):
  x, w = operands(R, K, O)
  exact = x.astype(np.float64) @ w.astype(np.float64).T
  of_magnitudes = np.abs(x).astype(np.float64) @ np.abs(w).T
  assert (np.abs(product(x, w) - exact) <= 2e-6 * of_magnitudes).all()


def test_rows_are_independent_of_each_other_and_of_their_number(product):
  x, w = operands(32, 1555, 141)
  alone = np.concatenate([product(x[i : i + 1], w) for i in range(32)])
  for R in range(2, 33):
    np.testing.assert_array_equal(product(x[:R], w), alone[:R])
  x[3], x[7, 5], x[20, 1554], x[21] = 0, np.nan, np.inf, 3e38
  np.testing.assert_array_equal(product(x, w)[3], 0)
  assert np.isnan(product(x, w)[7]).all() and not np.isfinite(product(x, w)[20]).any()
  others = np.setdiff1d(np.arange(32), [3, 7, 20, 21])
  np.testing.assert_array_equal(product(x, w)[others], alone[others])


def test_derivatives_and_batches(product):
  x, w = operands(5, 37, 11)
  g = operands(5, 11, 1)[0]
  dx, dw = jax.grad(lambda x, w: (skinny.product(x, w) * g).sum(), (0, 1))(x, w)
  np.testing.assert_allclose(dx, g @ w, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(dw, g.T @ x, rtol=1e-4, atol=1e-4)
  several = jax.vmap(skinny.product, (0, None))(np.stack([x, 2 * x]), w)
  np.testing.assert_array_equal(several, np.stack([product(x, w), product(2 * x, w)]))


@pytest.mark.parametrize(
  ("x", "w", "devices", "served"),
  [
    ((1, 1, 512), (512, 512), 1, True), ((2, 16, 512), (512, 512), 1, True),
    ((1, 33, 512), (512, 512), 1, False), ((1, 1, 5), (3, 5), 1, True),
    ((1, 1, 512), (512, 512), 2, False),
  ],
)  # fmt: skip
def test_which_products_are_served(x, w, devices, served, monkeypatch):
  monkeypatch.setattr(compiled, "available", lambda: True)
  monkeypatch.setattr(jax, "device_count", lambda: devices)
  for dtype in (jnp.float32, jnp.bfloat16):
    both = jnp.zeros(x, dtype), jnp.zeros(w, dtype)
    program = str(jax.make_jaxpr(lambda x, w: linear(x, w))(*both))  # traced anew
    assert (compiled.FLOATS in program) == (served and dtype == jnp.float32)


def test_without_a_compiler_it_says_so_once(monkeypatch, capsys):
  compiled.available.cache_clear()
  try:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    assert not compiled.available() and not compiled.available()
    said = capsys.readouterr().err
    assert said == ("no C++ compiler is found (no-such-compiler): products, norms and attention "
                    "are left to XLA, which takes longer.\n")  # fmt: skip
  finally:
    compiled.available.cache_clear()


def fake_compiler(path, says: str) -> str:
  """A program that says macros, or writes its file in two halves, or fails with a message."""
  path.write_text(f"""#!/bin/sh
case "$*" in
  *-dM*) echo '#define {says}' ;;
  *broken*) echo 'error: broken' >&2; exit 1 ;;
  *) for file; do :; done; printf fir > "$file"; sleep 0.2; printf st >> "$file" ;;
esac
""")
  path.chmod(path.stat().st_mode | stat.S_IXUSR)
  return str(path)


def test_two_build_at_once_and_another_compiler_builds_anew(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setenv("CXX", fake_compiler(tmp_path / "one", "one"))
  with ThreadPoolExecutor(2) as pool:
    made = [task.result() for task in [pool.submit(compiled.library) for _ in range(2)]]
  assert made[0] == made[1] and made[0].read_text() == "first"
  assert os.listdir(made[0].parent) == [made[0].name]
  fake_compiler(tmp_path / "one", "other")
  assert compiled.library() != made[0]
  monkeypatch.setenv("CXX", f"{tmp_path / 'one'} -broken")
  with pytest.raises(OSError, match="one fails: error: broken"):
    compiled.library()
  assert len(os.listdir(made[0].parent)) == 2
