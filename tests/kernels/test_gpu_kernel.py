"""The Hopper kernel without a GPU: what is around it, and its lowering."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import assert_close, case, truth

from specjax.kernels.tree_attention import pallas_gpu
from specjax.kernels.tree_attention.reference import Result


def whole_blocks(q, k, v, lengths, splits):
  """What the kernel gives, by its definition."""
  S = k.shape[1]
  blocks = lengths // pallas_gpu.BLOCK
  share = -(-blocks // splits)
  column = jnp.arange(S) // pallas_gpu.BLOCK
  column, blocks, share = column[None, None], blocks[None, :, None], share[None, :, None]
  first = jnp.arange(splits)[:, None, None] * share
  seen = (column >= first) & (column < jnp.minimum(first + share, blocks))
  seen = jnp.repeat(seen, q.shape[0] // len(lengths), 1)[:, :, None]
  score = jnp.where(seen, jnp.einsum("hrc,hsc->hrs", q, k)[None], -jnp.inf)
  top = jnp.maximum(score.max(-1), -1e30)
  weight = jnp.exp(score - top[..., None])
  v = jnp.where(seen.any((0, 2))[..., None], v, 0)
  return Result(jnp.einsum("zhrs,hsc->zhrc", weight, v), top, weight.sum(-1))


@pytest.mark.slow
@pytest.mark.full(but=["(2, 1, 4*"])
@pytest.mark.parametrize(
  "shape",
  [(3, 2, 2, 5, 1024, 64, (0, 63, 1024)), (2, 1, 4, 16, 1100, 64, (64, 1099))],
  ids=str,
)
def test_the_parts_merge_to_the_truth(shape, monkeypatch):
  monkeypatch.setattr(pallas_gpu, "_whole_blocks", whole_blocks)
  arguments = case(0, *shape)
  got = pallas_gpu.tree_attention(*map(jnp.asarray, arguments), shape[5] ** -0.5)
  assert_close(got, truth(*arguments), 2e-6)


@pytest.mark.parametrize("N", [1, 16, 64])
@pytest.mark.parametrize("C", [64, 128])
def test_every_shape_lowers_for_cuda(N, C):
  shape = (2, 2, 4, N, 1024, C, (1024, 100))
  arguments = jax.eval_shape(lambda: tuple(map(jnp.asarray, case(0, *shape, dtype=jnp.bfloat16))))

  def attention(*arguments):
    return pallas_gpu.tree_attention(*arguments, 1.0)

  lowered = jax.jit(attention).trace(*arguments).lower(lowering_platforms=("cuda",))
  assert "mosaic_gpu" in lowered.as_text()


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
@pytest.mark.full(but=["100"])
@pytest.mark.parametrize("length", [0, 100, pytest.param(300, marks=unsettled)])
def test_the_kernel_gives_the_parts(length, monkeypatch, capfd):
  """Warpgroups, barriers and copies are simulated; products are plain ones."""
  params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
  monkeypatch.setattr(pallas_gpu.plgpu, "layout_cast", lambda x, layout: x)
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
  arguments = (q, k, v, jnp.full(1, length, jnp.int32))
  with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
    # The simulator computes with jax in callbacks; beside other work of ours it can wait forever.
    got = jax.block_until_ready(jax.jit(pallas_gpu._whole_blocks, static_argnums=4)(*arguments, 1))
  wanted = whole_blocks(*(x.astype(jnp.float32) for x in arguments[:3]), arguments[3], 1)
  for x, y in zip(got, wanted, strict=True):
    scale = jnp.maximum(jnp.abs(y).max(), 1)
    np.testing.assert_allclose(x / scale, y / scale, atol=1e-2)
  assert "RACE DETECTED" not in capfd.readouterr().out
