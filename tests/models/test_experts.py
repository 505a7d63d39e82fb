"""Sparse MLPs against loops over rows and experts in float64, and in everything that runs them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, heads, speculate, verifiers
from specjax.decoding.method import method as pair
from specjax.heads import drafting
from specjax.models import experts, int8, lora, sharding, transformer
from specjax.models.caches import CACHES
from specjax.models.compressed import compressed
from specjax.models.config import Config, Experts
from specjax.models.exits import sorted_exits
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.models.weights import dense
from specjax.sampling import Settings, request_keys

E, X, F = 12, 6, 5
LAYERS = {
  "mixtral": Experts(X, 2, F),
  "qwen3": Experts(X, 3, F, normalised=False),
  "one": Experts(X, 1, F, scale=0.5),
  "llada2": Experts(X, 2, F, "sigmoid", scale=2.5, groups=3, chosen_groups=2, shared_width=7),
  "blockffn": Experts(X, X, F, "relu", shared_width=4),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


@functools.cache
def layer(name: str):
  """(module, its random params)."""
  module = experts.SparseMLP(LAYERS[name], 1e-5, jax.nn.initializers.normal(0.5))
  params = module.init(jax.random.key(0), jnp.zeros((1, 1, E)))
  params = jax.tree.map(lambda x: x * 30 if x.std() < 0.03 and x.std() > 0 else x, params)
  if LAYERS[name].router == "sigmoid":
    params["params"]["router_bias"] = jnp.linspace(-1, 1, X)
  return module, params


def silu(x):
  return x / (1 + np.exp(-x))


def weights_of(c: Experts, p, x: np.ndarray) -> np.ndarray:
  """f64[X], what each expert's output of a row x [E] is multiplied with, by the definitions."""
  logits = p["router"] @ x
  if c.router == "relu":
    a = np.maximum(logits, 0)
    return a / np.sqrt((a * a).mean() + 1e-5) * p["router_norm"]["weight"]
  if c.router == "softmax":
    share = value = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
  else:
    share = 1 / (1 + np.exp(-logits))
    value = (share + p["router_bias"]).reshape(c.groups, -1)
    best = np.sort(value, 1)[:, -2:].sum(1)
    for group in np.argsort(-best)[c.chosen_groups :]:
      value[group] = -np.inf
    value = value.ravel()
  kept = np.zeros(X)
  for e in np.argsort(-value)[: c.chosen]:
    kept[e] = share[e]
  if c.normalised and (c.router == "softmax" or c.chosen > 1):
    kept = kept / kept.sum()
  return kept * c.scale


def by_hand(name: str, x: np.ndarray) -> np.ndarray:
  """f64[R, E] for rows x [R, E]."""
  c, params = LAYERS[name], layer(name)[1]["params"]
  p = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
  out = np.zeros(x.shape)
  for i, row in enumerate(x.astype(np.float64)):
    for e, weight in enumerate(weights_of(c, p, row)):
      hidden = p["expert_gate_up"][e] @ row
      hidden = silu(hidden[:F]) * hidden[F:] if c.router != "relu" else silu(hidden)
      out[i] += weight * (p["expert_down"][e] @ hidden)
    if c.shared_width:
      gate, up = np.split(p["shared"]["gate_up"] @ row, 2)
      out[i] += p["shared"]["down"] @ (silu(gate) * up)
  return out


def rows(count: int, seed=0) -> np.ndarray:
  return np.random.default_rng(seed).normal(size=(count, E)).astype(np.float32)


@pytest.mark.full(but=["70-*", "1-llada2"])
@every_layer
@pytest.mark.parametrize("count", [1, 7, 70, 300])
def test_a_layer_is_that_of_its_definition(name, count):
  module, params = layer(name)
  got = jax.jit(module.apply)(params, rows(count)[None])[0]
  np.testing.assert_allclose(got, by_hand(name, rows(count)), atol=2e-5, rtol=1e-4)


