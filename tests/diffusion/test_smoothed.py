"""Smoothed passes against a loop over rounds, with embeddings mixed by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.policies import POLICIES, Threshold
from specjax.models.config import Config
from specjax.models.denoiser import denoiser, smoothed
from specjax.models.transformer import Transformer
from specjax.sampling import request_keys

V, MASK, W, L, LEAST = 24, 23, 6, 26, 0.25
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_width=24, causal=False
)
SHARES = {"published": (0.3, 0.15, 0.02), "steep": (0.9, 0.1, 0.4), "none": (0.0, 0.0, 0.0)}


@functools.cache
def weights():
  z = jnp.zeros((1, 2), jnp.int32)
  init = Transformer(CONFIG).init
  shapes = jax.eval_shape(init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  rng = np.random.default_rng(2)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def canvases() -> Canvas:
  tokens = np.random.default_rng(1).integers(0, MASK, (2, L)).astype(np.int32)
  masked = np.zeros((2, L), bool)
  masked[0, 4:18] = masked[1, :9] = masked[1, 12] = True
  return Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.array([18, 15], jnp.int32))


def by_hand(shift: bool, most: float, first: float, more: float):
  """Tokens, and the round that committed each of them."""
  network, params, canvas = denoiser(CONFIG, MASK), weights(), canvases()
  pieces, E = network.pieces, np.asarray(weights()["params"]["embedding"], np.float64)
  assert pieces is not None
  found, when = np.array(canvas.tokens), np.full((2, L), -1)
  for b, end in enumerate(np.asarray(canvas.end)):
    tokens, masked = found[b], np.array(canvas.masked[b])
    mean, rounds, step = np.zeros((L, E.shape[1])), 0, 0
    lo = int(np.flatnonzero(masked)[0])
    while masked[:end].any():
      x = np.where(masked[:, None], E[MASK] + mean, E[tokens])
      x = jnp.asarray(x, jnp.float32)[None]
      inside, every = jnp.arange(L)[None] < int(end), jnp.arange(L, dtype=jnp.int32)[None]
      for i in range(CONFIG.layers):
        x = x + pieces.attention(params, i, *pieces.project(params, i, x, every), inside)
        x = x + pieces.mlp(params, i, x)
      logits = np.asarray(network.head(params, pieces.norm(params, x))[0], np.float64)
      logits = logits[np.maximum(np.arange(L) - shift, 0)]
      logits[:, MASK] = -np.inf
      probs = np.exp(logits - logits.max(-1, keepdims=True))
      probs /= probs.sum(-1, keepdims=True)
      block = range(lo, min(lo + W, end))
      open_ = [s for s in block if masked[s]]
      sure = [s for s in open_ if probs[s].max() >= LEAST]
      for s in block:
        mean[s] = min(first + more * step, most) * (probs[s] @ E - E[MASK])
      for s in sure or [max(open_, key=lambda s: probs[s].max())]:
        tokens[s], masked[s], when[b, s] = probs[s].argmax(), False, rounds
      rounds, step = rounds + 1, step + 1
      if not masked[list(block)].any() and masked[:end].any():
        lo, step = int(np.flatnonzero(masked)[0]), 0
  return found, when


def decoded(network, kept):
  method = denoise.DenoiseMethod(
    network, kept(network, W), POLICIES["threshold"](), blocks.fixed(W), stopping.whole()
  )
  parts = denoise.Weights(weights(), Threshold(jnp.full(2, LEAST)))
  request = denoise.DenoiseRequest(request_keys(0, range(2)), jnp.zeros(2))
  state = denoise.compiled_start(method, parts, canvases())
  return denoise.compiled_advance(method, parts, request, state, jnp.int32(1000))


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("cache", ["none", "vicinity"])
def test_masked_slots_read_what_was_said_of_them(cache, shift, shares):
  kept = {"none": caches.none, "vicinity": functools.partial(caches.vicinity, warm_up=99)}[cache]
  state = decoded(smoothed(CONFIG, MASK, shift, *SHARES[shares]), kept)
  tokens, when = by_hand(shift, *SHARES[shares])
  np.testing.assert_array_equal(state.when, when)
  np.testing.assert_array_equal(state.canvas.tokens, tokens)


def test_a_cache_of_finished_blocks_changes_nothing():
  network = smoothed(dataclasses.replace(CONFIG, block_length=W), MASK, False, *SHARES["steep"])
  got, wanted = decoded(network, caches.committed), decoded(network, caches.none)
  np.testing.assert_array_equal(got.when, wanted.when)
  np.testing.assert_array_equal(got.canvas.tokens, wanted.canvas.tokens)
  assert np.asarray(got.canvas.soft).any()


def test_smoothing_tells():
  assert any((by_hand(False, *SHARES["steep"])[0] != by_hand(False, *SHARES["none"])[0]).flat)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_between_nothing_and_all(share):
  with pytest.raises(ValueError, match=r"`first` must be .*got"):
    smoothed(CONFIG, MASK, False, 0.3, share)


@pytest.mark.parametrize("cache", [caches.similar, caches.elastic])
def test_caches_of_single_layers_are_refused(cache):
  with pytest.raises(ValueError, match="no guided or smoothed denoiser"):
    cache(smoothed(CONFIG, MASK, False), W)
