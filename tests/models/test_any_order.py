"""The two-stream network: one pass says what a pass per slot says, and nothing leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import any_subset
from specjax.diffusion.base import Canvas
from specjax.models.any_order import any_order
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.sampling import Settings, request_keys

V, MASK, L, B = 5, 4, 6, 2
CONFIG = Config(
  vocab_size=V, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=12, causal=False
)
MODEL = any_order(CONFIG, MASK)
JOINT, DRAFT = jax.jit(MODEL.joint), jax.jit(MODEL.draft)
ranks = np.array([[3, -1, 0, 2, 1, -1], [0, 4, 2, 3, 1, 5]], np.int32)  # nothing given in one row
TOKENS = np.random.default_rng(0).integers(0, MASK, (B, L)).astype(np.int32)


def random_params():
  z = jnp.zeros((1, 2), jnp.int32)
  module = Transformer(CONFIG)
  shapes = jax.eval_shape(module.init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


PARAMS = random_params()


def test_one_pass_says_what_a_pass_per_slot_says():
  got = JOINT(PARAMS, TOKENS, ranks < 0, ranks)
  np.testing.assert_allclose(np.exp(got).sum(-1), 1.0, rtol=1e-5)
  assert np.isneginf(got[..., MASK]).all()
  for r in range(L):
    want = DRAFT(PARAMS, np.where(ranks < r, TOKENS, 0), ranks < r, ranks)
    at = ranks == r
    np.testing.assert_allclose(got[at][:, :MASK], want[at][:, :MASK], rtol=1e-5, atol=1e-5)


def test_a_distribution_depends_on_lower_ranks_and_on_nothing_else():
  base = np.asarray(JOINT(PARAMS, TOKENS, ranks < 0, ranks))
  moved = 0
  for slot in range(L):
    tokens = TOKENS.copy()
    tokens[:, slot] = (tokens[:, slot] + 1) % MASK
    other = np.asarray(JOINT(PARAMS, tokens, ranks < 0, ranks))
    same = (other == base).all(-1)
    may = ranks > ranks[:, slot, None]
    given = ranks < 0  # these distributions mean nothing
    assert (same | may | given).all()
    moved += (~same & may).sum()
  assert moved == (ranks[:, :, None] > ranks[:, None]).sum()


def test_a_draft_depends_on_what_is_known_and_on_nothing_else():
  known = ranks < 2
  base = np.asarray(DRAFT(PARAMS, TOKENS, known, ranks))
  for slot in range(L):
    tokens = TOKENS.copy()
    tokens[:, slot] = (tokens[:, slot] + 1) % MASK
    same = (np.asarray(DRAFT(PARAMS, tokens, known, ranks)) == base).all(-1)
    np.testing.assert_array_equal(
      same[~known], np.broadcast_to(~known[:, slot, None], (B, L))[~known]
    )


@pytest.mark.slow
def test_the_loop_decodes_what_a_pass_per_slot_decodes():
  one = jnp.ones(B)
  greedy = Settings(0 * one, jnp.zeros(B, jnp.int32), one, 0 * one)
  canvas = Canvas(jnp.asarray(TOKENS), jnp.asarray(ranks >= 0), jnp.full(B, L))
  state = any_subset.compiled_start(canvas, jnp.asarray(ranks))
  np.testing.assert_array_equal(state.rank, ranks)
  request = any_subset.AnySubsetRequest(greedy, request_keys(0, np.arange(B)))
  state = any_subset.compiled_advance(MODEL, PARAMS, request, state, jnp.int32(99), guesses=3)

  want, slots = np.where(ranks < 0, TOKENS, 0), (ranks >= 0).sum(1)
  for r in range(L):
    best = np.argmax(DRAFT(PARAMS, want, ranks < r, ranks), -1)
    want = np.where(ranks == r, best, want)
  np.testing.assert_array_equal(state.tokens, want)
  assert (np.asarray(state.passes) <= slots).all()


def test_networks_that_cannot_see_both_sides_are_refused():
  with pytest.raises(
    ValueError, match=(r"`causal` must be False for a denoiser, which sees both sides, got True\.")
  ):
    any_order(Config(**{**vars(CONFIG), "causal": True}), MASK)
