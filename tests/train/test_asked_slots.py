"""Figures of the slots that a loss asks for, beside those of whole rows; layers computed again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.config import Config
from specjax.models.transformer import Transformer, init
from specjax.train.recipe import asked_slots

B, T, E, V = 4, 7, 6, 11


def loss_of(said):
  return (said[0] * jnp.arange(1, T + 1, dtype=jnp.float32)[None]).sum()


@pytest.mark.parametrize(("groups", "rows"), [(1, 512), (1, 5), (2, 4), (4, 3), (4, 1)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_figures_and_gradients_are_those_of_whole_rows(monkeypatch, groups, rows, share):
  monkeypatch.setattr(asked_slots, "ROWS", rows)
  rng = np.random.default_rng(0)
  states, matrix = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((B, T, E), (V, E)))
  tokens = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
  asked = jnp.asarray(rng.random((B, T)) < share)

  def parted(matrix, states):
    said = asked_slots.of_asked(
      asked_slots.cross_entropy, lambda x: x @ matrix.T, states, tokens, asked, groups
    )
    return loss_of(said), said

  def whole(matrix, states):
    nats, right = asked_slots.cross_entropy(states @ matrix.T, tokens)
    said = jnp.where(asked, nats, 0), asked & right
    return loss_of(said), said

  got, want = (
    jax.jit(jax.value_and_grad(f, argnums=(0, 1), has_aux=True))(matrix, states)
    for f in (parted, whole)
  )
  np.testing.assert_array_equal(got[0][1][1], want[0][1][1])
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, want)


def test_no_logits_of_whole_rows_are_kept():
  rows = 4 * asked_slots.ROWS
  states, matrix = jnp.zeros((1, rows, E)), jnp.zeros((997, E))
  tokens, asked = jnp.zeros((1, rows), jnp.int32), jnp.zeros((1, rows), bool)

  def loss(matrix, states):
    head = functools.partial(jnp.einsum, "ve,gne->gnv", matrix)
    return asked_slots.of_asked(asked_slots.cross_entropy, head, states, tokens, asked)[0].sum()

  text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(matrix, states).compile().as_text()
  assert f"{asked_slots.ROWS},997]" in text
  assert f"{rows},997]" not in text and f"4,1,{asked_slots.ROWS},997]" not in text


@pytest.mark.slow
def test_layers_computed_again_have_the_same_gradient_and_weights():
  config = Config(
    vocab_size=V, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=8, causal=True
  )
  params = init(config, jax.random.key(0))
  tokens = jnp.arange(6, dtype=jnp.int32)[None]
  mask = jnp.tril(jnp.ones((1, 6, 6), bool))

  def gradient(remat):
    network = Transformer(config, remat=remat)
    return jax.grad(lambda p: network.apply(p, tokens, tokens, mask)[0].sum())

  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
    jax.jit(gradient(True))(params), jax.jit(gradient(False))(params),
  )  # fmt: skip
  again = str(jax.make_jaxpr(gradient(True))(params))
  assert again.count("remat") >= config.layers
  assert "remat" not in str(jax.make_jaxpr(gradient(False))(params))
