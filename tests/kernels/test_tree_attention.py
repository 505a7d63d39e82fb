"""Tree attention against a float64 loop over nodes, in every shape that asks for care."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  BLOCK,
  KINDS,
  NAMES,
  SHAPES,
  assert_close,
  case,
  run,
  seen_by,
  truth,
  windowed,
)

from specjax.kernels.tree_attention import (
  api,
  default_implementation,
  quantise,
  reads_blocks,
  tree_attention,
  xla,
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_implementation_is_the_truth(name, shape):
  arguments = case(0, *shape)
  assert_close(run(name, arguments), truth(*arguments), 2e-6)


@pytest.mark.parametrize("shape", SHAPES[1::3], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_near_the_truth(name, shape):
  arguments = case(1, *shape, dtype=jnp.bfloat16)
  assert_close(run(name, arguments), truth(*arguments), 1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_windows_caps_and_sinks_are_the_truth(name, kind):
  arguments = case(7, 3, 2, 2, 6, 600, 64, (0, 384, 590))
  seen = seen_by(arguments, **KINDS[kind])
  assert_close(run(name, arguments, **seen), truth(*arguments, **seen), 2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_chunks_any_rows_and_nodes_that_see_nothing(name):
  """Of a text in chunks of 256 the nodes before an edge see the last chunk, the others nothing."""
  arguments = case(8, 2, 1, 2, 4, 600, 64, (510, 300), dtype=jnp.bfloat16)
  arguments[-1][1, 3] = False
  start = (arguments[3][:, None] + np.arange(4)) // 256 * 256
  start[1, 3] = 600
  seen = {"start": start.astype(np.int32), "cap": 5.0}
  assert_close(run(name, arguments, **seen), truth(*arguments, **seen), 1e-2)
  anywhere = np.arange(600) < arguments[3][:, None]
  anywhere[:, ::3] = False
  arguments = (*arguments[:3], anywhere, *arguments[4:])
  assert_close(run(name, arguments, **seen), truth(*arguments, **seen), 1e-2)


@pytest.mark.parametrize("name", NAMES[1:])
def test_blocks_before_a_window_are_not_read(name):
  q, k, v, *rest = case(9, 2, 1, 2, 5, 640, 64, (640, 600))
  seen = {"start": windowed(0, (q, k, v, *rest), 100)}
  wanted = truth(q, k, v, *rest, **seen)
  k[:, :, :384], v[:, :, :384] = np.nan, np.nan
  assert_close(run(name, (q, k, v, *rest), **seen), wanted, 2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_padded_row_gives_nothing_and_a_padded_node_neither(name):
  arguments = case(2, 2, 1, 2, 5, 256, 64, (0, 160))
  mask = arguments[-1]
  mask[0], mask[1, 3:] = False, False
  got = run(name, arguments)
  assert (np.asarray(got.out)[0] == 0).all()
  assert_close(got, truth(*arguments), 2e-6)


def test_rows_do_not_depend_on_longer_neighbours():
  arguments = case(3, 2, 1, 2, 5, 512, 64, (40, 500))
  shorter = [*arguments]
  shorter[3] = np.array([40, 40], np.int32)
  np.testing.assert_array_equal(
    run("xla", arguments).out[0], run("xla", shorter).out[0], strict=True
  )


@pytest.mark.parametrize("one_by_one", [False, True])
def test_texts_together_and_one_by_one(one_by_one, monkeypatch):
  """How many cores there are decides which; alone, a text has the same bits as among others."""
  monkeypatch.setattr(xla, "_one_by_one", lambda: one_by_one)
  exact = case(4, 3, 2, 2, 3, 600, 64, (40, 599, 0))
  assert_close(run("xla", exact), truth(*exact), 2e-6)
  q, k, v, *rest = exact
  k, v = (quantise(jnp.nan_to_num(x, posinf=0)) for x in (k, v))
  for arguments in (exact, (q, k, v, *rest))[: 2 if one_by_one else 0]:
    among = run("xla", arguments)
    for b in range(3):
      alone = run("xla", jax.tree.map(lambda x, b=b: x[b : b + 1], arguments))
      jax.tree.map(lambda x, y, b=b: np.testing.assert_array_equal(x[b], y[0]), among, alone)


@pytest.mark.parametrize("nodes", [1, 40])
def test_blocks_that_are_read_together(nodes, monkeypatch):
  """Few rows read several blocks at once, as far as their text fills them."""
  monkeypatch.setattr(xla, "_one_by_one", lambda: True)
  wide = xla.WIDE * BLOCK
  arguments = case(5, 4, 1, 2, nodes, 2 * wide + 40, 64, (wide - 1, wide, wide + 1, 2 * wide + 40))
  for seen in ({}, {"start": windowed(0, arguments, wide + 50)}):
    assert_close(run("xla", arguments, **seen), truth(*arguments, **seen), 2e-6)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_block_that_does_not_divide_the_capacity(name):
  arguments = case(4, 2, 1, 2, 3, 300, 64, (290, 300))
  assert_close(run(name, arguments), truth(*arguments), 2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_more_fresh_rows_than_nodes(name):
  q, *others, mask = case(5, 2, 2, 3, 7, 128, 64, (50, 128))
  arguments = (q[:, :, 4:], *others, mask[:, 4:])
  assert_close(run(name, arguments), truth(*arguments), 2e-6)


def test_parts_of_a_prefix_merge_and_say_who_served_them():
  q, k, v, lengths, *tree = map(jnp.asarray, case(6, 2, 2, 4, 5, 1024, 64, (600, 1000)))
  whole = jax.jit(functools.partial(tree_attention, return_residuals=True))(q, k, v, lengths, *tree)
  nothing = jnp.zeros_like(tree[2])
  parts = [
    tree_attention(q, k[:, :, part], v[:, :, part], seen, *tree[:2], mask, return_residuals=True)
    for part, seen, mask in (
      (slice(0, 512), jnp.array([512, 512]), tree[2]),
      (slice(512, None), lengths - 512, nothing),
    )
  ]
  top = jnp.maximum(*(part.result.top for part in parts))
  weight = [part.result.total * jnp.exp(part.result.top - top) for part in parts]
  out = sum(w[..., None] * part.result.out for w, part in zip(weight, parts, strict=True))
  total = sum(weight)
  assert_close(whole.result, (out / total[..., None], top, total), 2e-6)
  assert whole.implementation == "xla"
  assert dict(whole.passed_over) == {
    "cpu": "there are 8 devices, not 1",
    "pallas_tpu": "the platform is cpu, not tpu",
    "pallas_gpu": "the device is cpu, not an H100 or H200",
  }


@pytest.mark.parametrize(
  ("change", "problem"),
  [
    ({"prefix": np.zeros(3, np.int32)}, r"`prefix\.shape` must be \(2,\), got \(3,\)\."),
    ({"prefix": np.ones((2, 3), bool)}, r"`prefix\.shape` must be \(2, 128\), got \(2, 3\)\."),
    ({"start": np.zeros(2, np.int32)}, r"`start\.shape` must be \(2, 3\), got \(2,\)\."),
    ({"sinks": np.zeros(1)}, r"`sinks\.shape` must be \(2,\), got \(1,\)\."),
    ({"implementation": "pallas_tpu"}, "the platform is cpu, not tpu"),
  ],
)
def test_what_cannot_be_served_is_refused(change, problem):
  names = ("q", "k_cache", "v_cache", "prefix", "k_tree", "v_tree", "tree_mask")
  arguments = dict(zip(names, case(0, 2, 1, 2, 3, 128, 64, (5, 6)), strict=True)) | change
  with pytest.raises(ValueError, match=problem):
    tree_attention(**arguments)


@pytest.mark.parametrize(
  ("kind", "nodes", "capacity", "dtype", "served"),
  [
    ("NVIDIA H100 80GB HBM3", 16, 1024, "bfloat16", "pallas_gpu"),
    ("NVIDIA H200", 64, 65536, "float16", "pallas_gpu"),
    ("NVIDIA H100 80GB HBM3", 15, 1024, "bfloat16", "xla"),  # 60 rows of a head
    ("NVIDIA H100 80GB HBM3", 16, 1020, "bfloat16", "xla"),
    ("NVIDIA H100 80GB HBM3", 16, 1024, "float32", "xla"),
    ("NVIDIA A100-SXM4-80GB", 64, 1024, "bfloat16", "xla"),
  ],
)
def test_a_gpu_takes_its_kernel_where_tiles_are_full(
  kind, nodes, capacity, dtype, served, monkeypatch
):
  monkeypatch.setattr(api, "platform", lambda: "gpu")
  monkeypatch.setattr(api, "device", lambda: types.SimpleNamespace(device_kind=kind))
  q, k, _, lengths, *_ = jax.eval_shape(
    lambda: tuple(map(jnp.asarray, case(0, 2, 2, 4, nodes, capacity, 64, (5, 6), dtype=dtype)))
  )
  assert default_implementation(q, k, lengths) == served
  assert reads_blocks(q, k, lengths) == (served == "pallas_gpu")
  everywhere = jnp.ones((2, capacity), bool)  # rows that need not be the first ones
  assert not reads_blocks(q, k, everywhere)
