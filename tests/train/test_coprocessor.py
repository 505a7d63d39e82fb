"""Latent rows in a frozen model's cache, beside whole texts of embeddings read at once."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sentences import says

from specjax.data.packing import pack
from specjax.models import coprocessor, transformer
from specjax.models.config import Config
from specjax.train import coprocessor as training
from specjax.train.recipe.config import Training

SHAPE = Config(
  vocab_size=13, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=64
)
L, AHEAD = 3, 4
PARAMS = jax.tree.map(lambda x: 8 * x, transformer.init(SHAPE, jax.random.key(1)))
OWN = coprocessor.start(SHAPE, PARAMS, jnp.array([4, 0, 9]))
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(13, size=n).tolist() for n in (11, 8)]
PLACES = np.array([[6, 13]], np.int32)  # of the row of both texts


@jax.jit
def whole(x: jax.Array) -> jax.Array:
  """The states [n, E] of embeddings [n, E] that are one text."""

  def read(own, x):
    position = jnp.arange(x.shape[1])[None]
    mask = jnp.tril(jnp.ones((1, x.shape[1], x.shape[1]), bool))
    return own.final_norm(own.run_layers(x, position, mask)[0])

  return transformer.Transformer(SHAPE).apply(PARAMS, x[None], method=read)[0]


def said(text: list[int], place: int) -> np.ndarray:
  """log p[AHEAD, V] of the tokens behind a place of a text, with latents there."""
  embedding = PARAMS["params"]["embedding"]
  before = embedding[np.array(text[: place + 1])]
  z = whole(jnp.concatenate([before, OWN.soft]))[-L:] * OWN.size
  after = embedding[np.array(text[place + 1 : place + AHEAD])]
  states = whole(jnp.concatenate([before, z, after]))[place + L :]
  return np.asarray(jax.nn.log_softmax(states @ embedding.T))


@pytest.mark.slow
def test_places_of_packed_texts_are_read_as_whole_texts():
  rows = pack([(text, [True] * len(text)) for text in TEXTS], 24)
  batch = training.Batch(rows, jnp.asarray(PLACES))
  surprise = jax.jit(functools.partial(training.surprise, SHAPE, AHEAD))
  nats, weight = surprise(OWN, PARAMS, batch)
  plain, same = surprise(None, PARAMS, batch)
  np.testing.assert_array_equal(weight, same)
  assert np.asarray(weight[0]).sum(1).tolist() == [4, 4]
  embedding = PARAMS["params"]["embedding"]
  for g, (b, place) in enumerate([(0, 6), (1, 2)]):
    follows = TEXTS[b][place + 1 : place + 1 + AHEAD]
    want = -said(TEXTS[b], place)[np.arange(AHEAD), follows]
    np.testing.assert_allclose(nats[0, g], want, atol=2e-4)
    logits = whole(embedding[np.array(TEXTS[b])])[place : place + AHEAD] @ embedding.T
    want = -np.asarray(jax.nn.log_softmax(logits))[np.arange(AHEAD), follows]
    np.testing.assert_allclose(plain[0, g], want, atol=2e-4)


@pytest.mark.slow
def test_what_is_written_into_a_cache_is_what_was_trained():
  target, lengths = transformer.target(SHAPE), jnp.array([11, 8])
  tokens = jnp.array([text + [0] * (11 - len(text)) for text in TEXTS])

  @jax.jit
  def after(follows):
    cache, _ = target.prefill(PARAMS, tokens, lengths, 24)
    cache = coprocessor.write(SHAPE, PARAMS, OWN, cache._replace(length=lengths))
    depth = jnp.broadcast_to(jnp.arange(AHEAD - 1), follows.shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((AHEAD - 1, AHEAD - 1), bool)), (2, 3, 3))
    found = target.evaluate(PARAMS, cache, follows, depth, mask)
    return jax.nn.log_softmax(found.logits), cache.length

  follows = RNG.integers(13, size=(2, AHEAD - 1))
  found, length = after(jnp.asarray(follows, jnp.int32))
  assert length.tolist() == [11 + L, 8 + L]
  for b, text in enumerate(TEXTS):
    want = said(text + follows[b].tolist(), len(text) - 1)[1:]
    np.testing.assert_allclose(found[b], want, atol=2e-4)


def test_places_are_those_before_trained_tokens_of_the_same_text():
  masks = [[False] * 8 + [True] * 3, [True, False] * 4]
  rows = pack(list(zip(TEXTS, masks, strict=True)), 24)
  _, at = training.drawn(rows, 6, jax.random.key(3))
  assert sorted(at[0].tolist()) == [7, 8, 9, 12, 14, 16]
  _, weight = training.surprise(SHAPE, 2, None, PARAMS, training.drawn(rows, 23, jax.random.key(3)))
  assert int(weight.sum()) == 2 + 2 + 1 + 1 + 1 + 1


@pytest.mark.slow
def test_a_coprocessor_learns(lm_run, tmp_path):
  config = training.Config(
    f"{lm_run.out}/model", lm_run.data, str(tmp_path), latents=2, ahead=4, places=2, held_out=24,
    length=32, training=Training(steps=40, batch=4, rate=3e-3, warmup=3, devices=1),
  )  # fmt: skip
  training.main(config)
  report = json.loads((tmp_path / "report.json").read_text())
  nats = report["held_out"]
  assert nats["latents"] < nats["begun"]
  assert np.shape(report["by_tokens_ahead"]) == (3, 4)


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError) as error:
    coprocessor.check(dataclasses.replace(SHAPE, window=4))
  assert says(
    str(error.value), "`model` must be causal for a coprocessor, without sliding windows, latent"
  )
