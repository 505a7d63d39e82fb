"""DFlash and PARD against their formulas in NumPy, without a cache and one block at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_eagle import MODEL, C, E, H, K, V, block, gated, norm, rotate

from specjax.base import Features
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.dflash import DFlashConfig, dflash
from specjax.heads.dspark import DSparkConfig, dspark
from specjax.heads.pard import PARDConfig, pard
from specjax.models import transformer
from specjax.models.transformer import target

D, T, LAYERS, R = 3, 18, 2, 3
HEADS = {
  "dflash": dflash(target(MODEL), DFlashConfig(D, LAYERS, hidden_layers=(4, 0))),
  "dflash, window": dflash(
    target(MODEL), DFlashConfig(D, LAYERS, (4, 0), window=4, whole=(1,), from_root=True)
  ),
  "dspark": dspark(target(MODEL), DSparkConfig(D, LAYERS, (4, 0), rank=R)),
  "pard": pard(target(MODEL), PARDConfig(D, LAYERS)),
  "pard, one token": pard(target(MODEL), PARDConfig(1, LAYERS)),
}


@functools.cache
def weights(name: str):
  """(target params, head params), random."""
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(functools.partial(transformer.init, MODEL), jax.random.key(0))
  own = jax.eval_shape(HEADS[name].init, jax.random.key(0), shapes)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 + (len(x.shape) == 1), jnp.float32),
    (shapes, own),
  )


def heads_of(w, x, positions):
  """q [N, H, C], k and v [N, K, C] of rows x [N, E]."""
  qkv = (x @ w["qkv"].T + w["qkv_bias"]).reshape(len(x), H + 2 * K, C)
  q, k, v = np.split(qkv, [H, H + K], axis=1)
  q, k = norm(q, w["q_norm"]["weight"]), norm(k, w["k_norm"]["weight"])
  turned = (
    np.array([[rotate(h, p) for h in row] for row, p in zip(y, positions, strict=True)])
    for y in (q, k)
  )
  return *turned, v


def dflash_block(w, embedding, states, text, depth: int, config):
  """The states [D, E] that follow the target's states [n, any] and a text of n + 1 tokens."""
  n, first = len(states), 0 if config.from_root else 1
  context = norm(states @ w["fc"].T, w["context_norm"]["weight"])
  x = np.stack([embedding[text[-1]], *[w["mask"]] * (depth - 1 + first)])
  for i in range(LAYERS):
    layer = w[f"layers_{i}"]["layer_0"]
    window = config.window if config.window and i not in config.whole else n + depth + 1
    _, seen, known = heads_of(layer, context, range(n))
    h = norm(x, layer["attention_norm"]["weight"])
    q, k, v = heads_of(layer, h, range(n, n + len(x)))
    k, v, out = np.concatenate([seen, k]), np.concatenate([known, v]), []
    for place, row in enumerate(q, n):
      heads = []
      near = np.arange(n + len(x)) > place - window
      for j, one in enumerate(row):
        group = j // (H // K)
        p = np.exp(k[near, group] @ one / C**0.5)
        heads.append(p / p.sum() @ v[near, group])
      out.append(layer["out"] @ np.concatenate(heads))
    x = x + out
    x = x + gated(norm(x, layer["mlp_norm"]["weight"]), layer["gate_up"], layer["down"])
  return norm(x, w["norm"]["weight"])[first:]


def pard_block(w, embedding, states, text, depth: int, config):
  """A language model over the text but for its first token, and masks."""
  x = np.stack([*embedding[text[1:]], *[w["mask"]] * (depth - 1)])
  for i in range(LAYERS):
    layer = w["layers"][f"layer_{i}"]
    x = block(layer, x, norm(x, layer["attention_norm"]["weight"]))
  return norm(x, w["norm"]["weight"])[-depth:]


