"""The network against itself: through a cache, over trees, who sees whom, and what it allocates."""

import functools
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import KV, Cache
from specjax.checkpoints import hf
from specjax.models import cache as kv_cache
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.layers import Layers
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.models.writing import UNROLLED

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "hf"
NAMES = ("llama1", "llama3", "linear", "mistral", "qwen2", "qwen3")
ATOL = 2e-5
CAPACITY = 40
TINY = Config(
  vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=64
)


def random_params(config: Config, dtype=jnp.float32):
  params = transformer.init(config, jax.random.key(0))
  # Larger than at the start of training, so that attention is far from uniform.
  return jax.tree.map(lambda p: (p * 8.0 if p.ndim > 1 else p).astype(dtype), params)


@jax.jit(static_argnums=0)
def full_pass(config: Config, params, ids):
  """Logits [B, T, V] of one pass without a cache."""
  model = Transformer(config)
  position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
  hidden, _ = model.apply(params, ids, position, attention_mask(jnp.zeros_like(ids), config.causal))
  return model.apply(params, hidden, method="head")


@functools.cache
def jitted(config: Config):
  t = target(config)
  return jax.jit(t.prefill, static_argnums=3), jax.jit(t.evaluate), jax.jit(t.commit)


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request):
  return hf.load(FIXTURES / request.param)


def random_tree(rng, nodes: int):
  """parent, depth i32[N] and ancestors-or-self bool[N, N] of a random tree."""
  parent, depth, mask = np.zeros(nodes, np.int32), np.zeros(nodes, np.int32), np.eye(nodes) > 0
  for i in range(1, nodes):
    parent[i] = rng.integers(i)
    depth[i] = depth[parent[i]] + 1
    mask[i] |= mask[parent[i]]
  return parent, depth, mask


def path_to(parent, node: int) -> list[int]:
  path = [node]
  while path[0]:
    path.insert(0, int(parent[path[0]]))
  return path


@pytest.mark.full(but=["llama3", "mistral"])
def test_ragged_chain_through_the_cache_equals_the_full_pass(checkpoint):
  config, params = checkpoint.config, checkpoint.params
  prefill, evaluate, commit = jitted(config)
  ids = np.random.default_rng(1).integers(config.vocab_size, size=(3, 24)).astype(np.int32)
  want = np.asarray(full_pass(config, params, ids))
  length, N = np.array([1, 9, 14], np.int32), 5

  cache, features = prefill(params, ids, length, CAPACITY)
  got = Transformer(config).apply(params, features.hidden, method="head")
  for b, n in enumerate(length):
    np.testing.assert_allclose(got[b, :n], want[b, :n], atol=ATOL)

  depth = np.broadcast_to(np.arange(N, dtype=np.int32), (3, N))
  mask = np.broadcast_to(np.tril(np.ones((N, N), bool)), (3, N, N))
  for rows in ([5, 2, 0], [1, 5, 3], [5, 5, 5]):
    window = np.stack([ids[b, n - 1 : n - 1 + N] for b, n in enumerate(length)])
    evaluation = evaluate(params, cache, window, depth, mask)
    chex.assert_shape(evaluation.logits, (3, N, config.vocab_size))
    for b, n in enumerate(length):
      np.testing.assert_allclose(evaluation.logits[b], want[b, n - 1 : n - 1 + N], atol=ATOL)
    rows = np.array(rows, np.int32)
    cache = commit(cache, evaluation.kv, depth, rows)
    length = np.minimum(length + rows, 24 - N + 1)
    cache = cache._replace(length=jnp.asarray(length - 1))