WAYS = {
  "one after the other": experts.one_after_the_other,
  "grouped": experts.grouped,
  "in parts": functools.partial(experts.grouped, parts=5),
  "blocks of 1": functools.partial(experts.in_blocks, size=1),
  "blocks of 4": functools.partial(experts.in_blocks, size=4),
  "blocks of 64": functools.partial(experts.in_blocks, size=64),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("weights", ["float", "int8", "biased"])
def test_every_way_and_its_gradients(way, weights):
  """Some pairs weigh nothing, one expert is chosen by nobody, and one output would overflow."""
  rng = np.random.default_rng(1)
  R, k = 23, 3
  x = jnp.asarray(rows(R))
  expert = np.stack([rng.permutation(X - 1)[:k] for _ in range(R)]).astype(np.int32)
  share = rng.random((R, k)).astype(np.float32) * (rng.random((R, k)) < 0.7)
  gate_up, down = rng.normal(size=(X, 2 * F, E)), rng.normal(size=(X, E, F))
  ours = jnp.asarray(gate_up, jnp.float32), jnp.asarray(down, jnp.float32)
  if weights == "int8":
    ours = tuple(int8.quantise(w, jnp.dtype(jnp.float32)) for w in ours)
    gate_up, down = (np.asarray(dense(w), np.float64) for w in ours)
  biases = np.zeros((X, 2 * F), np.float32), np.zeros((X, E), np.float32)
  more = {}
  if weights == "biased":  # and clamped, as GPT-OSS's are
    biases = tuple(rng.normal(size=x.shape).astype(np.float32) for x in biases)
    ours = tuple(experts.Biased(w, jnp.asarray(b)) for w, b in zip(ours, biases, strict=True))
    more["act"] = functools.partial(experts.clamped, 1.5, 1.7)

  def by_hand(x, share, gate_up, down):
    total = 0.0
    for e in range(X):
      gate, up = jnp.split(x @ gate_up[e].T + biases[0][e][None], 2, -1)
      own = jnp.where(expert == e, share, 0).sum(-1)
      hidden = jax.nn.silu(gate) * up
      if more:
        gate, up = jnp.where(gate > 1.5, 1.5, gate), jnp.maximum(jnp.minimum(up, 1.5), -1.5)
        hidden = gate / (1 + jnp.exp(-1.7 * gate)) * (1 + up)
      total += own[:, None] * (hidden @ down[e].T + biases[1][e][None])
    return total

  def loss(run, x, share, gate_up, down):
    y = run(x, share, gate_up, down)
    return (y * jnp.linspace(0, 1, y.size).reshape(y.shape)).sum(), y

  def ran(x, share, gate_up, down):
    return WAYS[way](x, experts.Chosen(jnp.asarray(expert), share), gate_up, down, **more)

  both = []
  for run, own in ((ran, ours), (by_hand, (jnp.float32(gate_up), jnp.float32(down)))):
    wanted = (0, 1, 2, 3) if weights == "float" else (0, 1) if weights == "biased" else (1,)
    graded = jax.jit(jax.value_and_grad(functools.partial(loss, run), wanted, has_aux=True))
    (_, y), gradients = graded(x, jnp.asarray(share), *own)
    is_chosen = share != 0  # what weighs nothing has no gradient: a router takes it out by itself
    gradients = [jnp.where(is_chosen, g, 0) if g.shape == share.shape else g for g in gradients]
    both.append((y, gradients))
  room = 2e-3 if weights == "int8" else 1e-4
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=room, rtol=room), *both)


