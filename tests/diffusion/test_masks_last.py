"""Models that read masks last (WeDLM), against a plain loop that moves the tokens themselves."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_denoise import random_params

from specjax.checkpoints import hf
from specjax.data.packing import pack
from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.policies import POLICIES, Distance, editing
from specjax.models.config import Config
from specjax.models.denoiser import denoiser, in_order, smoothed
from specjax.models.transformer import Transformer, init
from specjax.sampling import request_keys
from specjax.train.recipe import block_diffusion, forward

V, MASK, W, L, B = 24, 23, 6, 40, 5
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_width=24, causal=False,
  masks_last=True,
)  # fmt: skip
BOTH_SIDES = dataclasses.replace(CONFIG, masks_last=False)


weights = functools.cache(functools.partial(random_params, 0))


def canvases() -> Canvas:
  """Prompts short and long, holes with tokens behind them, a row that is full."""
  tokens = np.random.default_rng(1).integers(0, V - 1, (B, L)).astype(np.int32)
  masked = np.zeros((B, L), bool)
  end = np.array([30, 21, 34, 12, 28], np.int32)
  masked[0, 4:30] = True
  masked[1, 15:21] = True
  masked[2, 3:34:2] = True
  masked[4, 8:12] = masked[4, 20:28] = True
  return Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(end))


@functools.cache
def _pass(count: int):
  return jax.jit(lambda *x: Transformer(BOTH_SIDES).apply(*x, method="features")[0].hidden)


def ordered_logits(tokens: np.ndarray, position: np.ndarray, masked: np.ndarray) -> np.ndarray:
  """Logits [N, V], of a causal pass over the filled tokens and then the masked ones."""
  order = np.argsort(masked, kind="stable")
  causal = np.tril(np.ones((len(order),) * 2, bool))
  ids = np.where(masked, MASK, tokens)[order]
  hidden = _pass(len(order))(weights(), ids[None], position[order][None], causal[None])
  logits = Transformer(BOTH_SIDES).apply(weights(), hidden, method="head")
  found = np.empty((len(order), V))
  found[order] = logits[0]
  return found


def plain(canvas: Canvas, most: float, slot: float):
  """(tokens, rounds) of the published loop, row by row."""
  rows = []
  for tokens, masked, end in zip(*map(np.array, canvas[:3]), strict=True):
    when = np.full(L, -1)
    for turn in itertools.count():
      left = np.flatnonzero(masked[:end])
      if not len(left):
        break
      window = left[left < left[0] + W]
      logits = ordered_logits(tokens[:end], np.arange(end), masked[:end])[window]
      logits[:, MASK] = -np.inf
      p = np.exp(logits - logits.max(1, keepdims=True))
      p /= p.sum(1, keepdims=True)
      nats = -(p * np.log(np.where(p > 0, p, 1))).sum(1) + slot * (window - left[0])
      chosen = window[nats < most] if (nats < most).any() else window[[nats.argmin()]]
      tokens[chosen] = logits.argmax(1)[np.isin(window, chosen)]
      masked[chosen], when[chosen] = False, turn
    rows.append((tokens[:end], when))
  return rows


@functools.cache
def method(cache: str, made=denoiser) -> denoise.DenoiseMethod:
  network = made(CONFIG, MASK) if made is denoiser else made(CONFIG, MASK, False)
  return denoise.DenoiseMethod(
    network, caches.CACHES[cache](network, W), POLICIES["entropy_distance"](),
    blocks.streaming(W), stopping.whole(),
  )  # fmt: skip


def decode(used: denoise.DenoiseMethod, canvas: Canvas, most: float, slot: float):
  rows = len(canvas.end)
  parts = denoise.Weights(weights(), Distance(jnp.full(rows, most), jnp.full(rows, slot)))
  request = denoise.DenoiseRequest(request_keys(0, range(rows)), jnp.zeros(rows))
  state = denoise.compiled_start(used, parts, canvas)
  return jax.device_get(denoise.compiled_advance(used, parts, request, state, jnp.int32(1000)))


@pytest.mark.parametrize(("most", "slot"), [(0.0, 0.0), (2.2, 0.02), (2.0, 0.3)])
def test_texts_are_those_of_a_loop_that_moves_the_tokens(most, slot):
  wanted = plain(canvases(), most, slot)
  for cache in ("none", "streamed"):
    got = decode(method(cache), canvases(), most, slot)
    for b, (tokens, when) in enumerate(wanted):
      np.testing.assert_array_equal(got.canvas.tokens[b, : len(tokens)], tokens)
      np.testing.assert_array_equal(got.when[b], when)
  rounds = got.when.max(1) + 1
  assert (rounds < canvases().masked.sum(1)).any() == (most > 0)


def test_a_row_alone_is_as_in_a_batch():
  whole = decode(method("streamed"), canvases(), 2.2, 0.02)
  for b in range(B):
    alone = decode(method("streamed"), jax.tree.map(lambda x, b=b: x[b : b + 1], canvases()), 2.2,
                   0.02)  # fmt: skip
    np.testing.assert_array_equal(alone.canvas.tokens[0], whole.canvas.tokens[b])


def test_smoothed_embeddings_pass_through_the_cache():
  got, wanted = (decode(method(x, smoothed), canvases(), 2.2, 0.02) for x in ("streamed", "none"))
  np.testing.assert_array_equal(got.canvas.tokens, wanted.canvas.tokens)


def test_the_loss_sees_what_decoding_sees():
  D, T = 4, 12
  rng = np.random.default_rng(2)
  tokens, masked = rng.integers(0, V - 1, T).astype(np.int32), rng.random(T) < 0.5
  rows = pack([(tokens.tolist(), [True] * T)], T, first=True)
  noisy = jnp.where(masked, MASK, tokens)[None]
  found = block_diffusion.states(
    Transformer(CONFIG), weights(), noisy, rows, False, D=D, masked=jnp.asarray(masked)[None]
  )
  logits = Transformer(CONFIG).apply(weights(), found, method="head")[0]
  for begin in range(0, T, D):
    block = np.arange(T) >= begin
    seen = (masked & block)[: begin + D]
    wanted = ordered_logits(tokens[: begin + D], np.arange(begin + D), seen)
    np.testing.assert_allclose(logits[begin : begin + D], wanted[begin:], atol=2e-5)


def test_a_student_sees_what_decoding_sees():
  rng, masked = np.random.default_rng(3), np.arange(8) > 3
  tokens = rng.integers(0, V - 1, 8).astype(np.int32)
  rows = jnp.where(masked, MASK, tokens)[None]
  seen = in_order(rows == MASK, jnp.arange(8)[None])
  used = jnp.ones(rows.shape, bool)
  states = forward.states(Transformer(BOTH_SIDES), weights(), rows, used, False, seen)
  logits = Transformer(CONFIG).apply(weights(), states, method="head")[0]
  np.testing.assert_allclose(logits, ordered_logits(tokens, np.arange(8), masked), atol=2e-5)


def test_a_checkpoint_is_written_in_its_own_layout(tmp_path):
  config = dataclasses.replace(CONFIG, qk_norm=True)
  params = init(config, jax.random.key(0))
  hf.save(tmp_path, config, params, None, mask=MASK)
  assert '"model_type": "wedlm"' in (tmp_path / "config.json").read_text()
  found = hf.load(tmp_path)
  assert found.config == config and found.mask == MASK
  # Files have 16 bits.
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-3), found.params, params)


@pytest.mark.parametrize("name", ["dual", "prefix", "similar", "committed", "delayed", "shadow"])
def test_other_caches_are_refused(name):
  with pytest.raises(ValueError, match=r"`cache` must be none or streamed|needs a denoiser"):
    caches.CACHES[name](denoiser(CONFIG, MASK), W)


@pytest.mark.parametrize(
  ("run", "words"),
  [
    (lambda: caches.streamed(denoiser(BOTH_SIDES, MASK), W), "needs a denoiser that reads masks"),
    (lambda: denoiser(CONFIG, MASK, True), "`shift` must be False"),
    (lambda: dataclasses.replace(CONFIG, block_length=4), "`masks_last` must be False"),
    (lambda: blocks.check_blocks(denoiser(BOTH_SIDES, MASK), blocks.streaming(W), editing.remdm()),
     "may change its mind"),
    (lambda: blocks.streaming(0), "`window` must be"),
  ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(run, words):
  with pytest.raises(ValueError, match=words):
    run()
