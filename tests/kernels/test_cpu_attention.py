"""The attention in C++: its values, its bits, its derivative, and which calls it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  KINDS,
  SHAPES,
  assert_close,
  case,
  in_pages,
  run,
  seen_by,
  truth,
  windowed,
)

from specjax.kernels import compiled
from specjax.kernels.tree_attention import api, cpu, quantise, tree_attention, xla

LONG = (2, 3, 3, 7, 1300, 64, (1290, 513))  # several spans; blocks and tiles that are not full


@pytest.fixture(autouse=True)
def _made(monkeypatch):
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  monkeypatch.setattr(jax, "device_count", lambda: 1)


@pytest.mark.parametrize("shape", [*SHAPES, LONG, (1, 1, 2, 33, 64, 16, (0,))], ids=str)
def test_values(shape):
  arguments = case(0, *shape)
  assert_close(run("cpu", arguments), truth(*arguments), 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_caps_and_sinks(kind):
  arguments = case(7, 3, 2, 2, 6, 1300, 64, (0, 384, 1290))
  seen = seen_by(arguments, **KINDS[kind])
  found = run("cpu", arguments, **seen)
  assert_close(found, truth(*arguments, **seen), 2e-6)
  assert_close(found, run("xla", arguments, **seen), 2e-6)


def test_scores_of_any_size_are_capped():
  arguments = case(10, 1, 1, 1, 4, 600, 16, (600,))
  for size in (1e-4, 0.3, 1, 30):
    own = arguments[0] * np.float32(size), *arguments[1:]
    assert_close(run("cpu", own, cap=0.7), truth(*own, cap=0.7), 1e-6)


def test_what_lies_before_a_window_is_not_read():
  q, k, v, *rest = case(9, 2, 1, 2, 5, 1300, 64, (1290, 600))
  seen = {"start": windowed(0, (q, k, v, *rest), 100)}
  wanted = truth(q, k, v, *rest, **seen)
  k[0, :, :1152], v[0, :, :1152], k[1, :, :448], v[1, :, :448] = np.nan, np.inf, np.nan, np.inf
  assert_close(run("cpu", (q, k, v, *rest), **seen), wanted, 2e-6)


def test_a_node_that_sees_nothing_and_one_that_is_not_finite():
  arguments = case(1, 1, 2, 2, 5, 700, 64, (0,))
  q, mask = arguments[0], arguments[-1]
  mask[0] = np.eye(5)
  mask[0, 1] = False
  q[0, :, 3, 7] = np.nan
  out = np.asarray(run("cpu", arguments).out)
  assert (out[0, :, 1] == 0).all() and np.isnan(out[0, :, 3]).all()
  assert np.isfinite(out[0, :, [0, 2, 4]]).all()


@pytest.mark.parametrize("kind", [None, "window 100", "all"])
def test_the_bits_of_a_node_depend_on_what_it_sees_alone(kind):
  q, k, v, lengths, k_tree, v_tree, mask = arguments = case(2, *LONG)
  seen = seen_by(arguments, **KINDS[kind]) if kind else seen_by(arguments)
  start = seen.pop("start")

  def out(*own, start):
    return np.asarray(run("cpu", own, start=start, **seen).out)

  whole = out(*arguments, start=start)
  for b in range(2):  # a text alone
    own = [x[b : b + 1] for x in arguments]
    alone = out(*own, start=None if start is None else start[b : b + 1])
    np.testing.assert_array_equal(alone[0], whole[b])
  for n in (0, 3, 6):  # a node alone, whose columns of the mask stay
    own = q[:, :, n : n + 1], k, v, lengths, k_tree, v_tree, mask[:, n : n + 1]
    alone = out(*own, start=None if start is None else start[:, n : n + 1])
    np.testing.assert_array_equal(alone[:, :, 0], whole[:, :, n])


@pytest.mark.parametrize("length", [0, 3, 61, 500, 1000])
def test_a_tree_has_the_bits_of_a_token_at_a_time(length):
  """Node by node, what it sees of the tree is moved into the cache."""
  q, k, v, _, k_tree, v_tree, mask = case(11, 1, 2, 3, 40, 1300, 32, (length,))
  k, v = (np.nan_to_num(x, posinf=0) for x in (k, v))
  lengths = np.array([length], np.int32)
  together = np.asarray(run("cpu", (q, k, v, lengths, k_tree, v_tree, mask)).out)
  for n in range(40):
    *before, last = np.flatnonzero(mask[0, n])
    keys, values = k.copy(), v.copy()
    keys[:, :, length : length + len(before)] = k_tree[:, :, before]
    values[:, :, length : length + len(before)] = v_tree[:, :, before]
    own = q[:, :, n : n + 1], keys, values, lengths + np.int32(len(before))
    fresh = k_tree[:, :, [last]], v_tree[:, :, [last]], np.ones((1, 1, 1), bool)
    alone = np.asarray(run("cpu", (*own, *fresh)).out)
    np.testing.assert_array_equal(alone[:, :, 0], together[:, :, n])


@pytest.mark.parametrize("gone", [64, 448, 512, 576])
def test_rows_that_left_a_window_change_no_bits(gone):
  arguments = case(7, 2, 2, 3, 6, 1400, 32, (1187, 1100))
  q, k, v, lengths, *tree = arguments
  start = seen_by(arguments, window=520)["start"]
  whole = run("cpu", arguments, start=start)
  newest = q, k[:, :, gone:], v[:, :, gone:], lengths - np.int32(gone), *tree
  before = np.full(2, gone, np.int32)
  some = run("cpu", newest, start=start - np.int32(gone), before=before)
  for x, y in zip(whole, some, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", [None, "window 100", "all"])
def test_pages_have_the_bits_of_a_dense_cache(kind):
  arguments = case(12, 3, 2, 2, 6, 1344, 64, (0, 500, 1290))
  seen = seen_by(arguments, **KINDS[kind]) if kind else {}
  paged = in_pages(arguments, 7)
  last = arguments[0].shape[-1] ** -0.5, seen.get("cap"), seen.get("start"), seen.get("sinks")
  found = jax.jit(cpu.paged_attention, static_argnums=(7, 8))(*paged, *last)
  for x, y in zip(found, run("cpu", arguments, **seen), strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", [None, "all"])
def test_derivatives_are_those_of_xla(kind):
  q, k, v, lengths, k_tree, v_tree, mask = arguments = case(3, 1, 2, 2, 3, 700, 16, (650,))
  k, v = (np.nan_to_num(x, posinf=0) for x in (k, v))
  seen = seen_by(arguments, **KINDS[kind]) if kind else {"sinks": None}
  sinks = seen.pop("sinks")
  moving = (q, k, v, k_tree, v_tree, *([] if sinks is None else [sinks]))

  def loss(name):
    def of(q, k, v, k_tree, v_tree, sinks=None):
      tree = k_tree, v_tree, mask
      y = tree_attention(q, k, v, lengths, *tree, implementation=name, sinks=sinks, **seen)
      return (y**2).sum()

    return jax.grad(of, range(len(moving)))(*moving)

  for x, y in zip(loss("cpu"), loss("xla"), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


CALL = case(4, 1, 2, 2, 3, 600, 64, (500,))
REFUSED = [
  ({0: np.float16}, 1, "nodes are float16 and the cache float32, not both float32"),
  ({}, 2, "there are 2 devices, not 1"),
  ({3: bool}, 1, "it reads the first rows of a cache that is not quantised"),
  ({}, 1, None),
]


@pytest.mark.parametrize(("dtypes", "devices", "reason"), REFUSED)
def test_which_calls_are_taken(dtypes, devices, reason, monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: devices)
  call = [x.astype(dtypes.get(i, x.dtype)) for i, x in enumerate(CALL)]
  assert api.refusals(call[0], call[1], call[3])["cpu"] == reason
  assert api.default_implementation(call[0], call[1], call[3]) == ("xla" if reason else "cpu")


def test_other_caches_and_heads_are_left_to_xla():
  q, k, *_, lengths = CALL[:4]
  reason = api.refusals(q, quantise(k), lengths)["cpu"]
  assert reason == "it reads the first rows of a cache that is not quantised"
  reason = api.refusals(q[..., :40], k[..., :40], lengths)["cpu"]
  assert reason == "heads are 40 wide, no multiple of 16"


def test_without_a_compiler_xla_serves(monkeypatch):
  monkeypatch.setattr(compiled, "available", lambda: False)
  served = tree_attention(*CALL, return_residuals=True)
  assert served.implementation == "xla"
  assert ("cpu", "no C++ compiler has made it") in served.passed_over
  np.testing.assert_array_equal(served.result.out, xla_result())


def xla_result():
  q, k, v, lengths, k_tree, v_tree, mask = CALL
  visible = jnp.arange(k.shape[2])[None] < lengths[:, None]
  return xla.tree_attention(q, k, v, visible, k_tree, v_tree, mask, 64**-0.5, block=128).out
