"""Weights in panels: their values, and products with rows that are rounded to 8 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_groups import matrix, random_groups, values

import specjax
from specjax.kernels import compiled, skinny
from specjax.models import groups, panels
from specjax.models.linear import linear, lookup, take
from specjax.models.weights import count_parameters, dense


@pytest.fixture
def made(monkeypatch):
  """One device, as where a user has a CPU alone."""
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  monkeypatch.setattr(skinny, "serves_few_bits", lambda x: True)


def rounding(out: int, width: int, bits: int) -> groups.Groups:
  return groups.with_rounding(random_groups(out, width, bits))


def rounded_rows(x: np.ndarray) -> np.ndarray:
  """f64[R, K]: 127 steps for the largest of 32 numbers, by the definition."""
  parts = x.reshape(len(x), -1, 32)
  step = np.maximum(np.abs(parts).max(-1) * np.float32(1 / 127), np.finfo(np.float32).tiny)
  whole = np.round(parts / step[..., None]).astype(np.float64)
  return (whole * step[..., None]).reshape(x.shape)


@pytest.mark.full(but=["5", "8"])
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_panels_hold_what_groups_hold(bits):
  w = rounding(37, 512, bits)
  held = panels.packed(w)
  jax.tree.map(np.testing.assert_array_equal, panels.unpacked(held), w)
  wide = np.asarray(dense(w))
  ids = np.array([[3, 36], [16, 3]])
  np.testing.assert_array_equal(lookup(held, ids), wide[ids])
  np.testing.assert_array_equal(dense(take(held, ids[0])), wide[ids[0]])
  for outputs in (slice(16, 32), slice(32, None), slice(5, 20)):
    np.testing.assert_array_equal(dense(held[outputs]), wide[outputs])
  assert held.shape == (37, 512) and count_parameters({"w": held}) == 37 * 512


@pytest.mark.parametrize("form", ["groups", "panels", "panels in C++"])
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_products_of_8_bits(bits, form, request):
  w = rounding(37, 800 if bits == 8 else 1280, bits)
  held = w if form == "groups" else panels.packed(w)
  if form == "panels in C++":
    request.getfixturevalue("made")
  x = matrix(70, w.shape[1])
  exact, wide = rounded_rows(x), values(w)
  np.testing.assert_allclose(groups.rounded(x), exact, rtol=1e-6)
  near = 2e-6 * (np.abs(exact) @ np.abs(wide).T)
  assert (np.abs(linear(x, held) - exact @ wide.T) <= near).all()
  dx = jax.grad(lambda x: linear(x, held).sum())(x[:2])
  np.testing.assert_allclose(dx, jnp.broadcast_to(dense(w).sum(0), dx.shape), rtol=1e-3, atol=0.1)


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_rows_of_8_bits_are_independent_of_each_other_and_of_their_number(bits, made):
  product = jax.jit(panels.product)
  w = panels.packed(rounding(150, 1280, bits))
  x = np.random.default_rng(1).normal(size=(70, 1280)).astype(np.float32)
  together = np.asarray(product(x, w))
  for R in (1, 2, 5, 15, 16, 17, 32):
    for first in range(0, 70 - R, 7):
      np.testing.assert_array_equal(product(x[first : first + R], w), together[first : first + R])
  x[3], x[7, 5], x[20, 1279], x[21] = 0, np.nan, np.inf, 3e38
  odd = np.asarray(product(x, w))
  np.testing.assert_array_equal(odd[3], 0)
  assert np.isnan(odd[7]).all() and not np.isfinite(odd[20]).any()
  others = np.setdiff1d(np.arange(70), [3, 7, 20, 21])
  np.testing.assert_array_equal(odd[others], together[others])


def test_matrices_are_laid_out_and_stacks_stay(monkeypatch):
  monkeypatch.setattr(skinny, "available", lambda: True)
  w = rounding(32, 64, 4)
  stack = jax.tree.map(lambda x: jnp.stack([x, x]), w)
  plain = random_groups(32, 64, 4)
  found = panels.laid_out({"w": w, "experts": stack, "plain": plain, "norm": jnp.ones(3)})
  assert isinstance(found["w"], panels.Panels) and found["w"].shape == (32, 64)
  assert found["experts"] is stack and found["plain"] is plain


@pytest.mark.slow
def test_drafts_change_no_token_of_a_model_that_rounds(made, monkeypatch):
  """The tree has as many rows as plain decoding has not, and prompts have more than either."""
  monkeypatch.setattr(skinny, "available", lambda: True)
  model = specjax.load(weights="int4", activations="int8")
  held = jax.tree.leaves(model.params, is_leaf=lambda w: isinstance(w, panels.Panels))
  assert any(isinstance(w, panels.Panels) for w in held)
  assert model.label == f"{model.name}, int4 weights, int8 activations"
  prompts = ["Tom has 3 apples and buys 4 more apples. How many apples", "Anna has 12 pens."]
  plain = specjax.Decoder(model, batch=2)(prompts, 32)
  for name in ("prompt_lookup-6", "eagle/dynamic-8,depth=3,beam=3"):
    drafted = specjax.Decoder(model, name, batch=2)(prompts, 32)
    assert [r.tokens for r in drafted] == [r.tokens for r in plain]
