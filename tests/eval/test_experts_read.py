"""The union of experts over the nodes of a pass, against sets."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.eval.experts_read import by_chance, choices, experts_read
from specjax.models import transformer
from specjax.models.config import Config, Experts

SMALL = Config(
  vocab_size=32, width=16, layers=3, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=64
)
NETWORKS = {
  "softmax": dataclasses.replace(SMALL, experts=Experts(6, 2, 8, dense_layers=1)),
  "relu": dataclasses.replace(SMALL, experts=Experts(6, 6, 8, "relu")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_unions_are_those_of_sets(name):
  config = NETWORKS[name]
  params = transformer.init(config, jax.random.key(0))
  rng = np.random.default_rng(0)
  tokens, length = jnp.asarray(rng.integers(32, size=(2, 9)), jnp.int32), np.array([9, 5])
  sent = np.asarray(choices(config, params, tokens))
  assert sent.shape == (2 if name == "softmax" else 3, 2, 9, 6)
  if name == "softmax":
    assert (sent.sum(-1) == 2).all()
  else:
    assert 0 < sent.mean() < 1
  got = experts_read(config, params, tokens, length, [1, 3, 7])
  for N, found in zip([1, 3, 7], got, strict=True):
    sizes = [
      len({e for j in range(N) for e in np.flatnonzero(sent[layer, b, i + j])})
      for layer in range(len(sent)) for b in range(2) for i in range(length[b] - N + 1)
    ]  # fmt: skip
    assert found == pytest.approx(np.mean(sizes))


def test_the_router_decides():
  """With a router whose expert is the token's parity, two consecutive tokens read one or two."""
  config = dataclasses.replace(SMALL, layers=1, experts=Experts(2, 1, 8))
  params = transformer.init(config, jax.random.key(0))
  own = params["params"]["layer_0"]
  own["out"] = jnp.zeros_like(own["out"])
  params["params"]["embedding"] = jnp.where(jnp.arange(32)[:, None] % 2 == 0, 1.0, -1.0) * (
    jnp.ones((32, 16))
  )
  own["experts"]["router"] = jnp.stack([jnp.ones(16), -jnp.ones(16)])
  tokens = jnp.array([[2, 4, 6, 7, 9, 8]])
  got = experts_read(config, params, tokens, np.array([6]), [1, 2, 6])
  np.testing.assert_allclose(got, [1, (1 + 1 + 2 + 1 + 2) / 5, 2])


def test_chance():
  rng = np.random.default_rng(0)
  drawn = [len({*rng.permutation(8)[:2], *rng.permutation(8)[:2]}) for _ in range(20000)]
  assert by_chance(8, 2, [1, 2]) == pytest.approx([2, np.mean(drawn)], abs=0.02)


@pytest.mark.parametrize(
  ("config", "nodes", "words"),
  [
    (SMALL, [1], r"`experts` must be a model whose MLPs are mixtures of experts, got None\."),
    (
      NETWORKS["softmax"],
      [0],
      r"`nodes` must be between 1 and 9 \(tokens of the longest text\), got 0\.",
    ),
    (
      NETWORKS["softmax"],
      [10],
      r"`nodes` must be between 1 and 9 \(tokens of the longest text\), got 10\.",
    ),
  ],
)
def test_what_is_refused(config, nodes, words):
  with pytest.raises(ValueError, match=words):
    experts_read(config, {}, jnp.zeros((1, 9), jnp.int32), np.array([9]), nodes)
