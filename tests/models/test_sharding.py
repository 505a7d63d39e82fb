"""A loop spread over devices says what it says on one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from specjax import drafters, speculate
from specjax.models import sharding
from specjax.models.config import Config
from specjax.models.transformer import Transformer, target
from specjax.sampling import Settings, request_keys
from specjax.verifiers import target_only

CONFIG = Config(
  vocab_size=32, width=16, layers=1, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=64
)


def two_by_two():
  return jax.make_mesh((2, 2), ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[:4])


@pytest.mark.parametrize(
  ("N", "spread"), [(6, PartitionSpec("data", "model")), (5, None)], ids=["6 nodes", "5 nodes"]
)
def test_nodes_are_spread_where_they_divide(N, spread):
  logits = jnp.arange(2.0 * N * 8).reshape(2, N, 8)
  devices = two_by_two()
  with jax.set_mesh(devices):
    got = jax.jit(sharding.spread_nodes)(logits)
  np.testing.assert_array_equal(got, logits)
  if spread is not None:
    assert got.sharding.is_equivalent_to(NamedSharding(devices, spread), 3)


def decode(params):
  """Tokens [2, 40] after two prompts, sampled, with a top-k and a top-p."""
  method = speculate.method(target(CONFIG), drafters.prompt_lookup(3), target_only())
  settings = Settings(*(jnp.array(x) for x in ([1.0, 0.7], [8, 0], [1.0, 0.9], [0.0, 0.0])))
  limit = jnp.full(2, 30, jnp.int32)
  request = speculate.Request(settings, request_keys(0, jnp.arange(2)), limit, jnp.array([-1]))
  weights = speculate.Weights(params, ())
  prompt = jnp.array([[1, 2, 3, 1, 2], [7, 8, 7, 0, 0]], jnp.int32), jnp.array([5, 3], jnp.int32)
  state = speculate.compiled_start(method, weights, *prompt, request, 40)
  return speculate.compiled_advance(method, weights, request, state, jnp.int32(40)).context.tokens


def test_tokens_do_not_depend_on_the_mesh():
  z = jnp.zeros((1, 2), jnp.int32)
  params = Transformer(CONFIG).init(jax.random.key(1), z, z, jnp.ones((1, 2, 2), bool))
  params = jax.tree.map(lambda x: x * 10 if x.ndim > 1 else x, params)
  alone = np.array(decode(params))
  devices = two_by_two()
  with jax.set_mesh(devices):
    spread = decode(jax.device_put(params, sharding.of_params(params, devices)))
  np.testing.assert_array_equal(spread[:, :30], alone[:, :30])
