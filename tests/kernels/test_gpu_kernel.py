"""The Hopper kernel without a GPU: what is around it, and its lowering."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import assert_close, case, in_pages, truth, windowed

from specjax.kernels.tree_attention import pallas_gpu
from specjax.kernels.tree_attention.reference import Result


def whole_blocks(q, k, v, lengths, splits, window=(), cap=None, table=()):
  """What the kernel gives, by its definition."""
  heads = q.shape[0] // len(lengths)
  if table:
    k, v = (x.reshape(-1, heads, *x.shape[1:])[table[0]].swapaxes(1, 2) for x in (k, v))
    k, v = (x.reshape(len(q), -1, x.shape[-1]) for x in (k, v))
  S = k.shape[1]
  blocks = lengths // pallas_gpu.BLOCK
  begin = window[0] if window else jnp.zeros_like(blocks)
  share = -(-(blocks - begin) // splits)
  column = jnp.arange(S) // pallas_gpu.BLOCK
  column, blocks, share = column[None, None], blocks[None, :, None], share[None, :, None]
  first = begin[None, :, None] + jnp.arange(splits)[:, None, None] * share
  seen = (column >= first) & (column < jnp.minimum(first + share, blocks))
  seen = jnp.repeat(seen, heads, 1)[:, :, None]
  if window:
    near = jnp.arange(S)[None, None] >= window[1][:, :, None]
    seen = seen & jnp.repeat(near, heads, 0)[None]
  score = jnp.einsum("hrc,hsc->hrs", q, k)[None]
  if cap is not None:
    score = cap * jnp.tanh(score / cap)
  score = jnp.where(seen, score, -jnp.inf)
  top = jnp.maximum(score.max(-1), -1e30)
  weight = jnp.exp(score - top[..., None])
  v = jnp.where(seen.any((0, 2))[..., None], v, 0)
  return Result(jnp.einsum("zhrs,hsc->zhrc", weight, v), top, weight.sum(-1))


@pytest.mark.slow
@pytest.mark.full(but=["*(2, 1, 4*"])
@pytest.mark.parametrize(
  "shape",
  [(3, 2, 2, 5, 1024, 64, (0, 63, 1024)), (2, 1, 4, 16, 1100, 64, (64, 1099))],
  ids=str,
)
@pytest.mark.parametrize("local", [False, True], ids=["all", "local"])
def test_the_parts_merge_to_the_truth(shape, local, monkeypatch):
  monkeypatch.setattr(pallas_gpu, "_whole_blocks", whole_blocks)
  arguments, seen = case(0, *shape), {}
  if local:
    sinks = np.linspace(-2, 2, shape[1] * shape[2], dtype=np.float32)
    seen = {"start": windowed(0, arguments, 200), "cap": 2.0, "sinks": sinks}
  got = pallas_gpu.tree_attention(*map(jnp.asarray, arguments), shape[5] ** -0.5, **seen)
  assert_close(got, truth(*arguments, **seen), 2e-6)


@pytest.mark.slow
def test_pages_merge_to_the_truth(monkeypatch):
  """A text of less than a page, one that fills its pages, and one between."""
  monkeypatch.setattr(pallas_gpu, "_whole_blocks", whole_blocks)
  arguments = case(0, 3, 2, 2, 5, 512, 64, (63, 512, 300))
  seen = {"start": windowed(0, arguments, 200), "cap": 2.0}
  paged = jax.tree.map(jnp.asarray, in_pages(arguments, 2))
  got = pallas_gpu.tree_attention(*paged, 64**-0.5, **seen)
  assert_close(got, truth(*arguments, **seen), 2e-6)


@pytest.mark.parametrize(
  ("N", "C", "cap"), [(n, c, None) for n in (1, 16, 64) for c in (64, 128)] + [(16, 128, 30.0)]
)
def test_every_shape_lowers_for_cuda(N, C, cap):
  shape = (2, 2, 4, N, 1024, C, (1024, 100))
  arguments = jax.eval_shape(lambda: tuple(map(jnp.asarray, case(0, *shape, dtype=jnp.bfloat16))))

  def attention(*arguments):
    start = None if cap is None else jnp.zeros((2, N), jnp.int32)
    return pallas_gpu.tree_attention(*arguments, 1.0, start=start, cap=cap)

  lowered = jax.jit(attention).trace(*arguments).lower(lowering_platforms=("cuda",))
  assert "mosaic_gpu" in lowered.as_text()


def test_pages_lower_for_cuda():
  """They are not copied."""
  paged = in_pages(case(1, 3, 2, 4, 8, 1024, 128, (1, 300, 900), dtype=jnp.bfloat16), 2)
  attention = functools.partial(pallas_gpu.tree_attention, scale=1.0)
  lowered = jax.jit(attention).trace(*paged).lower(lowering_platforms=("cuda",)).as_text()
  assert "mosaic_gpu" in lowered and "3x2x1024x128" not in lowered


class Turned:
  """A reference whose rows are read as columns."""

  def __init__(self, ref):
    self.ref = ref

  def __getitem__(self, index):
    return self.ref[index].T


unsettled = pytest.mark.skipif(  # a failed simulation would spoil the tests after it
  jax.__version_info__ >= (0, 12),
  reason="jax 0.12's simulator says that a slot is refilled while it is read, 0.10's does not",
)


@pytest.mark.slow
@pytest.mark.full(but=["100-*", "300-150-*-True"])
@pytest.mark.parametrize(
  ("length", "window", "cap", "paged"),
  [(0, None, None, False), (100, None, None, False),
   pytest.param(300, None, None, False, marks=unsettled),
   pytest.param(300, 150, 1.5, False, marks=unsettled),
   pytest.param(300, 150, 1.5, True, marks=unsettled)],
)  # fmt: skip
def test_the_kernel_gives_the_parts(length, window, cap, paged, monkeypatch, capfd):
  """Warpgroups, barriers and copies are simulated; products are plain ones."""
  params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
  monkeypatch.setattr(pallas_gpu.plgpu, "layout_cast", lambda x, layout: x)
  monkeypatch.setattr(pallas_gpu, "_of_rows", lambda ref: ref[...])
  monkeypatch.setattr(pallas_gpu, "_turned", Turned)
  monkeypatch.setattr(
    pallas_gpu, "_product",
    lambda a, b: jnp.dot(a[...], b[...], preferred_element_type=jnp.float32),
  )  # fmt: skip
  keys = jax.random.split(jax.random.key(0), 3)
  q, k, v = (
    jax.random.normal(key, (1, rows, 64), jnp.bfloat16)
    for key, rows in zip(keys, (64, 512, 512), strict=True)
  )
  table = ()
  if paged:  # eight pages of two heads, of which the text has five
    table = (jnp.array([[7, 2, 5, 1, 6]], jnp.int32),)
    q = jnp.concatenate([q, q[:, ::-1]])
    k, v = (jnp.concatenate([x, x[:, ::-1]], 1).reshape(16, 64, 64) for x in (k, v))
  arguments = (q, k, v, jnp.full(1, length, jnp.int32))
  seen = ()
  if window is not None:  # of rows that are up to 63 deep
    start = length - window + jnp.arange(64, dtype=jnp.int32)[None]
    seen = start[:, 0] // pallas_gpu.BLOCK, start
  with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
    # The simulator computes with jax in callbacks; beside other work of ours it can wait forever.
    kernel = jax.jit(pallas_gpu._whole_blocks, static_argnums=(4, 6))
    got = jax.block_until_ready(kernel(*arguments, 1, seen, cap, table))
  exact = (x.astype(jnp.float32) for x in arguments[:3])
  wanted = whole_blocks(*exact, arguments[3], 1, seen, cap, table)
  for x, y in zip(got, wanted, strict=True):
    scale = jnp.maximum(jnp.abs(y).max(), 1)
    np.testing.assert_allclose(x / scale, y / scale, atol=1e-2)
  assert "RACE DETECTED" not in capfd.readouterr().out
