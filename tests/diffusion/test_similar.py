"""dLLM-Cache against a plain loop over slots in numpy; what a pass writes and what it leaves.

That it is no cache where it refreshes always, that rows are independent, and that a deep network
tells, is in test_plans.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import caches
from specjax.diffusion.base import Canvas
from specjax.diffusion.caches.similar import turned
from specjax.diffusion.guidance import guided
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer
from specjax.testing.ideal import copied

V, MASK, W, L, E, H, C, LAYERS = 24, 23, 4, 22, 16, 2, 8, 3
CONFIG = Config(
  vocab_size=V, width=E, layers=LAYERS, heads=H, kv_heads=1, head_dim=C, mlp_width=24,
  causal=False,
)  # fmt: skip
K_P, K_R, RATIO, PASSES = 5, 3, 0.3, 8
CASES = {  # (answers, shift)
  "all": (None, False),
  "most": (12, False),  # as many as the row of most has
  "fewer, shifted": (7, True),
}


@functools.cache
def weights():
  z = jnp.zeros((1, 2), jnp.int32)
  init = Transformer(CONFIG).init
  shapes = jax.eval_shape(init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  rng = np.random.default_rng(3)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def canvases() -> list[Canvas]:
  """What the passes read: from one to the next, two slots of each answer change.

  Rows: an answer after its prompt; holes; an answer alone whose end comes closer.
  """
  rng = np.random.default_rng(1)
  tokens = rng.integers(0, MASK, (3, L)).astype(np.int32)
  masked = np.zeros((3, L), bool)
  masked[0, 6:18] = True
  masked[1, 3:14:2] = True
  masked[2, :9] = True
  tokens[masked] = MASK
  end, found = np.array([18, 15, 9], np.int32), []
  for i in range(PASSES):
    found.append(Canvas(*map(jnp.array, (tokens, masked, end))))
    for row, holes, last in zip(tokens, masked, (18, 15, 7), strict=True):
      row[rng.permutation(np.flatnonzero(holes[:last]))[:2]] = rng.integers(0, MASK, 2)
    if i == 3:
      end[2] = 7
  return found


@functools.cache
def run(case: str):
  """(answer bool[B, L], of every pass: states, memory before, memory after)."""
  answers, shift = CASES[case]
  network = denoiser(CONFIG, MASK, shift)
  cache = caches.similar(network, W, K_P, K_R, RATIO, answers)
  states = jax.jit(cache.states)
  memory = cache.init(weights(), canvases()[0])
  answer, passes = np.asarray(memory.answer), []
  for canvas in canvases():
    before = memory
    found, memory = states(weights(), before, canvas, jnp.full(3, 2), jnp.zeros(3, bool))
    passes.append(jax.device_get((found, before, memory)))
  return answer, passes


def norm(x):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG.norm_epsilon)


def rotated(x, position):
  """x [N, C]."""
  angle = position[:, None] * CONFIG.rope_theta ** (-np.arange(0, C, 2) / C)
  a, b = x[:, : C // 2], x[:, C // 2 :]
  cos, sin = np.cos(angle), np.sin(angle)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], 1)


class Row:
  """One row slot by slot, as the paper tells it; the norms' weights are 1."""

  def __init__(self, answer):
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), weights())["params"]
    self.embedding = params["embedding"]
    self.weights = [params[f"layer_{i}"] for i in range(LAYERS)]
    self.answer = answer
    self.k, self.v = np.zeros((2, LAYERS, L, C))
    self.attention, self.mlp = np.zeros((2, LAYERS, L, E))

  def states(self, tokens, end, i):
    """[end, E] in pass i."""
    slots, x = range(end), self.embedding[tokens[:end]]
    answer = [s for s in slots if self.answer[s]]
    for layer, w in enumerate(self.weights):
      qkv = norm(x) @ w["qkv"].T
      q, k, v = np.split(qkv, (H * C, (H + 1) * C), 1)
      k = rotated(k, np.arange(end))
      fresh = {s for s in slots if i % (K_R if self.answer[s] else K_P) == 0 or layer == 0}
      if layer and i % K_R:
        old = self.v[layer]
        cosine = {s: v[s] @ old[s] / np.linalg.norm(v[s]) / np.linalg.norm(old[s]) for s in answer}
        fresh |= set(sorted(answer, key=cosine.get)[: int(RATIO * len(answer))])
      for s in fresh:
        self.k[layer, s] = k[s]
      for s in fresh | set(answer):
        self.v[layer, s] = v[s]
      for s in fresh:
        heads = []
        for h in range(H):
          query = rotated(q[s : s + 1, h * C : (h + 1) * C], np.array([s]))[0]
          p = np.exp(self.k[layer, :end] @ query / C**0.5)
          heads.append(p @ self.v[layer, :end] / p.sum())
        self.attention[layer, s] = w["out"] @ np.concatenate(heads)
      x = x + self.attention[layer, :end]
      for s in fresh:
        gate, up = np.split(w["gate_up"] @ norm(x[s]), 2)
        self.mlp[layer, s] = w["down"] @ (gate / (1 + np.exp(-gate)) * up)
      x = x + self.mlp[layer, :end]
    return norm(x)