@pytest.mark.full(but=["*-nan"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_does_not_reach_the_others(way, bad):
  gate_up, down = layer("mixtral")[1]["params"]["expert_gate_up"], jnp.ones((X, E, F))
  x = jnp.asarray(rows(9)).at[4].set(bad)
  chosen = experts.Chosen(jnp.tile(jnp.array([[1, 2]]), (9, 1)), jnp.full((9, 2), 0.5))
  y = WAYS[way](x, chosen, gate_up, down)
  assert not np.isfinite(y[4]).any() and np.isfinite(np.delete(y, 4, 0)).all()


@every_layer
def test_a_row_is_the_same_among_others(name):
  module, params = layer(name)
  apply = jax.jit(module.apply)
  together = apply(params, rows(90)[None])[0]
  for i in (0, 50, 89):
    alone = apply(params, rows(90)[None, i : i + 1])[0, 0]
    np.testing.assert_allclose(alone, together[i], atol=2e-5, rtol=1e-4)


SMALL = Config(
  vocab_size=32, width=16, layers=3, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=96
)
NETWORKS = {
  "mixtral": dataclasses.replace(SMALL, experts=Experts(4, 2, 12)),
  "llada2": dataclasses.replace(
    SMALL, rotary_dim=4, qk_norm=True,
    experts=Experts(6, 2, 8, "sigmoid", groups=3, chosen_groups=2, scale=2.5, shared_width=8,
                    dense_layers=1),
  ),
  "blockffn": dataclasses.replace(SMALL, experts=Experts(4, 4, 8, "relu")),
}  # fmt: skip
every_network = pytest.mark.parametrize("name", NETWORKS)
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [7, 8, 9, 10, 7, 8]]


@functools.cache
def random_params(name: str):
  params = jax.jit(functools.partial(transformer.init, NETWORKS[name]))(jax.random.key(0))
  return jax.tree.map(lambda p: p * 8.0 if p.ndim > 1 else p, params)


@functools.cache
def full_pass(name: str):
  """(params, ids i32[B, T]) -> logits [B, T, V] of one pass without a cache."""
  model = Transformer(NETWORKS[name])

  def run(params, ids):
    position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden, _ = model.apply(params, ids, position, attention_mask(jnp.zeros_like(ids), True))
    return model.apply(params, hidden, method="head")

  return jax.jit(run)


@pytest.mark.slow
@pytest.mark.full(but=["dense cache-llada2", "dense cache-blockffn", "compressed cache-mixtral"])
@every_network
@pytest.mark.parametrize("network", ["dense cache", "compressed cache"])
def test_paths_of_a_tree_through_the_cache_equal_the_full_pass(name, network):
  config, params, rng = NETWORKS[name], random_params(name), np.random.default_rng(0)
  t = target(config)
  if network == "compressed cache":
    t = compressed(config, CACHES["sinks"](4, 60))  # it keeps all of so short a text
  length, parent = np.array([12, 5], np.int32), np.array([0, 0, 0, 1, 1, 3, 2, 5])
  N = len(parent)
  paths = [[0]]
  for i in range(1, N):
    paths.append([*paths[parent[i]], i])
  depth = np.array([len(p) - 1 for p in paths], np.int32)
  mask = np.array([[j in p for j in range(N)] for p in paths])
  ids = rng.integers(32, size=(2, 14)).astype(np.int32)
  nodes = rng.integers(32, size=(2, N)).astype(np.int32)
  nodes[:, 0] = ids[np.arange(2), length - 1]
  cache, _ = jax.jit(t.prefill, static_argnums=3)(params, ids, length, 40)
  two = (np.broadcast_to(y, (2, *y.shape)) for y in (depth, mask))
  evaluation = jax.jit(t.evaluate)(params, cache, nodes, *two)
  texts = np.zeros((2 * N, 24), np.int32)
  for b in range(2):
    for i, path in enumerate(paths):
      text = [*ids[b, : length[b] - 1], *nodes[b, path]]
      texts[b * N + i, : len(text)] = text
  want = np.asarray(full_pass(name)(params, texts)).reshape(2, N, 24, -1)
  for b in range(2):
    for i in range(N):
      at = length[b] - 1 + depth[i]
      np.testing.assert_allclose(evaluation.logits[b, i], want[b, i, at], atol=1e-4)


def decode(t, params, drafter, temperature=0.0, head=()):
  """Tokens of 24 after each prompt."""
  rule = verifiers.target_only() if temperature else verifiers.greedy()
  method = pair(t, drafter, rule)
  settings = Settings(*(jnp.full(2, x) for x in (temperature, 0, 1.0, 0.0)))
  settings = settings._replace(top_k=jnp.zeros(2, jnp.int32))
  tokens = np.zeros((2, 7), np.int32)
  for b, p in enumerate(PROMPTS):
    tokens[b, : len(p)] = p
  length = jnp.array([len(p) for p in PROMPTS], jnp.int32)
  request = speculate.DecodeRequest(
    settings, request_keys(0, jnp.arange(2)), length + 24, jnp.array([-1])
  )
  weights = speculate.Weights(params, head)
  state = speculate.compiled_start(method, weights, jnp.asarray(tokens), length, request, 64)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(40))
  assert state.done.all()
  texts = np.asarray(state.context.tokens)
  return [texts[b, n : n + 24].tolist() for b, n in enumerate(map(len, PROMPTS))]


