"""A model with exits against passes over whole texts, and its drafts through the loop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Decoder, Model
from specjax.checkpoints import hf
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import train_words
from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.exits import WAITING, exits_of, sorted_exits
from specjax.models.transformer import Transformer, target
from specjax.models.trimmed import trim, trimmed
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import IID
from specjax.verifiers import block, greedy, recursive, target_only, token, traversal

V, B, L, S = 7, 3, 6, 64
CONFIG = Config(
  vocab_size=V, width=8, layers=L, heads=2, kv_heads=1, head_dim=4, mlp_width=12, max_length=S
)
LM = target(CONFIG)


def random_params(config: Config, seed: int = 0, scale: float = 1.0):
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(functools.partial(transformer.init, config), jax.random.key(0))
  return jax.tree.map(lambda x: jnp.asarray(scale * rng.normal(size=x.shape), jnp.float32), shapes)


PARAMS = random_params(CONFIG)


@functools.partial(jax.jit, static_argnames="exits")
def by_whole_texts(texts, exits):
  """f32[X, B, T, V], the logits of each exit after every token."""
  mask = jnp.tril(jnp.ones((1, *texts.shape[1:] * 2), bool)).repeat(len(texts), 0)
  place = jnp.broadcast_to(jnp.arange(texts.shape[1]), texts.shape)
  features, _ = Transformer(CONFIG).apply(
    PARAMS, texts, place, mask, hidden_layers=(*exits, L), method="features"
  )
  return jnp.stack([LM.head(PARAMS, LM.norm(PARAMS, x)) for x in features.hidden_layers])


def speaks(logits, least: float):
  """i[...], the first exit of logits [X, ..., V] that is sure, or the last."""
  p = np.exp(logits - logits.max(-1, keepdims=True))
  sure = (p / p.sum(-1, keepdims=True)).max(-1) >= least
  sure[-1] = True
  return sure.argmax(0)


PARENT, DEPTH = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 2], np.int32)
SEES = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
PATHS = np.array([[0, 1, 3], [0, 2, 2]], np.int32)  # of 3 and of 2 nodes


@pytest.mark.slow
@pytest.mark.full(but=["2"])
@pytest.mark.parametrize("every", [2, 3])
def test_a_token_is_that_of_the_first_sure_exit_whatever_waits(every):
  """Trees of 4 nodes; 0 to 3 are committed, and now and then text is cut off again."""
  least, rng = 0.5, np.random.default_rng(every)
  lm, exits = sorted_exits(LM, least, every), exits_of(L, every)
  texts = rng.integers(V, size=(B, S)).astype(np.int32)
  length = np.array([3, 9, 1], np.int32)
  cache, _ = lm.prefill(PARAMS, texts[:, :9], length, S)
  evaluate, commit = jax.jit(lm.evaluate), jax.jit(lm.commit)
  mask, depth = np.tile(SEES, (B, 1, 1)), np.tile(DEPTH, (B, 1))
  spoke, ran = set(), []
  for _ in range(24):
    nodes = rng.integers(V, size=(B, 4)).astype(np.int32)
    nodes[:, 0] = texts[np.arange(B), length - 1]
    got = evaluate(PARAMS, cache, nodes, depth, mask)
    ran.append([bool(x.ran) for x in got.kv[1]])
    for leaf in (1, 2, 3):  # the text on the way to it
      way = [0, leaf] if DEPTH[leaf] == 1 else [0, PARENT[leaf], leaf]
      whole = texts.copy()
      for b in range(B):
        whole[b, length[b] - 1 : length[b] - 1 + len(way)] = nodes[b, way]
      every_exit = np.asarray(by_whole_texts(whole, exits), np.float64)
      for b in range(B):
        at = every_exit[:, b, length[b] - 1 : length[b] - 1 + len(way)]
        who = speaks(at, least)
        spoke |= set(who.tolist())
        want = np.take_along_axis(at, who[None, :, None], 0)[0]
        np.testing.assert_allclose(got.logits[b, way], want, rtol=1e-3, atol=1e-3)
    short = rng.integers(2, size=B)
    path, rows = PATHS[short], rng.integers(4 - short).astype(np.int32)
    for b in range(B):
      texts[b, length[b] - 1 : length[b] - 1 + rows[b]] = nodes[b, path[b, : rows[b]]]
    cache = commit(cache, got.kv, path, rows)
    length = length + rows
    less = np.minimum(rng.integers(9, size=B) * (rng.random(B) < 0.2), length - 1)
    length = (length - less).astype(np.int32)
    cache = cache._replace(length=jnp.asarray(length - 1))
    if length.max() > S - 12:
      break
  assert spoke == set(range(len(exits) + 1))
  assert {tuple(x) for x in ran} >= {(True,) * len(exits), (False,) * len(exits)}


@pytest.mark.slow
@pytest.mark.parametrize(("least", "often"), [(1 / V, 1 / (WAITING + 1)), (1.0, 1.0)])
def test_layers_behind_a_sure_exit_run_only_to_make_room(least, often):
  lm = sorted_exits(LM, least)
  cache, _ = lm.prefill(PARAMS, jnp.zeros((1, 2), jnp.int32), jnp.array([2], jnp.int32), S)
  one, zero = jnp.ones((1, 1, 1), bool), jnp.zeros((1, 1), jnp.int32)

  @jax.jit
  def append(cache, token):
    got = lm.evaluate(PARAMS, cache, token[None, None], zero, one)
    return lm.commit(cache, got.kv, zero, jnp.array([1], jnp.int32)), [x.ran for x in got.kv[1]]

  ran = []
  for i in range(2 * (WAITING + 1)):
    cache, some = append(cache, jnp.int32(i % V))
    ran.append(some)
  np.testing.assert_allclose(np.mean(ran, 0), often)


@pytest.mark.slow
def test_layers_behind_an_exit_that_says_all_are_left_out():
  lm, texts = (
    sorted_exits(LM, 0),
    np.random.default_rng(4).integers(V, size=(B, 8)).astype(np.int32),
  )
  cache, _ = lm.prefill(PARAMS, texts[:, :4], jnp.full(B, 4, jnp.int32), S)
  depth = jnp.tile(jnp.arange(4, dtype=jnp.int32), (B, 1))
  mask = jnp.tile(jnp.tril(jnp.ones((4, 4), bool)), (B, 1, 1))
  first = lm.evaluate(PARAMS, cache, texts[:, 3:7], depth, mask)
  cache = lm.commit(cache, first.kv, depth, jnp.full(B, 4, jnp.int32))
  then = lm.evaluate(PARAMS, cache, texts[:, 7:], depth[:, :1], mask[:, :1, :1])
  assert len(cache.kv.k) == len(cache.kv.v) == 2 and not cache.waiting
  want = by_whole_texts(texts, exits_of(L, 2))[0][:, 3:]
  got = jnp.concatenate([first.logits, then.logits], 1)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_trimmed_model_has_exits():
  ids = jnp.asarray([1, 4, 5], jnp.int32)
  whole, some = sorted_exits(LM, 0.0), sorted_exits(trimmed(LM), 0.0)
  tokens, length = jnp.asarray([[3, 1, 4]]), jnp.asarray([3], jnp.int32)
  one, zero = jnp.ones((1, 1, 1), bool), jnp.zeros((1, 1), jnp.int32)
  logits = []
  for lm, params in ((whole, PARAMS), (some, trim(LM, PARAMS, ids))):
    cache, _ = lm.prefill(params, tokens, length, S)
    logits.append(lm.evaluate(params, cache, tokens[:, 2:], zero, one).logits)
  np.testing.assert_allclose(logits[1][..., ids], logits[0][..., ids], rtol=1e-5)


SMALL = dataclasses.replace(CONFIG, vocab_size=3, layers=2, max_length=16)
TABLE = table_model(3)


def by_rows(lm):
  """The model whose commit is not unrolled over the thousands of rows of a proof."""

  def commit(cache, kv, path, rows):
    alone = jax.tree.map(lambda x: x[:, None], (cache, kv, path, rows))
    return jax.tree.map(lambda x: x[:, 0], jax.vmap(lm.commit)(*alone))

  return dataclasses.replace(lm, commit=commit)


DRAFTED = sorted_exits(by_rows(target(SMALL)), 0.6, 1)
CHAIN, TREE = draft_model(DRAFTED, 3), draft_tree(DRAFTED, IID(((0,), (1,))))


@pytest.mark.slow
@pytest.mark.full(but=["*-token-2"])
@pytest.mark.parametrize(
  ("drafter", "rule", "rounds"),
  [
    *((CHAIN, rule(), 1) for rule in (token, block, recursive, traversal, target_only)),
    (draft_model(DRAFTED, 2), token(), 2), (CHAIN, greedy(), 2),
    *((TREE, rule(), 1) for rule in (recursive, traversal)),
  ],
  ids=lambda x: getattr(x, "name", str(x)),
)  # fmt: skip
def test_it_drafts_without_loss(drafter, rule, rounds):
  params = random_params(SMALL, 1)
  for seed, temperature in ((0, 0.7), (1, 1.0)):
    temperature *= rule.temperature == "any"
    case = Case(np.asarray(random_table(seed, 3)["logits"]), prompt=(0, 2), temperature=temperature)
    found = emitted_distribution(case, pair(TABLE, drafter, rule), params, rounds=rounds)
    assert total_variation(found, target_distribution(case)) < 1e-6


@pytest.mark.full
def test_one_drafter_serves_two_targets(tmp_path):
  """By name, with a threshold for each; the texts are those of plain decoding."""
  tokenizer = train_words(["a b c d e f g"])
  config = dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size)
  params = random_params(config, 2)
  hf.save(tmp_path / "sorted", config, params, tokenizer, dtype=jnp.float32)
  rng = np.random.default_rng(3)
  for name, least, temperature in (("one", 0.3, 0.0), ("other", 0.9, 0.8)):
    near = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32) / 20, params)
    model = Model(name, config, near, tokenizer, (), (), TEMPLATES["plain"])
    drafter = f"draft_model-4[{tmp_path}/sorted]/sorted-{least}"
    prompts = [[3, 1, 4], [2, 5]]
    plain, drafted = (
      Decoder(model, x, "target_only", temperature=temperature, batch=2)(prompts, 24)
      for x in ("none", drafter)
    )
    assert [r.tokens for r in plain] == [r.tokens for r in drafted]
    assert sum(r.passes for r in drafted) < sum(r.passes for r in plain)


@pytest.mark.parametrize(
  ("arguments", "words"),
  [((1.5,), r"`least` must be between 0 and 1, got 1\.5\."), ((0.5, L),
   r"`every` must be between 1 and 5, so that a model of 6.*got 6\."),
   ((0.5, 0), r"`every` must be between 1 and 5, so that a model of 6.*got 0\.")],
)  # fmt: skip
def test_impossible_exits_are_refused(arguments, words):
  with pytest.raises(ValueError, match=words):
    sorted_exits(LM, *arguments)


def test_it_has_no_layers_to_tap():
  with pytest.raises(
    ValueError,
    match=(
      r"`hidden_layers` must be \(\) for a model with exits, which shows no layers, got "
      r"\(1,\)\."
    ),
  ):
    sorted_exits(LM).prefill(PARAMS, None, None, 4, hidden_layers=(1,))
