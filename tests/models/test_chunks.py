"""Prompts that are read in chunks beside one pass over all positions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels import skinny
from specjax.models import chunks, transformer
from specjax.models.caches import CACHES
from specjax.models.compressed import compressed
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask, target

T, S = chunks.LONG, chunks.LONG + 40
TINY = Config(
  vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=S
)


def made(config: Config):
  """Weights under which attention is far from uniform, and tokens of two texts."""
  params = jax.tree.map(lambda p: p * 4, transformer.init(config, jax.random.key(0)))
  tokens = np.random.default_rng(0).integers(config.vocab_size, size=(2, T))
  return params, jnp.asarray(tokens, jnp.int32)


def read(config: Config, params, tokens, length):
  prefill = jax.jit(target(config).prefill, static_argnums=(3, 4))
  return prefill(params, tokens, jnp.asarray(length, jnp.int32), S, (0, 2))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"kv_heads": 1}, {"window": 150}], ids=str)
def test_chunks_read_what_one_pass_reads(options):
  config = dataclasses.replace(TINY, **options)
  params, tokens = made(config)
  assert chunks.chunk(T) < T
  length = (T, 300)
  cache, features = read(config, params, tokens, length)
  position = jnp.broadcast_to(jnp.arange(T), tokens.shape)
  want, kv = Transformer(config).apply(
    params, tokens, position, attention_mask(jnp.zeros_like(tokens), True), hidden_layers=(0, 2),
    method="features",
  )  # fmt: skip
  assert cache.length.tolist() == [n - 1 for n in length]
  for b, n in enumerate(length):
    found = [x[b, :n] for x in jax.tree.leaves(features)]
    found += [x[b, :, :n] for x in jax.tree.leaves(cache.kv)]
    other = [x[b, :n] for x in jax.tree.leaves(want)] + [x[b, :, :n] for x in jax.tree.leaves(kv)]
    for x, y in zip(found, other, strict=True):
      np.testing.assert_allclose(x, y, rtol=0, atol=1e-4)


def test_nothing_is_read_past_the_chunk_that_ends_the_longest():
  params, tokens = made(TINY)
  cache, features = read(TINY, params, tokens, (chunks.CHUNK + 1, 5))
  assert all(x[:, :, : 2 * chunks.CHUNK].any() for x in jax.tree.leaves(cache.kv))
  assert not any(x[:, :, 2 * chunks.CHUNK :].any() for x in jax.tree.leaves(cache.kv))
  assert not features.hidden[:, 2 * chunks.CHUNK :].any()


def test_a_text_does_not_depend_on_the_length_of_its_neighbour():
  params, tokens = made(TINY)
  (short, own), (long, beside) = (read(TINY, params, tokens, (40, n)) for n in (60, T))
  for x, y in zip(jax.tree.leaves(short.kv), jax.tree.leaves(long.kv), strict=True):
    assert (x[0, :, :40] == y[0, :, :40]).all()
  assert (own.hidden[0, :40] == beside.hidden[0, :40]).all()


@pytest.mark.parametrize("length", [1, 512, 1000, 1025])
def test_other_lengths_are_read_at_once(length):
  assert chunks.chunk(length) == length


def test_chunks_pay_earlier_where_attention_is_in_cpp(monkeypatch):
  monkeypatch.setattr(skinny, "available", lambda: True)
  assert [chunks.chunk(T) for T in (256, 512, 1000, 1024)] == [256, 128, 1000, 128]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sinks", "keyformer"])  # without and with judgement by queries
def test_caches_that_are_not_dense_are_filled_alike(name, monkeypatch):
  params, tokens = made(TINY)
  start = compressed(TINY, CACHES[name]()).prefill
  length = jnp.asarray((T, 300), jnp.int32)

  def filled(long: int):
    monkeypatch.setattr(chunks, "LONG", long)
    return jax.tree.leaves(jax.jit(lambda: start(params, tokens, length, S))())

  for x, y in zip(filled(chunks.LONG), filled(T + 1), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-4)
