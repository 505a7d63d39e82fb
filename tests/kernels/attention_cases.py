"""Random trees over random caches, and their attention in float64, a node at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.kernels.tree_attention import Paged, cpu, pallas_tpu, reference, xla

BLOCK = 128
SHAPES = [  # B, K, G, N, S, C, lengths
  (2, 2, 1, 1, 256, 64, (0, 256)),
  (3, 1, 4, 5, 256, 128, (127, 128, 129)),
  (2, 1, 7, 8, 384, 64, (1, 300)),
  (1, 2, 8, 16, 256, 64, (200,)),
  (1, 1, 1, 64, 128, 256, (77,)),
  (1, 1, 1, 256, 128, 64, (128,)),
  (2, 2, 2, 3, 256, 80, (0, 200)),
  (1, 1, 3, 5, 384, 192, (300,)),
]
NAMES = ("reference", "xla", "pallas_tpu")


def random_tree(rng, N):
  """bool[N, N], who sees whom where every node hangs from an earlier one."""
  mask = np.eye(N, dtype=bool)
  for i in range(1, N):
    mask[i] |= mask[rng.integers(0, i)]
  return mask


def case(seed, B, K, G, N, S, C, lengths, dtype=np.float32):
  """Arguments of `tree_attention`, a tree per row; what lies past the text is poison."""
  rng = np.random.default_rng(seed)

  def shape(heads, rows):
    return rng.normal(size=(B, heads, rows, C)).astype(dtype)

  mask = np.stack([random_tree(rng, N) for _ in range(B)])
  k, v = shape(K, S), shape(K, S)
  for b, n in enumerate(lengths):
    k[b, :, n:], v[b, :, n:] = np.nan, np.inf
  return (
    shape(K * G, N), k, v, np.array(lengths, np.int32), shape(K, N), shape(K, N), mask,
  )  # fmt: skip


def in_pages(arguments, shared):
  """The arguments with their caches in pages; behind a text stands page 0, which is poison.

  Texts 1 and 2 share so many pages.
  """
  q, k, v, lengths, *tree = arguments
  B, K, S, C = k.shape
  for x in (k, v):
    x[2, :, : 64 * shared] = x[1, :, : 64 * shared]
  table = 1 + np.random.default_rng(0).permutation(B * S // 64).reshape(B, -1).astype(np.int32)
  table[2, :shared] = table[1, :shared]
  own = np.where(64 * np.arange(S // 64) < lengths[:, None], table, 0)

  def paged(x):
    pages = np.full((1 + B * S // 64, K, 64, C), np.nan, x.dtype)
    pages[table] = x.reshape(B, K, -1, 64, C).swapaxes(1, 2)
    return Paged(pages, own)

  return q, paged(k), paged(v), lengths, *tree


def windowed(seed, arguments, window):
  """Where the window of every node begins, nodes being up to N below the cached text."""
  lengths, N = np.asarray(arguments[3]), arguments[0].shape[2]
  depth = np.sort(np.random.default_rng(seed).integers(0, N, (len(lengths), N)))
  return (lengths[:, None] + depth - window + 1).astype(np.int32)


def seen_by(arguments, window=None, cap=None, sinks=False):
  """What else of a call there is: `start`, `cap` and `sinks`."""
  heads = arguments[0].shape[1]
  return {
    "start": None if window is None else windowed(0, arguments, window),
    "cap": cap,
    "sinks": np.random.default_rng(0).normal(size=heads).astype(np.float32) if sinks else None,
  }


KINDS = {  # windows end in a block, at its end, or before every cached row of some nodes
  "window 100": {"window": 100}, "window 129": {"window": 129}, "window 3": {"window": 3},
  "cap": {"cap": 2.0}, "sinks": {"sinks": True},
  "all": {"window": 140, "cap": 2.0, "sinks": True},
}  # fmt: skip


def truth(
  q, k_cache, v_cache, prefix, k_tree, v_tree, mask, *, start=None, cap=None, sinks=None
):  # fmt: skip
  """(out, top, total) in float64."""
  B, H, N, C = q.shape
  G, S = H // k_cache.shape[1], k_cache.shape[2]
  visible = prefix if prefix.dtype == bool else np.arange(S) < prefix[:, None]
  out, top, total = np.zeros(q.shape), np.full((B, H, N), -np.inf), np.zeros((B, H, N))
  for b, h, i in np.ndindex(B, H, N):
    far = visible[b] if start is None else visible[b] & (np.arange(S) >= start[b, i])
    keys, values = (
      np.concatenate([c[b, h // G, far], t[b, h // G, mask[b, i]]]).astype(np.float64)
      for c, t in ((k_cache, k_tree), (v_cache, v_tree))
    )
    score = keys @ q[b, h, i].astype(np.float64) * C**-0.5
    if cap is not None:
      score = cap * np.tanh(score / cap)
    if sinks is not None:
      score, values = np.append(score, sinks[h]), np.append(values, np.zeros((1, C)), 0)
    if len(score):
      top[b, h, i] = score.max()
      weight = np.exp(score - score.max())
      total[b, h, i] = weight.sum()
      out[b, h, i] = weight @ values / weight.sum()
  return out, top, total


def assert_close(got, wanted, tolerance):
  """A Result is (out, top, total) but for a share of the largest magnitude."""
  for name, x, y in zip(got._fields, got, wanted, strict=True):
    x = np.asarray(x, np.float64)
    finite = np.isfinite(y)
    np.testing.assert_array_equal(np.isfinite(x), finite, err_msg=name)
    scale = np.abs(y[finite]).max(initial=1.0)
    np.testing.assert_allclose(x[finite] / scale, y[finite] / scale, atol=tolerance, err_msg=name)


def run(name, arguments, block=BLOCK, interpret=True, **seen):
  """The implementation `name`; the prefix in blocks, the TPU kernel simulated."""
  arguments = jax.tree.map(jnp.asarray, arguments)
  options = {"scale": arguments[0].shape[-1] ** -0.5, **seen}
  if name == "pallas_tpu":
    options |= {"block": block, "interpret": interpret}
    f = pallas_tpu.tree_attention
  elif name == "cpu":
    last = (options["scale"], *map(seen.get, ("cap", "start", "sinks", "before")))
    f = jax.jit(cpu.tree_attention, static_argnums=(7, 8))
    return jax.block_until_ready(f(*arguments, *last))
  else:
    f = reference.tree_attention
    if name == "xla":
      f, options["block"] = xla.tree_attention, block
    if arguments[3].dtype != bool:
      column = jnp.arange(jax.tree.leaves(arguments[1])[0].shape[2])
      arguments = (*arguments[:3], column[None] < arguments[3][:, None], *arguments[4:])
  return jax.block_until_ready(jax.jit(functools.partial(f, **options))(*arguments))