@pytest.mark.slow
@pytest.mark.full(but=["0.8-llada2", "0.8-blockffn"])
@every_network
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_changes_no_token(name, temperature):
  t, params = target(NETWORKS[name]), random_params(name)
  plain = decode(t, params, drafters.none(), temperature)
  assert decode(t, params, drafters.prompt_lookup(5), temperature) == plain
  assert plain[0] != plain[1]


@pytest.mark.slow
@pytest.mark.full(but=["llada2", "blockffn"])
@every_network
def test_some_sublayers(name):
  """Those that do not run leave the stream as it is; all of them are the network."""
  config, params = NETWORKS[name], random_params(name)
  t, ids = target(config), jnp.array([[3, 1, 4, 1, 5]])
  position, mask = jnp.arange(5)[None], jnp.tril(jnp.ones((1, 5, 5), bool))
  x = t.embed(params, ids)
  run = jax.jit(functools.partial(t.run_some, params))
  got, _, inputs = run(x, position, mask, None, jnp.ones((3, 2), bool))
  want, _ = t.run_layers(params, x, position, mask)
  np.testing.assert_allclose(got, want, atol=1e-4)
  got, *_ = run(x, position, mask, None, jnp.array([[1, 1], [0, 0], [0, 0]], bool))
  np.testing.assert_allclose(got, inputs[1], atol=1e-4)


@pytest.mark.slow
@pytest.mark.full(but=["llada2", "blockffn"])
@every_network
def test_layers_of_a_head_are_the_last_layer(name):
  config, params = NETWORKS[name], random_params(name)
  t = target(config)
  x = jax.random.normal(jax.random.key(1), (1, 4, config.width))
  position, mask = jnp.arange(4)[None], jnp.tril(jnp.ones((1, 4, 4), bool))
  own, _ = t.last_layer(params)
  got = t.make_layers().apply({"params": {"layer_0": own}}, x, position, mask)[0]
  np.testing.assert_allclose(got, t.run_layers(params, x, position, mask, start=2)[0], atol=1e-5)
  dense = t.make_layers(mlp_width=20).init(jax.random.key(0), x, position, mask)["params"]
  assert "experts" not in dense["layer_0"] and dense["layer_0"]["down"].shape == (16, 20)


@pytest.mark.full
def test_a_head_drafts_and_changes_no_token():
  t, params = target(NETWORKS["mixtral"]), random_params("mixtral")
  build, config = heads.HEADS["eagle"]
  head = build(t, config())
  weights = head.init(jax.random.key(1), params, None)
  assert "experts" in weights["params"]["layers"]["layer_0"]
  tree = drafting.drafter(head, ((0,), (1,), (0, 0), (0, 1)))
  assert decode(t, params, tree, head=weights) == decode(t, params, drafters.none())


@pytest.mark.slow
def test_exits():
  """With a least of 0 the first exit speaks, and all text still passes the layers behind it."""
  t, params = target(NETWORKS["mixtral"]), random_params("mixtral")
  every = decode(sorted_exits(t, 1.0, 1), params, drafters.none())
  assert every == decode(t, params, drafters.none())


@pytest.mark.slow
@pytest.mark.full(but=["llada2", "blockffn"])
@every_network
def test_8_bits(name):
  params = random_params(name)
  small = jax.tree.map(
    lambda x: int8.quantise(x, jnp.dtype(jnp.float32)) if x.ndim > 1 else x, params
  )
  wide = jax.tree.map(dense, small, is_leaf=lambda x: isinstance(x, int8.Int8))
  ids = np.random.default_rng(3).integers(32, size=(1, 12)).astype(np.int32)
  want = full_pass(name)(wide, ids)
  for p in (small, sharding.split(small)):
    np.testing.assert_allclose(full_pass(name)(p, ids), want, atol=1e-3 * np.abs(want).max())


