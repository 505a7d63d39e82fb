"""Attention over a long cache, of which only the blocks that are seen are read."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels.tree_attention import xla
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
  monkeypatch.setattr(attention, "reads_blocks", lambda *_: False)
  at_once = jax.jit(lambda *a: attention.attend(*a))(*arguments)
  np.testing.assert_allclose(in_blocks, at_once, atol=2e-6)


def test_a_window_a_cap_and_sinks_are_read_in_blocks_too(monkeypatch):
  q, k, v, mask, (far_k, far_v, length) = draw(3, 5, first_rows(0, 255, 1024))
  prefix = far_k, far_v, length, length[:, None] + jnp.arange(5, dtype=jnp.int32)[None] - 99
  arguments = (q, k, v, mask, prefix, 2.0, jnp.linspace(-1, 1, H))
  in_blocks = jax.jit(attention.attend, static_argnums=5).lower(*arguments)
  assert not re.search(rf"dot_general.*-> tensor<[0-9x]*x{S}(x\d+)?xf32>", in_blocks.as_text())
  monkeypatch.setattr(attention, "reads_blocks", lambda *_: False)
  at_once = jax.jit(lambda *a: attention.attend(*a, *arguments[5:]))(*arguments[:5])
  got = in_blocks.compile()(*arguments[:5], arguments[6])
  np.testing.assert_allclose(got, at_once, atol=2e-6)


@pytest.mark.parametrize("N", [1, 8])
def test_a_row_is_the_row_alone_whatever_its_neighbours_length(N):
  q, k, v, mask, prefix = draw(3, N, first_rows(40, 300, 1000))
  together = jax.jit(attention.attend)(q, k, v, mask, prefix)
  for b in range(3):
    row = jax.tree.map(lambda x, b=b: x[b : b + 1], (q, k, v, mask, prefix))
    np.testing.assert_array_equal(jax.jit(attention.attend)(*row)[0], together[b])


@pytest.mark.parametrize(("one_by_one", "count"), [(False, 4), (True, 6)])
def test_no_product_spans_a_long_cache(one_by_one, count, monkeypatch):
  """Two products for the nodes, two for a block, and where texts attend alone two for four."""
  monkeypatch.setattr(xla, "_one_by_one", lambda: one_by_one)
  arguments = draw(2, 8, first_rows(40, 300))
  text = jax.jit(lambda *a: attention.attend(*a)).lower(*arguments).as_text()
  products = re.findall(r"dot_general.*-> tensor<([0-9x]+)xf32>", text)
  assert len(products) == count and not any(str(S) in shape.split("x") for shape in products)


def prefixes(N: int) -> dict:
  """What may stand before N fresh rows."""
  rng = np.random.default_rng(2)
  k, v = rng.normal(size=(2, 3, K, 20, C)).astype(np.float32)
  own_k, own_v = rng.normal(size=(2, 3, K, N, 4, C)).astype(np.float32)
  return {
    "none": None,
    "first rows": (k, v, first_rows(0, 7, 20)),
    "any rows of each": (k, v, rng.random((3, N, 20)) < 0.5),
    "rows of its own": (own_k, own_v, np.ones((3, N, 4), bool)),
  }


@pytest.mark.full(but=["*-9", "*-16"])
@pytest.mark.parametrize("N", [9, 12, 16])
@pytest.mark.parametrize("kind", prefixes(1))
def test_a_long_text_in_parts_is_what_it_is_at_once(kind, N, monkeypatch):
  """Output and gradients; 9 rows in parts of up to 8 are two of 5, which have one in common."""
  q, k, v, mask, _ = draw(3, N, first_rows(0, 0, 0))
  prefix = jax.tree.map(jnp.asarray, prefixes(N)[kind])

  def outcome(queries: int):
    monkeypatch.setattr(attention, "QUERIES", queries)

    def weighed(q, k, v):
      out = attention.attend(q, k, v, mask, prefix)
      return (out * jnp.sin(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)).sum(), out

    return jax.jit(jax.grad(weighed, (0, 1, 2), has_aux=True))(q, k, v)

  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), outcome(8), outcome(1000))


def test_scores_of_many_rows_stay_in_the_caches():
  """8 texts of 256 nodes, of which 9 heads have 19 MB of scores."""
  q, k = jnp.zeros((8, 9, 256, 16)), jnp.zeros((8, 3, 256, 16))
  mask = jnp.ones((8, 256, 256), bool)
  program = jax.jit(attention.attend, static_argnums=4).lower(q, k, k, mask, None).compile()
  assert program.memory_analysis().temp_size_in_bytes < 16e6
  assert attention.queries(9, 100) == attention.QUERIES and attention.queries(10**9, 9) == 32


def test_rows_of_ones_own_are_seen_by_their_node_alone():
  """Against a softmax over what each node sees, node by node."""
  q, k, v, mask, _ = draw(3, 6, first_rows(0, 0, 0))
  own_k, own_v, _ = prefix = prefixes(6)["rows of its own"]
  got = jax.jit(attention.attend)(q, k, v, mask, jax.tree.map(jnp.asarray, prefix))
  for b, h, n in np.ndindex(3, H, 6):
    g = h // (H // K)
    keys = np.concatenate([np.asarray(k)[b, g, : n + 1], own_k[b, g, n]])
    values = np.concatenate([np.asarray(v)[b, g, : n + 1], own_v[b, g, n]])
    score = keys @ np.asarray(q)[b, h, n] / np.sqrt(C)
    weight = np.exp(score - score.max())
    want = weight @ values / weight.sum()
    np.testing.assert_allclose(got[b, n, h * C : (h + 1) * C], want, atol=3e-6)


def test_the_scores_of_a_long_text_never_stand_together():
  """2048 rows of 4 heads have 67 MB of scores, and as much again for a gradient."""
  shape = jax.ShapeDtypeStruct
  N, q, kv = 2048, shape((1, H, 2048, C), np.float32), shape((1, K, 2048, C), np.float32)

  def loss(q, k, v, mask):
    return attention.attend(q, k, v, mask, None).sum()

  compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, kv, kv, shape((1, N, N), bool)).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 4 * H * N * N  # of one square of scores


@pytest.mark.parametrize("devices", [1, 2])
def test_gradients_in_bfloat16_are_those_of_float32_rounded(devices, monkeypatch):
  """All their products are of bfloat16, summed in float32."""
  monkeypatch.setattr(jax, "device_count", lambda: devices)
  *exact, mask, _ = draw(2, 40, first_rows(0, 0))
  given = jnp.asarray(np.random.default_rng(1).normal(size=(2, 40, H * C)), jnp.float32)

  def gradients(dtype):
    q, k, v, g = (x.astype(dtype) for x in (*exact, given))
    return jax.vjp(lambda *x: attention.attend(*x, mask, None), q, k, v)[1](g)

  for got, want in zip(gradients(jnp.bfloat16), gradients(jnp.float32), strict=True):
    assert got.dtype == jnp.bfloat16
    assert np.linalg.norm(got.astype(jnp.float32) - want) < 0.02 * np.linalg.norm(want)

  products = re.findall(r"dot_general .*?\((tensor<.*?>), (tensor<.*?>)\)", jax.jit(
    lambda: gradients(jnp.bfloat16)
  ).lower().as_text())  # fmt: skip
  assert len(products) == 6 and all("bf16" in x for pair in products for x in pair)