BLOCKS = {"dflash": dflash_block, "dspark": dflash_block, "pard": pard_block}
CONFIGS = {
  "dflash": DFlashConfig(),
  "dflash, window": DFlashConfig(window=4, whole=(1,), from_root=True),
  "dspark": DSparkConfig(),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_published_formulas(name):
  head, (model, own) = HEADS[name], weights(name)
  rng = np.random.default_rng(1)
  segment = np.repeat(np.int32([[0, 1], [2, 2]]), (11, 7), axis=1)  # packed texts
  position = np.stack([[*range(11), *range(7)], range(T)]).astype(np.int32)
  tokens = rng.integers(0, V, (2, T)).astype(np.int32)
  hidden = rng.normal(size=(2, T, E)).astype(np.float32)
  layers = tuple(rng.normal(size=(2, T, E)).astype(np.float32) for _ in head.hidden_layers)
  at = np.array([[7, 0, 12], [0, 14, 2]], np.int32)
  examples = Examples(tokens, position, segment, Features(hidden, layers), at)
  got = jax.device_get(jax.jit(functools.partial(drafting.unroll, head))(own, model, examples))
  assert len(got) == head.depth
  w, embedding = (
    jax.tree.map(np.float64, jax.device_get(x))
    for x in (own["params"], model["params"]["embedding"])
  )
  for b, m in np.ndindex(at.shape):
    text = np.flatnonzero(segment[b] == segment[b, at[b, m]])
    seen = text[: at[b, m] - text[0] + 1]
    states = np.concatenate([np.zeros((len(seen), 0)), *(x[b, seen] for x in layers)], -1)
    text = tokens[b, [*seen, seen[-1] + 1]]
    want = BLOCKS[head.name](w, embedding, states, text, head.depth, CONFIGS.get(name))
    for d in range(head.depth):
      np.testing.assert_allclose(got[d][b, m, :E], want[d], rtol=1e-3, atol=1e-4)


def test_layers_that_the_target_lacks_are_refused():
  assert dflash(target(MODEL), DFlashConfig()).hidden_layers == (1, 2, 3)
  with pytest.raises(
    ValueError,
    match=(r"`hidden_layers` must be between 0 and 4, the target's layers, got \(5,\)\."),
  ):
    dflash(target(MODEL), DFlashConfig(hidden_layers=(5,)))


def test_dsparks_bigram_and_confidence():
  """logits = LM head of the block's state + U v(token before); sigmoid(c [state; v] + b)."""
  head, (model, own) = HEADS["dspark"], weights("dspark")
  rng = np.random.default_rng(2)
  block, tokens = rng.normal(size=(1, 4, E)).astype(np.float32), np.array([[3, 0, 5, 3]])
  state, _ = head.follow(own, model, jnp.asarray(block), None, jnp.asarray(tokens), 2)
  logits, odds = head.read(own, model, state, 2), head.log_odds(own, state)
  w = jax.tree.map(np.float64, jax.device_get(own["params"]))
  matrix = np.float64(target(MODEL).lm_head(model))
  for j, token in enumerate(tokens[0]):
    v = w["before"][token]
    want = matrix @ block[0, j] + w["bias"] @ v
    np.testing.assert_allclose(logits[0, j], want, rtol=1e-4, atol=1e-4)
    sure = w["confidence"][0] @ [*block[0, j], *v] + w["confidence_bias"][0]
    assert odds[0, j] == pytest.approx(sure, rel=1e-4)


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (DFlashConfig(window=0), r"`window` must be between 1 and \d+, got 0\."),
    (DFlashConfig(window=4, whole=(2,)), r"`whole` must be between 0 and 1 .the head's layers."),
    (DSparkConfig(rank=0), r"`rank` must be between 1 and \d+, got 0\."),
  ],
)
def test_windows_and_ranks_that_cannot_be_are_refused(config, message):
  build = dspark if isinstance(config, DSparkConfig) else dflash
  with pytest.raises(ValueError, match=message):
    build(target(MODEL), config)
