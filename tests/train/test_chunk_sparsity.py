"""The losses by which tokens share experts, against loops over tokens, and a training with them."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed

import specjax
from specjax.data.packing import PackedRows
from specjax.eval.experts_read import choices
from specjax.models.config import Config, Experts
from specjax.models.transformer import Transformer, init
from specjax.train import lm
from specjax.train.recipe import chunk_sparsity
from specjax.train.recipe.chunk_sparsity import ChunkSparsity

V, L, B, T, X, C = 16, 2, 2, 7, 5, 3
CONFIG = Config(
  vocab_size=V, width=8, layers=L, heads=2, kv_heads=1, head_dim=4, mlp_width=12, max_length=16,
  experts=Experts(X, X, 6, "relu"),
)  # fmt: skip
PARAMS = jax.tree.map(
  lambda x: x * 8 + 0.01, jax.jit(functools.partial(init, CONFIG))(jax.random.key(0))
)
NOISE = np.random.default_rng(1)
SEGMENT = np.array([[0, 0, 0, 1, 1, 1, -1], [0, 0, 0, 0, -1, -1, -1]], np.int32)
POSITION = np.array([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 3, 0, 0, 0]], np.int32)
ROWS = PackedRows(
  NOISE.integers(V, size=(B, T)).astype(np.int32), POSITION, SEGMENT, SEGMENT >= 0
)  # fmt: skip
LOGITS = (NOISE.normal(size=(L, B, T, X)) * 0.01).astype(np.float32)
LOGITS[0, 0, 1] = -0.01  # a token that activates nothing
LOGITS[1, 1, 2, 1:] = -0.01  # and one that activates one expert alone


def test_the_losses_are_those_of_loops():
  log_odds = 100.0 * LOGITS.astype(np.float64)
  p = 1 / (1 + np.exp(-log_odds))
  near, chunk, activated = [], [], []
  for layer in range(L):
    for b in range(B):
      unused = np.ones((-(-T // C), X))
      for t in range(T):
        if SEGMENT[b, t] < 0:
          continue
        positive = np.maximum(LOGITS[layer, b, t].astype(np.float64), 0)
        activated.append((positive > 0).mean())
        unused[t // C] *= 1 - positive / max(positive.sum(), 1e-6)
        if t + 1 < T and SEGMENT[b, t + 1] == SEGMENT[b, t]:
          one, two = p[layer, b, t], p[layer, b, t + 1]
          near.append(-(two * np.log(one) + (1 - two) * np.log(1 - one)).mean())
      chunk.append(1 - unused)
  options = ChunkSparsity(locality_loss=0.5, chunk_loss=2.0, chunk_length=C)
  terms, figures = chunk_sparsity.terms(jnp.asarray(LOGITS), ROWS, options)
  want = {"locality": np.mean(near), "chunk": np.mean(chunk), "activated": np.mean(activated)}
  got = {name: float(getattr(x, "value", x)) for name, x in figures.items()}
  assert got == pytest.approx(want, rel=1e-5)
  assert figures["locality"].weight == 7 and figures["activated"].weight == 10
  assert float(terms["locality"].value) == pytest.approx(0.5 * want["locality"], rel=1e-5)
  assert float(terms["chunk"]) == pytest.approx(2 * want["chunk"], rel=1e-5)


def test_gradients_are_finite_where_one_expert_or_none_is_activated():
  def loss(logits):
    terms, _ = chunk_sparsity.terms(logits, ROWS, ChunkSparsity(locality_loss=1, chunk_loss=1))
    return terms["locality"].value + terms["chunk"]

  slope = np.asarray(jax.grad(loss)(jnp.asarray(LOGITS)))
  assert np.isfinite(slope).all() and (slope[:, SEGMENT >= 0] != 0).any(-1).all()
  assert not slope[:, SEGMENT < 0].any()


def test_what_is_read_is_what_the_network_says():
  network = Transformer(CONFIG)
  hidden, logits = chunk_sparsity.read(network, PARAMS, ROWS)
  assert hidden.shape == (B, T, 8)
  # The first document of a row is a text alone.
  sent = np.asarray(choices(CONFIG, PARAMS, jnp.asarray(ROWS.tokens[:, :3])))
  assert ((np.asarray(logits)[:, :, :3] > 0) == sent).all() and 0 < sent.mean() < 1
  plain, _ = lm.loss_fn(PARAMS, network, ROWS)
  assert float(lm.cross_entropy(PARAMS, network, ROWS, hidden)[0]) == float(plain)


@pytest.mark.full
def test_a_model_learns_to_share_experts(tiny, tmp_path):
  shape = {"experts": 8, "router": "relu", "mlp_width": 16, "steps": 80}
  scales = {"locality_loss": 0.1, "chunk_loss": 2.0, "chunk_length": 8, "parts": 2}
  last = []
  for name, own in (("plain", {}), ("sparse", scales)):
    config = changed(tiny, out=str(tmp_path / name), **shape, **own)
    lm.main(config)
    model = specjax.load(f"{config.out}/model")
    tokens = jnp.asarray([model.encode("3 pens and 4? 3 + 4 = 7.")])
    last.append(np.asarray(choices(model.config, model.params, tokens)).any(2).mean())
  with open(tmp_path / "sparse" / "metrics.jsonl") as file:
    lines = [json.loads(line) for line in file]
  for name in ("nats", "locality", "chunk"):
    assert np.mean([x[name] for x in lines[-5:]]) < lines[0][name]
  assert last[1] < 0.8 * last[0]


WRONG = {
  "a dense network": ({"locality_loss": 0.1}, "`locality_loss` must be 0 for a network without"),
  "another router": ({"chunk_loss": 0.1, "experts": 4}, "`chunk_loss` must be 0 for a network"),
  "early exits": (
    {"chunk_loss": 0.1, "experts": 4, "router": "relu", "exit_loss": 0.1},
    "`locality_loss` and `chunk_loss` must be 0 with layer_dropout, exit_loss or own_tokens, got",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_said(name, tiny, tmp_path):
  options, said = WRONG[name]
  with pytest.raises(ValueError, match=said):
    lm.main(changed(tiny, out=str(tmp_path), **options))
