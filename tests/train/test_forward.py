"""Passes over rows: who is seen, Dream's shift, and parts of one shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data.packing import pack
from specjax.models.config import Config
from specjax.models.transformer import Transformer, init
from specjax.train.recipe import forward

CONFIG = Config(
  vocab_size=20, width=8, layers=1, heads=1, kv_heads=1, head_dim=4, mlp_width=8, causal=False
)


@pytest.mark.slow
def test_a_shifted_model_says_a_slot_by_the_state_before_and_sees_what_is_used():
  params, rng = init(CONFIG, jax.random.key(0)), np.random.default_rng(0)
  tokens, used = (
    jnp.asarray(rng.integers(0, 20, (2, 6))),
    jnp.arange(6)[None] < jnp.array([[6], [4]]),
  )
  run = jax.jit(lambda t, shift: forward.states(Transformer(CONFIG), params, t, used, shift),
                static_argnums=1)  # fmt: skip
  plain, shifted = run(tokens, False), run(tokens, True)
  np.testing.assert_array_equal(shifted[:, 0], plain[:, 0])
  np.testing.assert_array_equal(shifted[:, 1:], plain[:, :-1])
  other = run(tokens.at[1, 4:].add(1), False)
  np.testing.assert_array_equal(other[:, :4], plain[:, :4])
  assert (run(tokens.at[1, 3].add(1), False)[1, 0] != plain[1, 0]).any()


def test_parts_have_one_shape_and_hold_every_row_once():
  rows = pack([([i + 1] * 5, [True] * 5) for i in range(7)], 5)
  found = list(forward.parts(rows, 3, "", first=3))
  assert [(i, n) for i, n, _ in found] == [(3, 3), (6, 1)]
  assert all(part.tokens.shape == (3, 5) for _, _, part in found)
  np.testing.assert_array_equal(found[1][2].tokens, [rows.tokens[6], [0] * 5, [0] * 5])
