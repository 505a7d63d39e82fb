"""A denoiser that is a table, its decodings, and the published loops restated in numpy.

Each slot has a bias and hears a few others. Tokens must be equal, and the slots of every pass.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Denoiser
from specjax.sampling import request_keys

V, MASK, PROMPT, NEW, B, E = 7, 6, 4, 16, 24, 5
END, LENGTH = PROMPT + NEW, PROMPT + 2 * NEW


@functools.cache
def table(seed: int) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(seed)
  hears = rng.random((LENGTH, LENGTH)) < 0.15
  return {
    "bias": rng.normal(size=(LENGTH, E)), "mix": hears * rng.normal(size=(LENGTH, LENGTH)),
    "embed": rng.normal(size=(V, E)), "head": 1.3 * rng.normal(size=(E, V)),
  }  # fmt: skip


def evaluate(params, tokens, position, seen, earlier=None):
  said = jnp.where(seen[..., None], params["embed"][tokens], 0.0)
  mix = params["mix"][position[:, :, None], position[:, None, :]]
  return params["bias"][position] + mix @ said, ()


TABLE = Denoiser(V, MASK, False, evaluate, lambda params, states: states @ params["head"])


def probabilities(seed: int, tokens) -> np.ndarray:
  """[END, V] in float64; the mask token is never predicted."""
  t = table(seed)
  logits = (t["bias"][:END] + t["mix"][:END, :END] @ t["embed"][tokens]) @ t["head"]
  logits[:, MASK] = -np.inf
  p = np.exp(logits - logits.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)


def prompts(seed: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, MASK, (B, PROMPT))


def decode(policy, params, seed: int, size: int, ahead: int = 0):
  """(tokens [B, END], the slots of every pass of every row)."""
  method = denoise.DenoiseMethod(
    TABLE, caches.none(TABLE, size + ahead), policy, blocks.fixed(size, ahead), stopping.whole()
  )
  tokens = np.zeros((B, LENGTH), np.int32)
  tokens[:, :PROMPT] = prompts(seed)
  column = np.broadcast_to(np.arange(LENGTH), tokens.shape)
  canvas = Canvas(
    jnp.asarray(tokens), jnp.asarray((column >= PROMPT) & (column < END)),
    jnp.full(B, END, jnp.int32),
  )  # fmt: skip
  weights = denoise.Weights(jax.tree.map(jnp.float32, table(seed)), params)
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), jnp.zeros(B))
  state = denoise.compiled_start(method, weights, canvas)
  state = jax.device_get(denoise.compiled_advance(method, weights, request, state, jnp.int32(99)))
  assert state.done.all()
  passes = [
    [set(np.flatnonzero(when == k).tolist()) for k in range(n)]
    for when, n in zip(state.when, state.passes, strict=True)
  ]
  return state.canvas.tokens[:, :END], passes


def by_hand(pick, seed: int, row: int, size: int):
  """(tokens, slots of every pass) of a published loop.

  `pick` is what it does in a pass: (p [END, V], the block's masked slots, the block's first slot,
  the pass of the block) -> the slots to commit. Passes that commit none show nothing and are left
  out.
  """
  tokens, passes = np.full(END, MASK), []
  tokens[:PROMPT] = prompts(seed)[row]
  for lo in range(PROMPT, END, size):
    step = 0
    while left := [i for i in range(lo, lo + size) if tokens[i] == MASK]:
      p = probabilities(seed, tokens)
      chosen = pick(p, left, lo, step)
      for i in chosen:
        tokens[i] = p[i].argmax()
      passes += [{int(i) for i in chosen}] if chosen else []
      step += 1
  return tokens, passes


def agree(policy, params, pick_of, size: int, ahead: int = 0, seeds=(0, 1)) -> None:
  for seed in seeds:
    tokens, passes = decode(policy, params, seed, size, ahead)
    for row in range(B):
      want, slots = by_hand(pick_of(row), seed, row, size)
      assert passes[row] == slots, (seed, row)
      np.testing.assert_array_equal(tokens[row], want)


def best_first(score, left):
  return sorted(left, key=lambda i: (-score[i], i))


def rows(parameters):
  """The numbers of `parameters` as arrays [B]."""
  return jax.tree.map(
    lambda x: jnp.full(B, x, jnp.int32 if isinstance(x, int) else jnp.float32), parameters
  )


def filter_of(seed: int, size: int):
  rng = np.random.default_rng(seed)
  return [2 * rng.normal(size=s) for s in ((3, size), (3,), (size, 3), (size,))]


def learned_pick(seed, size, least):
  """What the filter approves, and the surest slot of the block besides, in every pass."""
  into, b1, out, b2 = filter_of(seed, size)

  def pick(p, left, lo, step):
    c = p.max(-1)
    z = np.maximum(into @ c[lo : lo + size] + b1, 0)
    final = 1 / (1 + np.exp(-(out @ z + b2)))
    return {i for i in left if final[i - lo] > least} | {best_first(c, left)[0]}

  return pick
