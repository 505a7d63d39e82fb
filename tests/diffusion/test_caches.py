"""Caches: exact where nothing changes behind them, row by row, and inexact elsewhere.

In a network of one layer a slot's keys and values depend on its own token alone. There every plan
that leaves out no commit gives what no cache gives; its indices are all that can be wrong.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Denoiser
from specjax.diffusion.caches.scratchpad import kept as kept_slots
from specjax.diffusion.guidance import Guided, guided
from specjax.diffusion.policies import POLICIES, Threshold
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer
from specjax.sampling import request_keys

V, MASK, W, L = 24, 23, 6, 40
CONFIGS = {
  layers: Config(
    vocab_size=V, width=16, layers=layers, heads=2, kv_heads=1, head_dim=16, mlp_width=24,
    causal=False,
  )
  for layers in (1, 2)
}  # fmt: skip
EVERY_PASS = {
  "vicinity": functools.partial(caches.vicinity, warm_up=1000),
  "sliding": functools.partial(caches.sliding, every=1),
  "similar": functools.partial(caches.similar, prompt_every=1, answer_every=1),
  "delayed": functools.partial(caches.delayed, every=1),
  "elastic": functools.partial(caches.elastic, drift=2.0),
  "dual_adaptive": functools.partial(caches.dual_adaptive, rest=L, p=1.0),
  "scratchpad": functools.partial(caches.scratchpad, ahead=L, decay=0.0, scale=3.0, lengths=1),
  "similar, all turned": functools.partial(
    caches.similar, prompt_every=1, answer_every=1000, ratio=1.0
  ),
}
SOME_PASSES = {
  "dual": caches.dual,
  "vicinity": functools.partial(caches.vicinity, before=3, after=2, warm_up=2),
  "prefix": functools.partial(caches.prefix, lengths=5),
  "free": functools.partial(caches.free, lengths=3),
  "sliding": functools.partial(caches.sliding, ahead=L, every=5),
  "delayed": functools.partial(caches.delayed, every=4, lengths=3),
  "elastic": caches.elastic,
  "dual_adaptive": caches.dual_adaptive,
  # Exact in one layer because the first is always computed in full.
  "similar": functools.partial(
    caches.similar, prompt_every=7, answer_every=3, ratio=0.2, answers=18
  ),
}


@functools.cache
def weights(layers: int):
  z = jnp.zeros((1, 2), jnp.int32)
  module = Transformer(CONFIGS[layers])
  shapes = jax.eval_shape(module.init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  rng = np.random.default_rng(layers)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def canvases() -> Canvas:
  """Prompts of several lengths, holes in the middle, a row that is full, one without a prompt."""
  tokens = np.random.default_rng(1).integers(0, V - 1, (5, L)).astype(np.int32)
  masked = np.zeros((5, L), bool)
  masked[0, 12:30] = True
  masked[1, 5:8] = masked[1, 14:16] = masked[1, 20] = True
  masked[2, 3:34:2] = True
  masked[4, :8] = True
  return Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.array([30, 21, 34, 12, 9], jnp.int32))


@functools.cache
def method_of(cache, layers: int, shift: bool, with_guidance: bool) -> denoise.DenoiseMethod:
  network = denoiser(CONFIGS[layers], MASK, shift)
  network = guided(network) if with_guidance else network
  return denoise.DenoiseMethod(
    network, cache(network, W), POLICIES["threshold"](), blocks.fixed(W), stopping.whole()
  )


def decode(cache, layers: int, canvas: Canvas, rows=range(5), shift=False, weight=None):
  params = weights(layers)
  if weight is not None:
    params = Guided(params, ~canvas.masked, jnp.full(len(canvas.end), weight))
  method = method_of(cache, layers, shift, weight is not None)
  B = len(canvas.end)
  parts = denoise.Weights(params, Threshold(jnp.full(B, 0.3)))
  request = denoise.DenoiseRequest(request_keys(0, list(rows)), jnp.full(B, 0.7))
  state = denoise.compiled_start(method, parts, canvas)
  state = denoise.compiled_advance(method, parts, request, state, jnp.int32(1000))
  return jax.device_get(state)


def assert_same(got, wanted):
  np.testing.assert_array_equal(got.canvas.tokens, wanted.canvas.tokens)
  np.testing.assert_array_equal(got.when, wanted.when)


@pytest.mark.slow
@pytest.mark.full(but=["True-similar"])
@pytest.mark.parametrize("name", EVERY_PASS)
@pytest.mark.parametrize("shift", [False, True])
def test_reading_all_in_every_pass_is_no_cache(name, shift):
  got = decode(EVERY_PASS[name], 2, canvases(), shift=shift)
  wanted = decode(caches.none, 2, canvases(), shift=shift)
  assert_same(got, wanted)
  np.testing.assert_array_equal(got.log_prob, wanted.log_prob)  # bit for bit


@pytest.mark.slow
@pytest.mark.full(but=["True-dual", "True-prefix"])
@pytest.mark.parametrize("name", SOME_PASSES)
@pytest.mark.parametrize("shift", [False, True])
def test_exact_where_keys_depend_on_their_own_token_alone(name, shift):
  got = decode(SOME_PASSES[name], 1, canvases(), shift=shift)
  wanted = decode(caches.none, 1, canvases(), shift=shift)
  assert_same(got, wanted)
  np.testing.assert_allclose(got.log_prob, wanted.log_prob, atol=1e-5)


@pytest.mark.slow
@pytest.mark.full(but=["dual"])
@pytest.mark.parametrize("name", SOME_PASSES)
def test_a_deeper_network_tells(name):
  got = decode(SOME_PASSES[name], 2, canvases())
  wanted = decode(caches.none, 2, canvases())
  assert np.abs(got.log_prob - wanted.log_prob).max() > 1e-3
  given = ~np.asarray(canvases().masked)
  np.testing.assert_array_equal(got.canvas.tokens[given], np.asarray(canvases().tokens)[given])


@pytest.mark.slow
@pytest.mark.full(but=["similar", "sliding"])
@pytest.mark.parametrize("name", SOME_PASSES)
def test_rows_are_independent_with_a_cache(name):
  together = decode(SOME_PASSES[name], 2, canvases())
  for b in range(5):
    row = jax.tree.map(lambda x, b=b: x[b : b + 1], canvases())
    alone = decode(SOME_PASSES[name], 2, row, [b])
    np.testing.assert_array_equal(alone.canvas.tokens[0], together.canvas.tokens[b])
    np.testing.assert_array_equal(alone.when[0], together.when[b])


WIDE = {
  "scratchpad": functools.partial(caches.scratchpad, ahead=9, lengths=5),
  "vicinity, wide": functools.partial(caches.vicinity, before=3, after=9, warm_up=1),
}


@pytest.mark.slow
@pytest.mark.full(but=["vicinity, wide"])
@pytest.mark.parametrize("name", [*SOME_PASSES, *WIDE])
def test_a_text_depends_on_no_longer_canvas_beside_it(name):
  """Padding adds slots that nobody sees, nor is any slot read again because they lack."""
  cache = (SOME_PASSES | WIDE)[name]
  tokens = np.random.default_rng(3).integers(0, V - 1, (2, 2 * L)).astype(np.int32)
  masked = np.zeros(tokens.shape, bool)
  masked[:, 12:34] = masked[1, 40:60] = True
  canvas = Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.array([34, 60], jnp.int32))
  together = decode(cache, 2, canvas, [0, 1])
  short = Canvas(canvas.tokens[:1, :L], canvas.masked[:1, :L], canvas.end[:1])
  alone = decode(cache, 2, short, [0])
  np.testing.assert_array_equal(alone.canvas.tokens[0], together.canvas.tokens[0, :L])
  np.testing.assert_array_equal(alone.when[0], together.when[0, :L])
  np.testing.assert_allclose(alone.log_prob[0], together.log_prob[0, :L], atol=1e-5)


@pytest.mark.slow
def test_what_is_far_ahead_is_not_seen():
  """Past the eighth masked slot nothing matters between two full passes."""
  cache = functools.partial(caches.sliding, ahead=8, every=1000)
  canvas = jax.tree.map(lambda x: x[:1], canvases())
  near = decode(cache, 1, canvas, [0])
  wide = decode(functools.partial(caches.sliding, ahead=L, every=1000), 1, canvas, [0])
  assert np.abs(near.log_prob - wide.log_prob).max() > 1e-3
  # The first pass reads all: with every=1 both see all of the canvas always.
  near, wide = (
    decode(functools.partial(caches.sliding, ahead=a, every=1), 1, canvas, [0]) for a in (8, L)
  )
  np.testing.assert_array_equal(near.log_prob, wide.log_prob)


def test_slots_that_are_left_out_are_neither_read_nor_seen():
  R, ahead = 2000, 7
  rng, lo = np.random.default_rng(0), np.arange(R, dtype=np.int32)
  tokens = rng.integers(0, V, (R, R + 20)).astype(np.int32)
  end = np.minimum(lo + W + 9, R + 18).astype(np.int32)
  canvas = Canvas(*map(jnp.asarray, (tokens, np.arange(R + 20) >= lo[:, None], end)))
  kept = np.asarray(kept_slots(canvas, jnp.asarray(lo + W), ahead, 2.0, 1.5))
  chance = 1.5 * np.exp(-((np.arange(ahead) / 3) ** 2) / 2) / np.sqrt(2 * np.pi)
  found = np.stack([kept[b, b + W : b + W + 9] for b in range(R - 10)])
  assert (np.abs(found[:, :ahead].mean(0) - chance) < 0.05).all() and not found[:, ahead:].any()
  assert kept[5, : 5 + W].all() and not kept[5, end[5] :].any()
  network, begin = denoiser(CONFIGS[2], MASK), 11
  cache = caches.scratchpad(network, W, ahead, 2.0, 1.5)
  one = jax.tree.map(lambda x: x[begin : begin + 1, :L], (canvas.tokens, canvas.masked))
  one = Canvas(*one, canvas.end[begin : begin + 1])
  states, _ = cache.states(weights(2), (), one, jnp.full(1, begin), jnp.ones(1, bool))
  slots = np.flatnonzero(kept[begin])[None]
  assert begin + W < slots.shape[1] < end[begin]
  read = jnp.asarray(tokens[begin, slots])
  wanted, _ = network.evaluate(weights(2), read, jnp.asarray(slots), jnp.ones(read.shape, bool))
  np.testing.assert_allclose(states[0], wanted[0, begin : begin + W], atol=1e-5)


def summed(params, tokens, position, seen, earlier=None):
  """A network of one number a slot, which depends on all that is seen, however old."""
  own = jnp.where(seen, 10 * tokens + position, 0).astype(jnp.float32)
  total = own.sum(1, keepdims=True)
  if earlier is not None:
    total += jnp.where(earlier.visible, earlier.kv[:, 0, :, 0], 0.0).sum(1, keepdims=True)
  kv = own + total / 64
  return kv[..., None], kv[:, None, :, None]


@pytest.mark.parametrize("shift", [False, True])
def test_commits_are_cached_one_pass_later(shift):
  network, every, lo, end = Denoiser(V, MASK, shift, summed, lambda params, x: x), 5, 9, 31
  cache, rng = caches.delayed(network, W, every), np.random.default_rng(0)
  tokens, slot = rng.integers(0, MASK, L), np.arange(L)
  kept, masked, states = np.zeros(L), slot >= lo, jax.jit(cache.states)
  before, memory = masked, None
  for i in range(8):
    tokens[masked] = MASK
    canvas = Canvas(jnp.int32(tokens)[None], jnp.asarray(masked)[None], jnp.full(1, end))
    memory = cache.init((), canvas) if memory is None else memory
    found, memory = states((), memory, canvas, jnp.full(1, lo), jnp.full(1, i == 0))
    whole = i < 2 or i % every == 0
    read = (slot < end) & (whole | before | np.roll(masked, -int(shift)))
    own = np.where(read, 10 * tokens + slot, 0)
    kept = np.where(read, own + (own.sum() + kept[(slot < end) & ~read].sum()) / 64, kept)
    wanted = np.flatnonzero(masked[lo : lo + W])
    np.testing.assert_allclose(found[0, wanted, 0], kept[wanted + lo - shift], rtol=1e-4)
    np.testing.assert_allclose(memory.kv[0, 0, :end, 0], kept[:end], rtol=1e-4)
    before = masked.copy()
    masked[rng.permutation(np.flatnonzero(masked & (slot < end)))[:2]] = False
    tokens = np.where(before & ~masked, rng.integers(0, MASK, L), tokens)
  assert 0 < len(wanted) < W and not whole


def test_a_shadow_sees_all_but_its_own_slot():
  """One layer: the same as reading a canvas that lacks the slot, with masks beside it."""
  network, params, lo, end = denoiser(CONFIGS[1], MASK), weights(1), 7, 20
  tokens = np.random.default_rng(0).integers(0, MASK, (1, L)).astype(np.int32)
  masked = np.zeros((1, L), bool)
  masked[0, [8, 11, 15]] = True
  tokens[masked] = MASK
  canvas = Canvas(*map(jnp.asarray, (tokens, masked, np.array([end]))))
  first, evaluate = (jnp.full(1, lo), jnp.ones(1, bool)), jax.jit(network.evaluate)
  found, plain = (
    jax.jit(cache(network, W).states)(params, (), canvas, *first)[0]
    for cache in (caches.shadow, caches.none)
  )
  own = masked[0, lo : lo + W]
  np.testing.assert_allclose(found[0, own], plain[0, own], atol=1e-5)
  for slot in np.flatnonzero(~own) + lo:
    rest, block = np.delete(np.arange(end), slot), np.arange(lo, lo + W)
    position = np.concatenate([rest, block])[None]
    read = np.concatenate([tokens[0, rest], np.full(W, MASK)])[None]
    said, _ = evaluate(params, read, position, jnp.ones(read.shape, bool))
    np.testing.assert_allclose(found[0, slot - lo], said[0, len(rest) + slot - lo], atol=1e-5)
  with pytest.raises(ValueError, match="`cache` must be another for a denoiser that is shifted"):
    caches.shadow(denoiser(CONFIGS[1], MASK, True), W)


@pytest.mark.full
def test_guidance_keeps_two_caches():
  got = decode(SOME_PASSES["dual"], 1, canvases(), weight=1.5)
  wanted = decode(caches.none, 1, canvases(), weight=1.5)
  assert_same(got, wanted)


def test_a_window_is_a_config_of_its_own():
  """A sliding attention window and a mask over the cache exclude each other."""
  config = dataclasses.replace(CONFIGS[1], window=4)
  with pytest.raises(ValueError, match="window"):
    denoiser(config, MASK)