@pytest.mark.full(but=["llama3-0", "mistral-0", "qwen3-1"])
@pytest.mark.parametrize("seed", range(2))
def test_every_path_of_a_tree_equals_the_full_pass(checkpoint, seed):
  config, params = checkpoint.config, checkpoint.params
  prefill, evaluate, commit = jitted(config)
  rng = np.random.default_rng(seed)
  B, N, T = 2, 8, 24
  length = np.array([12, 5], np.int32)
  ids = rng.integers(config.vocab_size, size=(B, 14)).astype(np.int32)
  trees = [random_tree(rng, N) for _ in range(B)]
  nodes = rng.integers(config.vocab_size, size=(B, N)).astype(np.int32)
  nodes[:, 0] = ids[np.arange(B), length - 1]
  depth, mask = (np.stack([tree[i] for tree in trees]) for i in (1, 2))

  cache, _ = prefill(params, ids, length, CAPACITY)
  evaluation = evaluate(params, cache, nodes, depth, mask)

  texts = np.zeros((B * N, T), np.int32)
  for b, (parent, _, _) in enumerate(trees):
    for i in range(N):
      path = path_to(parent, i)
      text = np.concatenate([ids[b, : length[b] - 1], nodes[b, path]])
      texts[b * N + i, : len(text)] = text
  want = np.asarray(full_pass(config, params, texts)).reshape(B, N, T, -1)
  for b, n in enumerate(length):
    for i in range(N):
      last = n - 1 + depth[b, i]
      np.testing.assert_allclose(evaluation.logits[b, i], want[b, i, last], atol=ATOL)

  # Committing the deepest path leaves the cache that a plain run over that text has.
  A = 6
  path, rows = np.zeros((B, A), np.int32), np.zeros(B, np.int32)
  plain = np.zeros((B, T), np.int32)
  for b, (parent, d, _) in enumerate(trees):
    deepest = int(d.argmax())
    nodes_on = path_to(parent, deepest)[:A]
    rows[b] = len(nodes_on)
    path[b] = nodes_on + [nodes_on[-1]] * (A - len(nodes_on))
    plain[b] = texts[b * N + deepest]
  got = commit(cache, evaluation.kv, path, rows)
  expected, _ = prefill(params, plain, length + rows, CAPACITY)
  np.testing.assert_array_equal(got.length, expected.length)
  for mine, theirs in zip(jax.tree.leaves(got.kv), jax.tree.leaves(expected.kv), strict=True):
    for b, n in enumerate(np.asarray(got.length)):
      np.testing.assert_allclose(mine[b, :, :n], theirs[b, :, :n], atol=ATOL)


FEW, MANY = 4, 4 * UNROLLED  # rows written one after the other, and by a loop


