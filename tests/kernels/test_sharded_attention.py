"""Tree attention on a mesh is that of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import case
from jax.sharding import NamedSharding, PartitionSpec

from specjax.kernels.tree_attention import quantise, tree_attention


@pytest.mark.full(but=["(2, 2)-*"])
@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("axes", [(2, 2), (1, 4), (4, 1)], ids=str)
def test_rows_and_heads_may_lie_on_other_devices(axes, int8):
  q, k, v, *rest = map(jnp.asarray, case(0, 4, 4, 2, 3, 300, 64, (0, 40, 256, 300)))
  k, v = map(quantise, (k, v)) if int8 else (k, v)
  arguments = (q, k, v, *rest)
  local = {"start": jnp.zeros((4, 3), jnp.int32) + 30, "sinks": jnp.linspace(-1, 1, 8)}
  attention = functools.partial(tree_attention, **(local if int8 else {}))
  mesh = jax.make_mesh(
    axes, ("data", "model"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
  )
  alone = attention(*arguments)
  with jax.set_mesh(mesh):
    lowered = jax.jit(attention).lower(*arguments)
    got = jax.jit(attention)(*arguments)
  np.testing.assert_allclose(got, alone, atol=1e-6)
  assert got.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec("data", "model")), 4)
  assert "all_reduce" not in lowered.as_text() and "all_gather" not in lowered.as_text()


@pytest.mark.slow
def test_an_axis_that_does_not_divide_is_not_used():
  arguments = tuple(map(jnp.asarray, case(1, 3, 2, 1, 3, 128, 64, (0, 40, 128))))
  mesh = jax.make_mesh(
    (2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
  )
  with jax.set_mesh(mesh):
    got = jax.jit(tree_attention)(*arguments)
  np.testing.assert_allclose(got, tree_attention(*arguments), atol=1e-6)
