"""Gated memory units against NumPy, SambaY's layers, drafts, files and refusals.

Trees over them are in test_hybrid, and what a tree's nodes read in test_mamba.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Decoder
from specjax.checkpoints import hf
from specjax.models import transformer
from specjax.models.config import Config, GatedDelta, GatedMemory, Kind
from specjax.models.gated_memory import GatedMemoryUnit, decoder_hybrid_decoder
from specjax.names.load import Model
from specjax.train.recipe.config import Network

SIZES = {"width": 16, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_width": 24}
NETWORK = Network(**SIZES, layers=8, attention_every=2, self_decoder=4)
CONFIG = Config(vocab_size=32, max_length=128, **NETWORK.sizes)
PARAMS = jax.tree.map(
  lambda x: x * 8 if x.ndim > 1 else x, transformer.init(CONFIG, jax.random.key(1))
)
rng = np.random.default_rng(0)


def test_a_unit_is_the_formula():
  B, N, E, H, F = 2, 3, 6, 4, 5
  shapes = {"gate": (H * F, E), "norm": (H * F,), "out": (E, H * F)}
  w = {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}
  x, read = rng.normal(size=(B, N, E)), rng.normal(size=(B, H, N, F))
  unit = GatedMemoryUnit(dataclasses.replace(CONFIG, norm_epsilon=1e-3))
  given = (jnp.asarray(y, jnp.float32) for y in (x, read))
  found = unit.apply({"params": {k: jnp.asarray(y, jnp.float32) for k, y in w.items()}}, *given)
  for b in range(B):
    for i in range(N):
      gate = w["gate"] @ x[b, i]
      y = np.concatenate([read[b, h, i] for h in range(H)]) * gate / (1 + np.exp(-gate))
      y = w["out"] @ (w["norm"] * y / np.sqrt((y**2).mean() + 1e-3))
      np.testing.assert_allclose(found[b, i], y, rtol=0, atol=1e-5)


def test_the_later_layers_of_the_network_have_nothing_of_their_own():
  units, crossing = Kind(source=2, recurrence=GatedMemory(32)), Kind(source=3)
  hybrid = Config(vocab_size=32, **dataclasses.replace(NETWORK, self_decoder=0).sizes)
  assert CONFIG.kinds == (*hybrid.kinds[:4], units, crossing, units, crossing)

  def held(config):
    tokens, length = jnp.ones((1, 4), jnp.int32), jnp.array([4])
    read = transformer.target(config).prefill
    params = jax.eval_shape(lambda: transformer.init(config, jax.random.key(0)))
    cache, _ = jax.eval_shape(lambda params: read(params, tokens, length, 8), params)
    return [sum(x.size for x in jax.tree.leaves(kv)) for kv in zip(*cache.kv, strict=True)]

  assert held(CONFIG) == [*held(hybrid)[:4], 0, 0, 0, 0]


@pytest.mark.slow
def test_drafts_change_no_token():
  model = Model("sambay", CONFIG, PARAMS, None, (), (), None)
  prompts = [[1, 2, 3, 1, 2, 3, 1], [4], [5, 6, 8] * 6]
  found = [
    [r.tokens for r in Decoder(model, name, batch=3)(prompts, 24)]
    for name in ("none", "prompt_lookup-8", "token_recycling-8")
  ]
  assert found[0] == found[1] == found[2]


def test_a_file_has_the_network(tmp_path):
  hf.save(tmp_path, CONFIG, PARAMS, dtype=jnp.float32)
  read = hf.load(tmp_path)
  assert read.config == CONFIG
  jax.tree.map(np.testing.assert_array_equal, read.params, PARAMS)


HYBRID = (Kind(recurrence=GatedDelta(1, 2, 8, 8)), Kind())


@pytest.mark.parametrize("source", [None, 1, 2, 0])
def test_a_unit_reads_a_recurrent_layer_of_its_width(source):
  width = 16 if source else 17
  kinds = (*HYBRID, Kind(source=source, recurrence=GatedMemory(width)), Kind())
  with pytest.raises(ValueError, match=rf"source` must be a recurrent .*, {width} wide, got"):
    Config(vocab_size=8, layers=4, kinds=kinds, **SIZES)


@pytest.mark.parametrize("first", [1, 4])
def test_a_self_decoder_has_both_kinds_of_layers(first):
  with pytest.raises(ValueError, match="`self_decoder` must be between 2 and 3"):
    decoder_hybrid_decoder(HYBRID * 2, first)
  with pytest.raises(ValueError, match="`self_decoder` must be 0 without attention_every"):
    dataclasses.replace(NETWORK, attention_every=0).sizes  # noqa: B018
