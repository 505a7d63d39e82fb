"""Tree attention against a float64 loop over nodes, in every shape that asks for care."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels.tree_attention import config, pallas_tpu, tree_attention, xla


def case(seed, B, K, G, N, S, C, lengths, dtype=np.float32):
  rng = np.random.default_rng(seed)
  shape = lambda heads, rows: rng.normal(size=(B, heads, rows, C)).astype(dtype)  # noqa: E731
  parent = np.array([0, *(rng.integers(0, i) for i in range(1, N))])
  mask = np.eye(N, dtype=bool)
  for i in range(1, N):
    mask[i] |= mask[parent[i]]
  mask = np.broadcast_to(mask, (B, N, N)).copy()
  k, v = shape(K, S), shape(K, S)
  for b, n in enumerate(lengths):  # what lies past the text must not matter
    k[b, :, n:], v[b, :, n:] = np.nan, np.inf
  return (
    shape(K * G, N), k, v, np.array(lengths, np.int32), shape(K, N), shape(K, N), mask,
  )  # fmt: skip


def truth(q, k_cache, v_cache, lengths, k_tree, v_tree, mask):
  """(out, top, total) in float64, a node at a time."""
  B, H, N, C = q.shape
  G = H // k_cache.shape[1]
  out, top, total = np.zeros(q.shape), np.full((B, H, N), -np.inf), np.zeros((B, H, N))
  for b, h, i in np.ndindex(B, H, N):
    keys, values = (
      np.concatenate([c[b, h // G, : lengths[b]], t[b, h // G][mask[b, i]]]).astype(np.float64)
      for c, t in ((k_cache, k_tree), (v_cache, v_tree))
    )
    if len(keys):
      score = keys @ q[b, h, i].astype(np.float64) * C**-0.5
      top[b, h, i] = score.max()
      weight = np.exp(score - score.max())
      total[b, h, i] = weight.sum()
      out[b, h, i] = weight @ values / weight.sum()
  return out, top, total


def assert_close(got, wanted, tolerance):
  for name, x, y in zip(got._fields, got, wanted, strict=True):
    x = np.asarray(x, np.float64)
    finite = np.isfinite(y)
    np.testing.assert_array_equal(np.isfinite(x), finite, err_msg=name)
    scale = np.abs(y[finite]).max(initial=1.0)
    np.testing.assert_allclose(x[finite] / scale, y[finite] / scale, atol=tolerance, err_msg=name)


SHAPES = [  # B, K, G, N, S, C, lengths
  (2, 2, 1, 1, 256, 64, (0, 256)),
  (3, 1, 4, 5, 256, 128, (127, 128, 129)),
  (2, 1, 7, 8, 384, 64, (1, 300)),
  (1, 2, 8, 16, 256, 64, (200,)),
  (1, 1, 1, 64, 128, 256, (77,)),
  (1, 1, 1, 256, 128, 64, (128,)),
]
INTERPRETED = {
  "reference": functools.partial(tree_attention, implementation="reference", return_residuals=True),
  "xla": functools.partial(tree_attention, implementation="xla", return_residuals=True),
}


def pallas(*arguments, interpret=True):
  C = arguments[0].shape[-1]
  return jax.jit(functools.partial(
    pallas_tpu.tree_attention, scale=C**-0.5, blocks=config.Blocks(128), interpret=interpret
  ))(*arguments)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["reference", "xla", "pallas"])
def test_every_implementation_is_the_truth(name, shape):
  arguments = case(0, *shape)
  run = pallas if name == "pallas" else jax.jit(INTERPRETED[name])
  got = jax.tree.map(np.asarray, run(*map(jnp.asarray, arguments)))
  assert_close(type(got)(*got), truth(*arguments), 2e-6)


@pytest.mark.parametrize("name", ["reference", "xla", "pallas"])
def test_a_node_that_sees_nothing_gives_nothing(name):
  arguments = list(case(1, 2, 1, 2, 5, 128, 64, (0, 60)))
  arguments[-1][:, 3] = False
  run = pallas if name == "pallas" else jax.jit(INTERPRETED[name])
  got = run(*map(jnp.asarray, arguments))
  assert (np.asarray(got.out)[0, :, 3] == 0).all()
  assert_close(got, truth(*arguments), 2e-6)


def test_rows_do_not_depend_on_longer_neighbours():
  arguments = case(2, 2, 1, 2, 5, 512, 64, (40, 500))
  both = jax.jit(INTERPRETED["xla"])(*map(jnp.asarray, arguments))
  alone = jax.jit(INTERPRETED["xla"])(*(jnp.asarray(x[:1]) for x in arguments))
  np.testing.assert_array_equal(both.out[0], alone.out[0])


def test_a_block_that_does_not_divide_the_capacity():
  arguments = case(3, 1, 1, 2, 3, 300, 64, (290,))
  S = 300
  visible = np.arange(S)[None] < arguments[3][:, None]
  q, k, v, _, kt, vt, mask = map(jnp.asarray, arguments)
  got = xla.tree_attention(q, k, v, jnp.asarray(visible), kt, vt, mask, 64**-0.5, block=128)
  assert_close(got, truth(*arguments), 2e-6)


@pytest.mark.parametrize(
  ("change", "problem"),
  [
    ({"lengths": np.zeros(3, np.int32)}, r"lengths.shape=\(3,\): accepted is \(2,\)"),
    ({"implementation": "pallas_tpu"}, "the backend is cpu, not tpu"),
  ],
)
def test_what_cannot_be_served_is_refused(change, problem):
  names = ("q", "k_cache", "v_cache", "lengths", "k_tree", "v_tree", "tree_mask")
  arguments = dict(zip(names, case(0, 2, 1, 2, 3, 128, 64, (5, 6)), strict=True)) | change
  with pytest.raises(ValueError, match=problem):
    tree_attention(**arguments)