@pytest.mark.slow
def test_updates_of_low_rank_leave_experts_alone():
  params = random_params("llada2")
  updates = lora.start(jax.random.key(1), params, 2)
  assert set(updates["layer_0"]) == {"qkv", "out", "gate_up", "down"}
  assert set(updates["layer_1"]) == {"qkv", "out"}
  updates = jax.tree.map(lambda x: x + 0.1, updates)
  ids = np.arange(6, dtype=np.int32)[None]
  merged = full_pass("llada2")(lora.merge(params, updates), ids)
  gated = full_pass("llada2")(lora.gate(params, updates, 0), ids)
  np.testing.assert_allclose(gated, merged, atol=1e-3)
  assert np.abs(merged - full_pass("llada2")(params, ids)).max() > 0.1


@pytest.mark.slow
@pytest.mark.full(but=["tpu-llada2"])
@every_network
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_mesh_changes_no_token(name, platform, mesh, monkeypatch):
  monkeypatch.setattr(experts, "platform", lambda: platform)
  monkeypatch.setattr(sharding, "_on_tpus", lambda _: platform == "tpu")
  config, params = NETWORKS[name], random_params(name)
  jax.clear_caches()
  t = target.__wrapped__(config)
  alone = decode(t, params, drafters.prompt_lookup(5))
  with jax.set_mesh(mesh):
    placed = sharding.place(params, mesh)
    own = placed["params"]["layer_2"]["experts"]["expert_gate_up"]
    assert own.sharding.shard_shape(own.shape)[0] == own.shape[0] // 2
    outputs_last = own.format.layout.major_to_minor == (0, 2, 1)
    assert outputs_last == (platform == "tpu")
    assert decode(t, placed, drafters.prompt_lookup(5)) == alone


@pytest.mark.slow
def test_gradients_on_a_mesh(mesh):
  params, model = random_params("llada2"), Transformer(NETWORKS["llada2"])
  ids = jnp.arange(8).reshape(2, 4)
  mask = jnp.tril(jnp.ones((2, 4, 4), bool))

  @jax.jit
  def gradient(params):
    return jax.grad(lambda p: (model.apply(p, ids, ids, mask)[0] ** 2).mean())(params)

  want = sharding.split(gradient(params))
  with jax.set_mesh(mesh):
    got = gradient(sharding.place(params, mesh))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-3), got, want)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"router": "luck"}, r"`router` must be one of softmax, sigmoid, relu, input, got 'luck'\."),
    ({"count": 0}, r"`count` must be between 1 and 2147483647, got 0\."),
    ({"chosen": 7}, r"`chosen` must be between 1 and 6 \(of 6 experts\), got 7\."),
    ({"router": "relu"}, r"`chosen` must be between 6 and 6 \(of 6 experts\), got 2\."),
    ({"router": "input", "groups": 3}, r"`groups` must be 1, or a divisor of count=6 .*, got 3\."),
    (
      {"router": "sigmoid", "groups": 4},
      r"`groups` must be 1, or a divisor of count=6 .*, got 4\.",
    ),
    (
      {"router": "sigmoid", "groups": 3, "chosen_groups": 4},
      r"`chosen_groups` must be between 1 and 3, got 4\.",
    ),
    ({"router": "sigmoid", "groups": 6, "chosen_groups": 1}, "`chosen` must be at most .*, got 2"),
    ({"scale": 0.0}, r"`scale` must be above 0, got 0\.0\."),
    ({"width": True}, r"`width` must be a whole number between 1 and 2147483647, got True\."),
    (
      {"shared_width": -1},
      r"`shared_width` must be between 0 and 2147483647 \(0 for no shared expert\), got -1\.",
    ),
  ],
)
def test_what_experts_may_not_be(change, words):
  with pytest.raises(ValueError, match=words):
    Experts(**{"count": 6, "chosen": 2, "width": 4} | change)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (
      {"experts": Experts(6, 2, 4, dense_layers=3)},
      r"`dense_layers` must be between 0 and 2, got 3\.",
    ),
    ({"rotary_dim": 5}, "`rotary_dim` must be even, .*, got 5"),
    ({"rotary_dim": 10}, r"`rotary_dim` must be between 2 and 8, got 10\."),
  ],
)
def test_what_a_network_may_not_be(change, words):
  with pytest.raises(ValueError, match=words):
    dataclasses.replace(SMALL, **change)