@pytest.mark.parametrize(
  ("dtype", "B"), [(jnp.float32, FEW), (jnp.bfloat16, FEW), (jnp.float32, MANY)]
)
def test_commit_writes_the_window_and_nothing_else(dtype, B):
  rng = np.random.default_rng(0)
  K, S, C, N, A = 2, 16, 4, 6, 3

  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape), dtype)

  old, fresh = (
    KV(*(tuple(draw(B, K, rows, C) for _ in range(2)) for _ in range(2))) for rows in (S, N)
  )
  length, rows = (np.tile(np.array(x, np.int32), B // 4) for x in ([0, 5, 13, 7], [3, 1, 3, 0]))
  path = np.tile(np.array([[0, 2, 5], [0, 0, 0], [0, 4, 1], [0, 3, 3]], np.int32), (B // 4, 1))
  new = jax.jit(kv_cache.commit)(Cache(old, jnp.asarray(length)), fresh, path, rows)
  np.testing.assert_array_equal(new.length, length + rows)
  leaves = zip(*map(jax.tree.leaves, (old, fresh, new.kv)), strict=True)
  for before, source, after in leaves:
    want = np.array(before)
    for b in range(B):
      want[b, :, length[b] : length[b] + A] = np.asarray(source)[b][:, path[b]]
    np.testing.assert_array_equal(np.asarray(after), want)


@pytest.mark.parametrize("B", [FEW, MANY])
def test_renew_writes_the_rows_that_are_named(B):
  rng = np.random.default_rng(0)
  K, S, C, N = 2, 9, 4, 3
  old, fresh = (rng.normal(size=(B, K, rows, C)).astype(np.float32) for rows in (S, N))
  start, rows = rng.integers(0, S - N + 1, B).astype(np.int32), rng.random((B, N)) < 0.5
  got = jax.jit(kv_cache.renew)((old,), (fresh,), start, rows)[0]
  want = old.copy()
  for b, n in zip(*np.nonzero(rows), strict=True):
    want[b, :, start[b] + n] = fresh[b, :, n]
  np.testing.assert_array_equal(got, want)


def test_a_write_does_not_grow_with_the_batch():
  def lines(B: int) -> int:
    kv = KV(*(tuple(jnp.zeros((B, 1, 4, 2)) for _ in range(3)) for _ in range(2)))
    zeros = jnp.zeros(B, jnp.int32)
    lowered = jax.jit(kv_cache.commit).lower(Cache(kv, zeros), kv, zeros[:, None], zeros)
    return lowered.as_text().count("\n")

  assert lines(256) == lines(UNROLLED + 1)


@pytest.mark.parametrize(
  ("change", "sees"),
  [
    ({}, lambda i, j: j <= i),
    ({"window": 3}, lambda i, j: (i - 3 < j) & (j <= i)),
    ({"causal": False}, lambda i, j: i == i),
  ],
  ids=["causal", "window", "bidirectional"],
)
def test_who_sees_whom(change, sees):
  config = Config(**{**TINY.__dict__, "layers": 1, **change})
  model, params, T = Transformer(config), random_params(config), 6
  position = jnp.arange(T)[None]
  mask = attention_mask(jnp.zeros((1, T), jnp.int32), config.causal)

  def outputs(x):
    return model.apply(params, x, position, mask, method="run_layers")[0].sum((0, -1))

  x = jax.random.normal(jax.random.key(1), (1, T, config.width))
  touched = np.abs(jax.jit(jax.jacobian(outputs))(x)[:, 0]).sum(-1) > 1e-7
  np.testing.assert_array_equal(touched, sees(*np.indices((T, T))))


def test_bidirectional_prefill_sees_the_whole_text():
  config = Config(**{**TINY.__dict__, "causal": False})
  params = random_params(config)
  ids = np.random.default_rng(0).integers(32, size=(2, 9)).astype(np.int32)
  prefill, *_ = jitted(config)
  _, features = prefill(params, ids, np.array([9, 9], np.int32), 12)
  got = Transformer(config).apply(params, features.hidden, method="head")
  np.testing.assert_allclose(got, full_pass(config, params, ids), atol=ATOL)
  changed = full_pass(config, params, np.concatenate([ids[:, :-1], (ids[:, -1:] + 1) % 32], 1))
  assert (np.abs(got - changed).max(-1) > 1e-4).all()


@pytest.mark.parametrize("tied", [True, False])
def test_the_pieces_are_the_network_and_taps_lie_between_them(tied):
  config = Config(**{**TINY.__dict__, "layers": 3, "tied": tied})
  t, params = target(config), random_params(config)
  rng = np.random.default_rng(0)
  ids = rng.integers(32, size=(2, 9)).astype(np.int32)
  length, hidden_layers = np.array([9, 4], np.int32), (3, 0, 1)

  @jax.jit
  def streams(ids, position, mask, cache=None):
    """The stream before each layer and at the end, layer by layer; the whole in one; its KV."""
    x = [t.embed(params, ids)]
    for i in range(config.layers):
      x.append(t.run_layers(params, x[-1], position, mask, cache, start=i, stop=i + 1)[0])
    return x, *t.run_layers(params, x[0], position, mask, cache)

  def check(features, x):
    np.testing.assert_allclose(features.hidden, t.norm(params, x[-1]), atol=ATOL)
    for got, i in zip(features.hidden_layers, hidden_layers, strict=True):
      np.testing.assert_allclose(got, x[i], atol=ATOL)

  position = np.broadcast_to(np.arange(9, dtype=np.int32), (2, 9))
  x, whole, _ = streams(ids, position, attention_mask(jnp.zeros_like(ids), causal=True))
  np.testing.assert_allclose(whole, x[-1], atol=ATOL)
  cache, features = jax.jit(t.prefill, static_argnums=(3, 4))(
    params, ids, length, 24, hidden_layers
  )
  check(features, x)

  _, depth, mask = (np.stack([y] * 2) for y in random_tree(rng, 5))
  nodes = rng.integers(32, size=(2, 5)).astype(np.int32)
  evaluation = jax.jit(t.evaluate, static_argnums=5)(
    params, cache, nodes, depth, mask, hidden_layers
  )
  x, whole, kv = streams(nodes, length[:, None] - 1 + depth, mask, cache)
  check(evaluation.features, x)
  chex.assert_trees_all_close(evaluation.kv, kv, atol=ATOL)
  logits = np.asarray(evaluation.features.hidden) @ np.asarray(t.lm_head(params)).T
  np.testing.assert_allclose(evaluation.logits, logits, atol=ATOL)


@pytest.mark.slow
def test_earlier_rows_are_seen_like_rows_of_the_same_call():
  """Layers over six nodes at once, and over the last three with the keys of the first three."""
  params, rng = random_params(TINY), np.random.default_rng(0)
  _, depth, mask = random_tree(rng, 6)
  t = target(TINY)
  ids = rng.integers(32, size=(1, 9)).astype(np.int32)
  cache, _ = t.prefill(params, ids, np.array([7], np.int32), 16)
  x = jax.random.normal(jax.random.key(1), (1, 6, TINY.width))
  layers = {k: v for k, v in params["params"].items() if k.startswith("layer_")}

  @jax.jit(static_argnames="rows")
  def run(rows, earlier=None):
    part, seen = slice(*rows), jnp.asarray(mask[None, slice(*rows), : rows[1]])
    position = cache.length[:, None] + jnp.asarray(depth[None, part])
    return Layers(TINY).apply({"params": layers}, x[:, part], position, seen, cache, earlier)[:2]

  whole, _ = run((0, 6))
  first, kv = run((0, 3))
  second, _ = run((3, 6), kv)
  assert mask[3:, 1:3].any()
  np.testing.assert_allclose(jnp.concatenate([first, second], 1), whole, atol=ATOL)


def test_segments_do_not_see_each_other():
  params = random_params(TINY)
  ids = np.random.default_rng(0).integers(32, size=(1, 10)).astype(np.int32)
  segment = np.array([[0] * 4 + [1] * 6], np.int32)
  position = np.array([[*range(4), *range(6)]], np.int32)
  model = Transformer(TINY)
  mask = attention_mask(jnp.asarray(segment), causal=True)
  hidden, _ = jax.jit(model.apply)(params, ids, position, mask)
  got = model.apply(params, hidden, method="head")
  np.testing.assert_allclose(got[:, :4], full_pass(TINY, params, ids[:, :4]), atol=ATOL)
  np.testing.assert_allclose(got[:, 4:], full_pass(TINY, params, ids[:, 4:]), atol=ATOL)


def test_bfloat16_keeps_its_dtype_and_stays_near_float32():
  params = random_params(TINY)
  half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
  ids = np.random.default_rng(0).integers(32, size=(2, 8)).astype(np.int32)
  prefill, evaluate, _ = jitted(TINY)
  cache, _ = prefill(half, ids, np.array([8, 6], np.int32), 12)
  assert {x.dtype for x in jax.tree.leaves(cache.kv)} == {jnp.dtype(jnp.bfloat16)}
  depth = np.zeros((2, 1), np.int32)
  roots = np.array([[ids[0, 7]], [ids[1, 5]]], np.int32)
  evaluation = evaluate(half, cache, roots, depth, np.ones((2, 1, 1), bool))
  assert evaluation.logits.dtype == jnp.float32
  assert evaluation.features.hidden.dtype == jnp.bfloat16
  want = np.asarray(full_pass(TINY, params, ids))
  np.testing.assert_allclose(evaluation.logits[0, 0], want[0, 7], atol=0.15)
  np.testing.assert_allclose(evaluation.logits[1, 0], want[1, 5], atol=0.15)


@pytest.mark.parametrize(
  ("N", "walk"),
  [
    (4, True),
    (1, False),
  ],
  ids=["path from logits", "constant path"],
)  # fmt: skip
def test_a_decoding_loop_does_not_copy_the_cache(N, walk):
  B, S = 2, 8192
  config = Config(**{**TINY.__dict__, "head_dim": 64})
  t, params = target(config), random_params(config)
  depth = jnp.broadcast_to(jnp.arange(N), (B, N))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((N, N), bool)), (B, N, N))

  def step(carry):
    cache, tokens = carry
    evaluation = t.evaluate(params, cache, tokens, depth, mask)
    best = evaluation.logits.argmax(-1).astype(jnp.int32)
    count = (tokens[:, 1:] == best[:, :-1]).astype(jnp.int32).sum(-1)
    path = jnp.minimum(depth, count[:, None]) if walk else depth
    rows = jnp.where(jnp.isnan(evaluation.logits).any((1, 2)), 0, count + 1)
    return t.commit(cache, evaluation.kv, path, rows), best

  def decode(cache, tokens):
    def unfinished(carry):
      return (carry[0].length < S - N).all()

    return jax.lax.while_loop(unfinished, step, (cache, tokens))

  array = jax.ShapeDtypeStruct((B, config.kv_heads, S, config.head_dim), jnp.float32)
  kv = KV((array,) * config.layers, (array,) * config.layers)
  cache = Cache(kv, jax.ShapeDtypeStruct((B,), jnp.int32))
  tokens = jax.ShapeDtypeStruct((B, N), jnp.int32)
  compiled = jax.jit(decode, donate_argnums=0).lower(cache, tokens).compile()
  size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kv))
  assert compiled.memory_analysis().temp_size_in_bytes < size / 4


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"kv_heads": 3}, "`heads` must be a multiple of kv_heads=3, got 4"),
    ({"head_dim": 7}, "`head_dim` must be even, .*, got 7"),
  ],
)
def test_an_impossible_config_names_the_field(change, words):
  with pytest.raises(ValueError, match=words):
    Config(**{**TINY.__dict__, **change})
