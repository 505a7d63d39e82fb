"""Elastic-Cache against its layers in full, of which a plain rule says which slots are kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import caches
from specjax.diffusion.base import Canvas
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer

V, MASK, W, L, PASSES, LAYERS = 24, 23, 5, 20, 7, 4
CONFIG = Config(
  vocab_size=V, width=16, layers=LAYERS, heads=2, kv_heads=1, head_dim=8, mlp_width=24,
  causal=False,
)  # fmt: skip
LO = [[6, 3, 0]] * 4 + [[11, 8, 5]] * 3  # each row's window, which moves on once


@functools.cache
def weights():
  z = jnp.zeros((1, 2), jnp.int32)
  init = Transformer(CONFIG).init
  shapes = jax.eval_shape(init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  rng = np.random.default_rng(5)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 3 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def canvases() -> list[Canvas]:
  """What the passes read: from one to the next, a slot of each window gets a token."""
  rng = np.random.default_rng(1)
  tokens = rng.integers(0, MASK, (3, L)).astype(np.int32)
  masked = np.zeros((3, L), bool)
  masked[0, 6:18] = masked[1, 3:14] = masked[2, :12] = True
  tokens[masked] = MASK
  end, found = np.array([18, 14, 12], np.int32), []
  for lo in LO:
    found.append(Canvas(*map(jnp.array, (tokens, masked, end))))
    for row, holes, begin in zip(tokens, masked, lo, strict=True):
      slot = begin + rng.permutation(np.flatnonzero(holes[begin : begin + W]))[:1]
      row[slot], holes[slot] = rng.integers(0, MASK), False
  return found


def cosine(old: dict, new: dict) -> float:
  both = sorted(set(old) & set(new))
  a, b = np.array([old[i] for i in both]), np.array([new[i] for i in both])
  return float(a @ b / np.sqrt((a @ a) * (b @ b))) if both else -1.0


def plain(drift: float):
  """The window's states in every pass, and from which layer on each row was computed anew."""
  network, params = denoiser(CONFIG, MASK), weights()
  pieces = network.pieces
  assert pieces is not None
  kept: list = [None] * LAYERS
  watched: list = [[(0, {})] * 3 for _ in range(LAYERS)]
  before, said, began = np.zeros((3, L), bool), [], []
  every = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (3, L))
  for n, (lo, canvas) in enumerate(zip(LO, canvases(), strict=True)):
    inside, masked = np.asarray(canvas.inside), np.asarray(canvas.masked & canvas.inside)
    window = np.array([[b <= i < b + W for i in range(L)] for b in lo])
    open_ = masked & window
    new = (open_ | before) & inside
    fresh = [n == 0 or LO[n - 1] != lo] * 3
    first = [LAYERS] * 3
    x = pieces.embed(params, canvas.tokens)
    for i in range(LAYERS):
      q, k, v = pieces.project(params, i, x, every)
      rows = np.array([new[b] | (i == 0) | (first[b] <= i) for b in range(3)])
      if kept[i] is not None:
        k, v = (
          jnp.where(rows[:, None, :, None], a, b) for a, b in zip((k, v), kept[i], strict=False)
        )
      y = x + pieces.attention(params, i, q, k, v, canvas.inside)
      y = y + pieces.mlp(params, i, y)
      x = y if kept[i] is None else jnp.where(rows[..., None], y, kept[i][2])
      kept[i] = k, v, x
      scores = np.einsum("bhnc,blc->bhnl", np.float64(q), np.float64(k)[:, 0]) / np.sqrt(8)
      share = np.exp(scores) * inside[:, None, None]
      share = (share / share.sum(-1, keepdims=True)).mean(1)
      for b in range(3):
        slots = np.flatnonzero(open_[b])
        most, old = watched[i][b]
        moved = cosine(old, {s: share[b, s, most] for s in slots})
        if first[b] == LAYERS and (fresh[b] or moved < drift):
          first[b] = i + 1
        got = np.where(inside[b] & ~np.asarray(canvas.masked[b]), share[b, slots].sum(0), -1)
        most = int(got.argmax())
        watched[i][b] = most, {s: share[b, s, most] for s in slots}
    said.append([np.asarray(pieces.norm(params, x))[b, lo[b] : lo[b] + W] for b in range(3)])
    before, began = open_, [*began, first]
  return said, began


@pytest.mark.parametrize("drift", [-2.0, 0.995, 2.0])
def test_slots_are_kept_where_the_paper_keeps_them(drift):
  cache = caches.elastic(denoiser(CONFIG, MASK), W, drift)
  memory, states = cache.init(weights(), canvases()[0]), jax.jit(cache.states)
  wanted, began = plain(drift)
  for n, (lo, canvas) in enumerate(zip(LO, canvases(), strict=True)):
    fresh = jnp.full(3, n == 0 or LO[n - 1] != lo)
    got, memory = states(weights(), memory, canvas, jnp.array(lo, jnp.int32), fresh)
    for b in range(3):
      slots = np.flatnonzero(np.asarray(canvas.masked[b])[lo[b] : lo[b] + W])
      np.testing.assert_allclose(got[b, slots], wanted[n][b][slots], atol=2e-5)
  kinds = {first for n, row in enumerate(began) if n not in (0, 4) for first in row}
  assert kinds == {LAYERS} if drift < 0 else kinds == {1} if drift > 1 else len(kinds) > 2