@pytest.mark.slow
@pytest.mark.full(but=["fewer, shifted"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_papers_loop_over_slots(case):
  shift = int(CASES[case][1])
  answer, passes = run(case)
  for b in range(3):
    row = Row(answer[b])
    for i, (canvas, (found, _, memory)) in enumerate(zip(canvases(), passes, strict=True)):
      end = int(canvas.end[b])
      wanted = row.states(np.asarray(canvas.tokens)[b], end, i)[2 - shift :][:W]
      np.testing.assert_allclose(found[b], wanted, rtol=1e-3, atol=1e-3)
      for layer, kept in enumerate(memory.layers, 1):
        np.testing.assert_allclose(kept.mlp[b, :end], row.mlp[layer, :end], rtol=1e-3, atol=1e-3)


def changed(before, after):
  """bool[B, L]: slots of which a layer keeps something else, arrays [B, L, E]."""
  return (before != after).any(-1)


@pytest.mark.parametrize("case", CASES)
def test_a_pass_writes_what_is_due_and_the_share_that_turned_most(case):
  answer, passes = run(case)
  for i, (canvas, (_, before, after)) in enumerate(zip(canvases(), passes, strict=True)):
    inside = np.arange(L) < np.asarray(canvas.end)[:, None]
    prompt, said = inside & ~answer, inside & answer
    for old, new in zip(before.layers, after.layers, strict=True):
      written = changed(old.mlp, new.mlp)
      np.testing.assert_array_equal(written & prompt, prompt & (i % K_P == 0))
      if i % K_R == 0:
        np.testing.assert_array_equal(written & answer, said)
        continue
      np.testing.assert_array_equal((written & answer).sum(1), np.floor(RATIO * said.sum(1)))
      # Keys follow the rows that were computed, values are those of now everywhere.
      keys = changed(*(x.k.swapaxes(1, 2).reshape(3, L, -1) for x in (old, new)))
      assert not (keys & ~written).any()
      turn = turned(jnp.asarray(old.v), jnp.asarray(new.v))
      for b in range(3):
        most = np.asarray(turn)[b, said[b]]
        chosen = written[b, said[b]]
        assert not chosen.any() or most[chosen].min() >= most[~chosen].max()


def test_what_is_the_answer():
  masked = np.asarray(canvases()[0].masked)
  np.testing.assert_array_equal(run("all")[0], masked)
  np.testing.assert_array_equal(run("most")[0], masked)
  # A shifted denoiser predicts the first masked slot from the last of the prompt: 7 and that one.
  answer = run("fewer, shifted")[0]
  np.testing.assert_array_equal(np.flatnonzero(answer[0]), np.arange(5, 13))
  np.testing.assert_array_equal(np.flatnonzero(answer[1]), np.arange(2, 10))
  np.testing.assert_array_equal(np.flatnonzero(answer[2]), np.arange(8))


def test_reading_fewer_slots_finds_the_same():
  """With room for as many answer slots as there are, to the rounding of products of other sizes."""
  for (wide, *_), (narrow, *_) in zip(run("all")[1], run("most")[1], strict=True):
    np.testing.assert_allclose(wide, narrow, atol=1e-4)


def test_small_turns_are_told_apart():
  rng = np.random.default_rng(0)
  old = rng.normal(size=(1, 2, 5, 4)).astype(np.float32)
  size = np.float32([0, 1e-5, 1e-4, 1e-2, 1])
  new = old + size[:, None] * rng.normal(size=old.shape).astype(np.float32)
  found = np.asarray(turned(jnp.asarray(old), jnp.asarray(new)))[0]
  assert found[0] == 0
  a, b = (x.astype(np.float64)[0].swapaxes(0, 1).reshape(5, -1) for x in (old, new))
  cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
  np.testing.assert_allclose(found[1:], 1 - cosine[1:], rtol=0.05)


def test_what_it_cannot_look_into_is_refused():
  for network in (guided(denoiser(CONFIG, MASK)), copied(4)):
    with pytest.raises(ValueError, match=r"denoiser\.pieces=None"):
      caches.similar(network, W)
  for bad in ({"prompt_every": 0}, {"answer_every": 0}, {"ratio": 1.5}, {"answers": 0}):
    with pytest.raises(
      ValueError,
      match=(
        r"`prompt_every` and `answer_every` must be at least 1, .* got \d+, \d+, [\d.]+ and \w+"
      ),
    ):
      caches.similar(denoiser(CONFIG, MASK), W, **bad)
