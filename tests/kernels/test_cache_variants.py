"""A cache of which any rows are seen, and one of int8 rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BLOCK, NAMES, assert_close, case, run, truth

from specjax.kernels.tree_attention import dequantise, quantise


def spotted(seed, dtype=np.float32):
  """A row that sees a block of none, one of all and one of some; a row of some; one of none."""
  B, S = 3, 2 * BLOCK + 100
  arguments = [*case(seed, B, 2, 3, 6, S, 64, (S,) * B, dtype)]
  visible = np.random.default_rng(seed).random((B, S)) < 0.3
  visible[0, :BLOCK], visible[0, BLOCK : 2 * BLOCK], visible[2] = False, True, False
  for x in arguments[1:3]:
    x.swapaxes(1, 2)[~visible] = np.nan
  arguments[3] = visible
  return arguments


def in_int8(arguments):
  """The arguments with a quantised cache, and those with what its rows then say."""
  k, v = (quantise(jnp.asarray(x)) for x in arguments[1:3])
  rounded = (np.asarray(dequantise(x)) for x in (k, v))
  return (arguments[0], k, v, *arguments[3:]), (arguments[0], *rounded, *arguments[3:])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
  ("dtype", "tolerance"), [(np.float32, 2e-6), (jnp.bfloat16, 1e-2)], ids=["f32", "bf16"]
)
def test_any_rows_may_be_seen(name, dtype, tolerance):
  arguments = spotted(0, dtype)
  assert_close(run(name, arguments), truth(*arguments), tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_int8_is_the_truth_of_the_rounded_rows(name):
  quantised, rounded = in_int8(case(1, 2, 2, 4, 5, 300, 64, (129, 300)))
  assert_close(run(name, quantised), truth(*rounded), 2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_int8_with_any_rows_and_bfloat16_nodes(name):
  quantised, rounded = in_int8(spotted(2, jnp.bfloat16))
  assert_close(run(name, quantised), truth(*rounded), 1e-2)


def test_rounding_is_at_most_half_a_step():
  x = np.random.default_rng(0).normal(size=(1, 2, 8, 64)).astype(np.float32)
  x[0, 0, 0] = 0
  rows = quantise(jnp.asarray(x))
  error = np.abs(np.asarray(dequantise(rows)) - x)
  assert (error <= np.asarray(rows.scale)[..., None] * 0.5001).all()
  assert rows.values.dtype == jnp.int8 and (np.asarray(rows.values)[0, 0, 0] == 0).all()
