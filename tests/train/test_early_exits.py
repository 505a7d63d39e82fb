"""The loss of early exits: what each weighs, what is dropped, and that they learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from options import changed

import specjax
from specjax.data.packing import PackedRows
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask, init
from specjax.train import lm
from specjax.train.recipe import early_exits
from specjax.train.recipe.early_exits import EarlyExits

V, L, B, T = 16, 4, 3, 6
CONFIG = Config(
  vocab_size=V, width=8, layers=L, heads=2, kv_heads=1, head_dim=4, mlp_width=12, max_length=16
)
NETWORK = Transformer(CONFIG)
PARAMS = jax.tree.map(
  lambda x: x * 8 + 0.01, jax.jit(functools.partial(init, CONFIG))(jax.random.key(0))
)
NOISE = np.random.default_rng(0)
ROWS = PackedRows(
  NOISE.integers(V, size=(B, T)).astype(np.int32), np.arange(T, dtype=np.int32)[None].repeat(B, 0),
  np.zeros((B, T), np.int32), NOISE.random((B, T)) < 0.8,
)  # fmt: skip


def test_rates_and_weights_are_the_published_ones():
  np.testing.assert_allclose(early_exits.dropout(3, 0.2), [0, 0.2 * (2**0.5 - 1), 0.2])
  np.testing.assert_allclose(early_exits.weights(4, 0.5), [0, 0.5, 1.5, 3 + 0.5 * 3])
  assert early_exits.dropout(1, 0.2).tolist() == [0.0]


def nll(layer: int) -> float:
  """The loss of the exit behind a layer (from 0), by the network's own pass."""
  mask = attention_mask(jnp.asarray(ROWS.segment), True)
  features, _ = NETWORK.apply(
    PARAMS, ROWS.tokens, ROWS.position, mask, hidden_layers=(layer + 1,), method="features"
  )
  hidden = NETWORK.apply(PARAMS, features.hidden_layers[0][:, :-1], method="final_norm")
  logits = NETWORK.apply(PARAMS, hidden, method="head")
  each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(ROWS.tokens[:, 1:]))
  keep = ROWS.mask[:, 1:].astype(np.float32)
  return float((each * keep).sum() / keep.sum())


@pytest.mark.full
@pytest.mark.parametrize("every", [1, 2, 3, 8])
def test_the_loss_is_the_weighted_one_of_every_so_many_exits(every):
  options = EarlyExits(exit_loss=0.5, exit_every=every)
  loss = jax.jit(early_exits.loss_fn, static_argnums=(1, 4))
  weights, each = early_exits.weights(L, 0.5), [nll(i) for i in range(L)]
  possible = []
  for start in range(every):
    exits = [*range(start, L - 1, every), L - 1]
    possible.append(sum(weights[i] * each[i] for i in exits) / sum(weights[i] for i in exits))
  found = set()
  for seed in range(12):
    got, figures = loss(PARAMS, NETWORK, ROWS, jax.random.key(seed), options)
    near = np.abs(np.array(possible) - float(got))
    assert near.min() < 1e-4
    found.add(int(near.argmin()))
    assert float(figures["last"]) == pytest.approx(each[-1], abs=1e-4)
  assert len(found) > 1 or every == 1


@pytest.mark.full
def test_a_dropped_layer_leaves_its_rows_as_they_were():
  drop = jnp.zeros((L, B), bool).at[2, 0].set(True).at[1:, 1].set(True)
  behind = early_exits.streams(NETWORK, PARAMS, ROWS, drop)
  whole = early_exits.streams(NETWORK, PARAMS, ROWS, jnp.zeros((L, B), bool))
  np.testing.assert_array_equal(behind[2, 0], behind[1, 0])
  np.testing.assert_array_equal(behind[3, 1], behind[0, 1])
  np.testing.assert_allclose(behind[:, 2], whole[:, 2], atol=1e-5)
  assert not np.allclose(behind[3, 0], whole[3, 0], atol=1e-3)


@pytest.mark.full
def test_a_model_goes_on_and_its_exits_learn(lm_run, tmp_path):
  options = changed(
    lm_run, out=str(tmp_path), start=f"{lm_run.out}/model", exit_loss=1.0, layer_dropout=0.1,
    steps=6,
  )  # fmt: skip
  lm.main(options)
  before, after = (specjax.load(f"{out}/model") for out in (lm_run.out, tmp_path))
  assert after.config == before.config
  assert after.encode("3 pens") == before.encode("3 pens")
  assert not np.array_equal(after.params["params"]["embedding"],
                            before.params["params"]["embedding"])  # fmt: skip


def test_a_model_without_room_is_refused(lm_run, tmp_path):
  options = changed(lm_run, out=str(tmp_path), start="gsm8k-7m", length=1000)
  with pytest.raises(
    ValueError,
    match=(
      "`start` must be a causal model with a tokenizer and at least 1000 positions, got "
      r"'gsm8k-7m'\."
    ),
  ):
    lm.main(options)
