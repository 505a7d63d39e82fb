"""A head whose matrices have 8 bits guesses what it guesses with floats."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints import eight_bits
from specjax.heads import HEADS, drafting, few_bits
from specjax.heads.base import Examples
from specjax.heads.few_bits import narrow
from specjax.kernels import compiled, skinny
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.groups import Groups
from specjax.models.panels import Panels
from specjax.models.transformer import Transformer, attention_mask, target

MODEL = Config(
  vocab_size=256, width=128, layers=3, heads=4, kv_heads=2, head_dim=32, mlp_width=128,
  max_length=64,
)  # fmt: skip
T = 10
STACKED = {"ctc", "hidden_transfer", "jakiro", "medusa"}  # their matrices are products of several
PROMPTS = {"pard", "ppd", "masked_slots"}  # the target's own layers, and vectors


@pytest.fixture
def one_cpu(monkeypatch):
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  jax.clear_caches()
  yield
  jax.clear_caches()


@functools.cache
def target_params():
  return transformer.init(MODEL, jax.random.key(0))


def in_8_bits(x):
  """Values that 8 bits with a scale for each row hold exactly, none of them alike."""
  x = np.asarray(x) + np.random.default_rng(x.size).normal(size=x.shape) / x.shape[-1] ** 0.5
  stored = eight_bits.narrow({"x": np.asarray(x, np.float32)})
  return jnp.asarray(eight_bits.widen(stored, "memory")["x"], jnp.float32)


def logits(name: str, params):
  """[D, V], what the head reads along a text."""
  made = built(name)
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (1, T)), jnp.int32)
  position = jnp.arange(T, dtype=jnp.int32)[None]
  segment = jnp.zeros_like(tokens)

  @jax.jit
  def run(params):
    features, _ = Transformer(MODEL).apply(
      target_params(), tokens, position, attention_mask(segment, True),
      hidden_layers=made.hidden_layers, method="features",
    )  # fmt: skip
    examples = Examples(tokens, position, segment, features, jnp.asarray([[2]], jnp.int32))
    states = drafting.unroll(made, params, target_params(), examples)
    return jnp.stack([made.read(params, target_params(), s, d) for d, s in enumerate(states, 1)])

  return np.asarray(run(params)).reshape(made.depth, -1)


@functools.cache
def built(name: str):
  build, config = HEADS[name]
  return build(target(MODEL), config())


@pytest.mark.slow
@pytest.mark.full(but=["eagle3", "hydra"])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_head_in_8_bits_guesses_as_its_values_do(name, one_cpu):
  params = built(name).init(jax.random.key(1), target_params())
  params |= {"params": jax.tree.map(in_8_bits, params["params"])}
  wide, exact, rounded = (
    params, narrow(params, "native", "float"), narrow(params, "native", "int8")
  )  # fmt: skip
  kinds = [
    {type(x) for x in jax.tree.leaves(p, is_leaf=lambda x: isinstance(x, Groups | Panels))}
    for p in (wide, exact, rounded)
  ]
  if name in STACKED | PROMPTS:
    assert not any(kind & {Groups, Panels} for kind in kinds)
  else:
    assert Groups in kinds[1] and Panels in kinds[2] and Groups not in kinds[2]
  want = logits(name, wide)
  np.testing.assert_allclose(logits(name, exact), want, rtol=1e-5, atol=1e-5)
  assert np.abs(logits(name, rounded) - want).max() < 0.1 * np.abs(want).max()


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float", "native"])
def test_a_large_head_in_4_bits_guesses_alike(weights, one_cpu, monkeypatch):
  params = built("eagle3").init(jax.random.key(1), target_params())
  params |= {"params": jax.tree.map(in_8_bits, params["params"])}
  wide = logits("eagle3", params)
  monkeypatch.setattr(few_bits, "LARGE", 1)
  coarse = logits("eagle3", narrow(params, weights, "float"))
  alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(wide, coarse, strict=True)]
  assert min(alike) > 0.95 and max(alike) < 0.99999


@pytest.mark.parametrize(("size", "kind"), [(128, jax.Array), (4096, Panels)])
def test_beside_floats_only_a_large_head_is_narrow(size, kind, one_cpu):
  params = {"params": {"w": jnp.ones((size, size)), "bias": jnp.ones(size)}}
  got = narrow(params, "float", "float")["params"]
  assert isinstance(got["w"], kind) and got["bias"] is params["params"]["bias"]


def test_without_a_compiler_a_head_beside_floats_stays_as_it_is(monkeypatch):
  monkeypatch.setattr(skinny, "available", lambda: False)
  params = {"params": {"w": jnp.ones((4096, 4096))}}
  assert narrow(params, "float", "float") is params
