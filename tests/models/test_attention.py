"""Attention over a long cache, of which only the blocks that are seen are read."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import attention

S, K, H, C = 1024, 2, 4, 16


def draw(B, N, visible):
  """Arguments of `attend` over a cache of 1024 rows; what is not seen is zero, as allocated."""
  rng = np.random.default_rng(0)

  def shape(heads, rows):
    return rng.normal(size=(B, heads, rows, C)).astype(np.float32)

  mask = np.broadcast_to(np.tril(np.ones((N, N), bool)), (B, N, N))
  seen = visible if visible.dtype == bool else np.arange(S) < visible[:, None]
  k, v = (shape(K, S) * seen[:, None, :, None] for _ in range(2))
  return jax.tree.map(jnp.asarray, (shape(H, N), shape(K, N), shape(K, N), mask, (k, v, visible)))


def first_rows(*lengths):
  return np.array(lengths, np.int32)


@pytest.mark.parametrize(
  "visible",
  [first_rows(0, 255, 1024), np.random.default_rng(1).random((3, S)) < 0.02],
  ids=["first rows", "any rows"],
)
def test_blocks_and_one_product_agree(visible, monkeypatch):
  arguments = draw(3, 5, visible)
  in_blocks = jax.jit(attention.attend)(*arguments)
  monkeypatch.setattr(attention, "reads_blocks", lambda k: False)
  at_once = jax.jit(lambda *a: attention.attend(*a))(*arguments)
  np.testing.assert_allclose(in_blocks, at_once, atol=2e-6)


@pytest.mark.parametrize("N", [1, 8])
def test_a_row_is_the_row_alone_whatever_its_neighbours_length(N):
  q, k, v, mask, prefix = draw(3, N, first_rows(40, 300, 1000))
  together = jax.jit(attention.attend)(q, k, v, mask, prefix)
  for b in range(3):
    row = jax.tree.map(lambda x, b=b: x[b : b + 1], (q, k, v, mask, prefix))
    np.testing.assert_array_equal(jax.jit(attention.attend)(*row)[0], together[b])


def test_no_product_spans_a_long_cache():
  arguments = draw(2, 8, first_rows(40, 300))
  text = jax.jit(attention.attend).lower(*arguments).as_text()
  products = re.findall(r"dot_general.*-> tensor<([0-9x]+)xf32>", text)
  assert len(products) == 4 and not any(str(S) in shape.split("x") for shape in products)
