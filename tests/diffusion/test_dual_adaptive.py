"""d2Cache against its layers in full, of which a plain rule says which slots are computed."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.caches.dual_adaptive import density, dual_adaptive
from specjax.diffusion.guidance import guided
from specjax.diffusion.policies import POLICIES, Threshold
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer
from specjax.sampling import request_keys
from specjax.trees.structure import rows_where

V, MASK, B, W, L, PASSES, LAYERS, E, C = 24, 23, 4, 5, 32, 10, 2, 16, 8
CONFIG = Config(
  vocab_size=V, width=E, layers=LAYERS, heads=4, kv_heads=2, head_dim=C, mlp_width=24,
  causal=False,
)  # fmt: skip
AGAIN = 4  # in this pass a new request takes the place of row 1
CASES = {
  "all masked slots": {"p": 0.2, "sigma": 10.0, "gap": 4},
  "the best two": {"rest": 9, "p": 0.1, "sigma": 2.0, "gap": 3, "masks": 2},
  "too many": {"rest": 1, "p": 0.8, "sigma": 1.0, "gap": 100, "masks": 3},
}


@functools.cache
def weights():
  z = jnp.zeros((1, 2), jnp.int32)
  init = Transformer(CONFIG).init
  shapes = jax.eval_shape(init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  rng = np.random.default_rng(5)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def first_canvas() -> Canvas:
  """An answer after its prompt; holes; an answer alone, whose row is soon done; one that is."""
  tokens = np.random.default_rng(1).integers(0, MASK, (B, L)).astype(np.int32)
  masked = np.zeros((B, L), bool)
  masked[0, 6:27] = masked[1, 3:20:2] = masked[1, 12:16] = masked[2, :12] = True
  tokens[masked] = MASK
  return Canvas(*map(jnp.asarray, (tokens, masked, np.array([27, 20, 12, 9], np.int32))))


@functools.cache
def rounds() -> list[tuple[Canvas, np.ndarray]]:
  """What passes read, and where: one or two slots of a window get tokens.

  A stopping rule fills what is far behind the first row's window, and ends the third row.
  """
  rng, found = np.random.default_rng(2), []
  tokens, masked, end, *_ = map(np.array, first_canvas())
  lo = np.where(masked.any(1), masked.argmax(1), end).astype(np.int32)
  for n in range(PASSES):
    sure = rng.random((B, L), np.float32)
    canvas = Canvas(*map(jnp.array, (tokens, masked, end)))
    found.append((canvas._replace(sure=jnp.array(sure)), lo.copy()))
    if n == 2:
      end[2] = 7
      masked[0, 17:] = masked[2, 7:] = False
    for row in range(B):
      slots = np.flatnonzero(masked[row, : end[row]])
      slots = slots[slots < lo[row] + W]
      some = rng.permutation(slots)[: rng.integers(1, 3)]
      tokens[row, some], masked[row, some] = rng.integers(0, MASK, len(some)), False
      if len(some) == len(slots):
        slots = np.flatnonzero(masked[row, : end[row]])
        lo[row] = slots[0] if len(slots) else end[row]
  return found


def near(masked: np.ndarray, end: int, s: int, sigma: float) -> float:
  """How much is known around slot s of a row, the slots right of its end being as its last one."""
  around = np.arange(s - 80, s + 81)
  weight = np.exp(-((around - s) ** 2) / (2 * sigma**2))
  known = (around < 0) | ~masked[np.clip(around, 0, end - 1)]
  return float((known * weight).sum() / weight.sum())


def choice(canvas, b, lo, before, share, shift, rest=W, p=0.1, sigma=10.0, gap=4, masks=W):
  """The slots of row b that are computed; `before` were masked, `share` came from each."""
  masked, end, sure = np.asarray(canvas.masked[b]), int(canvas.end[b]), np.asarray(canvas.sure[b])
  holes = [s for s in range(lo, min(lo + W, end)) if masked[s]]
  holes = sorted(holes, key=lambda s: -sure[s] * near(masked, end, s, sigma))[:masks]
  first = [*holes, *(s - 1 for s in holes if shift and s)]
  first = [*first, *(s for s in range(end) if before[s] and not masked[s])]
  others = sorted(set(range(end)) - set(first), key=lambda s: -share[s])
  sums = np.cumsum([0, *share[others]])
  first += [s for s, left_of in zip(others, sums, strict=False) if left_of < p * sums[-1]]
  at = sorted(set(first))
  for a, b in itertools.pairwise(at):
    first += range(a + 1, b) if b - a <= gap else []
  return list(dict.fromkeys(first))[: 2 * W + rest]


@functools.partial(jax.jit, static_argnums=0)
def layer(i, x, rows, inside, old):
  pieces = denoiser(CONFIG, MASK).pieces
  assert pieces is not None
  every = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), rows.shape)
  q, *new = pieces.project(weights(), i, x, every)
  k, v = (jnp.where(rows[:, None, :, None], a, b) for a, b in zip(new, old, strict=True))
  x = x + pieces.attention(weights(), i, q, k, v, inside)
  return x + pieces.mlp(weights(), i, x), q, (k, v)


def plain(shift: bool, **numbers):
  """Of every pass: the computed slots of each row, their states, and what came from each slot."""
  pieces, passes = denoiser(CONFIG, MASK).pieces, []
  assert pieces is not None
  kept = [(jnp.zeros((B, 2, L, C)),) * 2] * LAYERS
  states, share, before = np.zeros((B, L, E)), np.zeros((B, L)), np.zeros((B, L), bool)
  for n, (canvas, lo) in enumerate(rounds()):
    rows, inside = np.zeros((B, L), bool), np.asarray(canvas.inside)
    live = lo < np.asarray(canvas.end)
    for b in np.flatnonzero(live):
      new = n == 0 or (n == AGAIN and b == 1)
      some = choice(canvas, b, lo[b], before[b], share[b], shift, **numbers)
      rows[b, np.flatnonzero(inside[b]) if new else some] = True
    x, product = pieces.embed(weights(), canvas.tokens), np.stack([np.eye(L)] * B)
    for i in range(LAYERS):
      x, q, kept[i] = layer(i, x, rows, inside, kept[i])
      k = np.repeat(np.float64(kept[i][0]), 2, 1)
      gives = np.exp(np.float64(q) @ k.swapaxes(2, 3) / np.sqrt(C)) * inside[:, None, None]
      gives = (gives / gives.sum(-1, keepdims=True)).mean(1)
      matrix = np.where(rows[..., None], gives, np.eye(L)) + np.eye(L)
      product = matrix / matrix.sum(-1, keepdims=True) @ product
    states = np.where(rows[..., None], pieces.norm(weights(), x), states)
    share, before = product.sum(1), np.asarray(canvas.masked)
    passes.append((rows, states, share))
  return passes


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_passes_compute_the_slots_that_the_paper_chooses(case, shift):
  cache = dual_adaptive(denoiser(CONFIG, MASK, shift), W, **CASES[case])
  run, counts, new = jax.jit(cache.states), [], cache.init(weights(), first_canvas())
  memory, wanted = new, plain(shift, **CASES[case])
  for n, ((canvas, lo), (rows, states, share)) in enumerate(zip(rounds(), wanted, strict=True)):
    memory = rows_where(jnp.arange(B) == (1 if n == AGAIN else -1), new, memory)
    before = np.asarray(memory.computed.states)
    got, memory = run(weights(), memory, canvas, jnp.asarray(lo), jnp.zeros(B, bool))
    computed = (before != np.asarray(memory.computed.states)).any(-1)
    np.testing.assert_array_equal(computed, rows)
    np.testing.assert_allclose(memory.computed.rollout, share, atol=2e-5)
    for b, end in enumerate(np.asarray(canvas.end)):
      slots = np.arange(lo[b], min(lo[b] + W, end))
      found = got[b, : len(slots)]
      np.testing.assert_allclose(found, states[b, np.maximum(slots - shift, 0)], atol=5e-5)
    counts += [] if n in (0, AGAIN) else list(computed.sum(1))
  cap = 2 * W + CASES[case].get("rest", W)
  assert max(counts) == cap if case == "too many" else max(counts) <= cap
  assert min(counts) == 0


def decode(cache, shift: bool, canvas: Canvas, rows=range(B)):
  network = denoiser(CONFIG, MASK, shift)
  method = denoise.DenoiseMethod(
    network, cache(network, W), POLICIES["threshold"](), blocks.fixed(W), stopping.whole()
  )
  parts = denoise.Weights(weights(), Threshold(jnp.full(len(rows), 0.3)))
  request = denoise.DenoiseRequest(request_keys(0, rows), jnp.full(len(rows), 0.7))
  state = denoise.compiled_start(method, parts, canvas)
  return denoise.compiled_advance(method, parts, request, state, jnp.int32(1000))


def test_density_is_the_share_of_the_known():
  for canvas, _ in rounds()[::3]:
    found = np.asarray(density(canvas, 3.0))
    for row, masked, end in zip(found, np.asarray(canvas.masked), canvas.end.tolist(), strict=True):
      wanted = [near(masked, end, s, 3.0) for s in range(end)]
      np.testing.assert_allclose(row[:end], wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.full(but=["True"])
@pytest.mark.parametrize("shift", [False, True])
def test_where_every_slot_is_chosen_it_is_no_cache(shift):
  every = functools.partial(dual_adaptive, rest=L, p=1.0)
  got, wanted = (decode(cache, shift, first_canvas()) for cache in (every, caches.none))
  np.testing.assert_array_equal(got.canvas.tokens, wanted.canvas.tokens)
  np.testing.assert_array_equal(got.when, wanted.when)
  np.testing.assert_allclose(got.log_prob, wanted.log_prob, atol=1e-5)


@pytest.mark.slow
def test_rows_are_independent():
  some = functools.partial(dual_adaptive, rest=1, p=0.3, masks=3)
  canvas, together = first_canvas(), decode(some, False, first_canvas())
  for b in range(B):
    alone = decode(some, False, jax.tree.map(lambda x, b=b: x[b : b + 1], canvas), [b])
    np.testing.assert_array_equal(alone.canvas.tokens[0], together.canvas.tokens[b])
    np.testing.assert_array_equal(alone.when[0], together.when[b])
    np.testing.assert_allclose(alone.log_prob[0], together.log_prob[b], atol=1e-5)
  none = decode(caches.none, False, canvas)
  assert np.abs(together.log_prob - none.log_prob).max() > 1e-3


def test_what_it_cannot_look_into_is_refused():
  network = denoiser(CONFIG, MASK)
  with pytest.raises(ValueError, match=r"denoiser\.pieces=None"):
    dual_adaptive(guided(network), W)
  for bad in ({"rest": -1}, {"p": 1.1}, {"sigma": 0.0}, {"gap": -1}, {"masks": 0}):
    with pytest.raises(ValueError, match=f"`{next(iter(bad))}` must be"):
      dual_adaptive(network, W, **bad)
