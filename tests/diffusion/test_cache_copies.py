"""A pass writes into the cache that rides in the loop; nothing makes another of its size."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.policies import POLICIES, Threshold
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.sampling import request_keys

B, L, W, K, C = 3, 40, 8, 2, 16
CONFIG = Config(
  vocab_size=24, width=48, layers=2, heads=4, kv_heads=K, head_dim=C, mlp_width=24, causal=False
)


def copies(program: str) -> int:
  """The copies, in a compiled program, of loops' arrays that are as large as the keys."""
  copy = rf"= f32\[{B},{K},{L},{C}\]\S* copy\(%(?!transpose)"
  return len(re.findall(copy, program))


NAMES = ["committed", "dual", "prefix", "similar", "delayed", "elastic", "dual_adaptive"]


@pytest.mark.slow
@pytest.mark.full(but=["committed"])
@pytest.mark.parametrize("name", NAMES)
def test_the_loop_does_not_copy_the_cache(name):
  config = dataclasses.replace(CONFIG, block_length=W if name == "committed" else None)
  network = denoiser(config, 23)
  method = denoise.DenoiseMethod(
    network, caches.CACHES[name](network, W), POLICIES["threshold"](), blocks.fixed(W),
    stopping.whole(),
  )  # fmt: skip
  params = jax.eval_shape(lambda: transformer.init(config, jax.random.key(0)))
  parts = denoise.Weights(params, Threshold(jnp.full(B, 0.3)))
  request = denoise.DenoiseRequest(request_keys(0, range(B)), jnp.zeros(B))
  canvas = Canvas(jnp.zeros((B, L), jnp.int32), jnp.ones((B, L), bool), jnp.full(B, L))
  state = jax.eval_shape(
    lambda p: denoise.start(method, parts._replace(denoiser=p), canvas), params
  )
  arguments = method, parts, request, state, jnp.int32(9)
  loop = denoise.compiled_advance.lower(*arguments).compile()
  assert copies(loop.as_text() or "") == 0

  # What keeps its argument must copy it, and that is seen.
  keeping = jax.jit(denoise.advance, static_argnames="method").lower(*arguments).compile()
  kept = [x for x in jax.tree.leaves(state.cache) if x.ndim == 4]
  assert copies(keeping.as_text() or "") == len(kept) > 0
