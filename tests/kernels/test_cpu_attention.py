"""The attention in C++: its values, its bits, its derivative, and which calls it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SHAPES, assert_close, case, run, truth

from specjax.kernels import compiled
from specjax.kernels.tree_attention import api, quantise, tree_attention, xla

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


def test_a_node_that_sees_nothing_and_one_that_is_not_finite():
  arguments = case(1, 1, 2, 2, 5, 700, 64, (0,))
  q, mask = arguments[0], arguments[-1]
  mask[0] = np.eye(5)
  mask[0, 1] = False
  q[0, :, 3, 7] = np.nan
  out = np.asarray(run("cpu", arguments).out)
  assert (out[0, :, 1] == 0).all() and np.isnan(out[0, :, 3]).all()
  assert np.isfinite(out[0, :, [0, 2, 4]]).all()


def test_the_bits_of_a_node_depend_on_what_it_sees_alone():
  q, k, v, lengths, k_tree, v_tree, mask = case(2, *LONG)
  whole = np.asarray(run("cpu", (q, k, v, lengths, k_tree, v_tree, mask)).out)
  for b in range(2):  # a text alone
    own = [x[b : b + 1] for x in (q, k, v, lengths, k_tree, v_tree, mask)]
    np.testing.assert_array_equal(np.asarray(run("cpu", own).out)[0], whole[b])
  for n in (0, 3, 6):  # a node alone, whose columns of the mask stay
    own = q[:, :, n : n + 1], k, v, lengths, k_tree, v_tree, mask[:, n : n + 1]
    np.testing.assert_array_equal(np.asarray(run("cpu", own).out)[:, :, 0], whole[:, :, n])


def test_derivatives_are_those_of_xla():
  shape = (1, 2, 2, 3, 700, 16, (650,))
  q, k, v, lengths, k_tree, v_tree, mask = case(3, *shape)
  k, v = (np.nan_to_num(x, posinf=0) for x in (k, v))

  def loss(name):
    def of(*x):
      y = tree_attention(x[0], x[1], x[2], lengths, x[3], x[4], mask, implementation=name)
      return (y**2).sum()

    return jax.grad(of, range(5))(q, k, v, k_tree, v_tree)

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
