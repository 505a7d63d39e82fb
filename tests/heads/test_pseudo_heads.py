"""Heads that ride in the target's pass, against a plain NumPy network that runs one text at a time.

What they share with other heads is in test_every_head.py.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.base import Context
from specjax.decoding.method import method as pair
from specjax.drafters.stateless import none
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.hidden_transfer import HiddenTransferConfig, hidden_transfer
from specjax.heads.lexical_units import lexical_units
from specjax.heads.masked_slots import MaskedSlotsConfig, masked_slots
from specjax.heads.ppd import PPDConfig, ppd
from specjax.heads.pseudo_rows import Guesses, run_with_pseudo_rows
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.rotary import rope_frequencies
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.sampling import Noise, Settings, request_keys
from specjax.trees.base import Guesser, independent
from specjax.trees.by_guesses import ByGuesses
from specjax.trees.prompt_token_budget import share_rows
from specjax.trees.static import from_choices
from specjax.trees.structure import ancestors
from specjax.verifiers import target_only, unverified

V, K, T, BUDGET = 24, 3, 8, 12
MODEL = Config(
  vocab_size=V, width=16, layers=4, heads=4, kv_heads=2, head_dim=8, mlp_width=24, tied=False,
  max_length=64,
)  # fmt: skip
TARGET = target(MODEL)
CONFIGS = {
  "hidden_transfer": HiddenTransferConfig(),
  "up": HiddenTransferConfig(layers=(1, 2, 3)),
  "shared": HiddenTransferConfig(layers=(2, 2, 3)),
  "any order": HiddenTransferConfig(layers=(3, 1, 2)),
  "ppd": PPDConfig(),
  "ensemble": PPDConfig(ensemble=2),
  "masked_slots": MaskedSlotsConfig(rank=2),
  "masks alone": MaskedSlotsConfig(rank=0),
}


def random_like(params, seed: int):
  rng = np.random.default_rng(seed)

  def draw(x):
    scale, mean = (1 / 4, 0) if x.ndim > 1 else (1 / 8, 1)
    return jnp.asarray(mean + rng.normal(size=x.shape) * scale, x.dtype)

  return jax.tree.map(draw, params)


def random_target():
  return random_like(
    jax.eval_shape(functools.partial(transformer.init, MODEL), jax.random.key(0)), 0
  )


WEIGHTS = random_target()


@functools.cache
def head(name: str):
  """(Head, params, layers at which rows enter)."""
  config = CONFIGS[name]
  if isinstance(config, PPDConfig):
    made, layers = ppd(target(MODEL), config), (0,) * K
  elif isinstance(config, MaskedSlotsConfig):
    made, layers = masked_slots(target(MODEL), config), (0,) * K
  else:
    made, layers = hidden_transfer(target(MODEL), config), config.layers or (3,) * K
  return made, random_like(made.init(jax.random.key(1), WEIGHTS), 1), layers


def plain_norm(x, weight):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + MODEL.norm_epsilon) * weight


def plain_layer(i: int, x, position, sees, updates=None, first=0):
  """One layer of the target over rows x [R, E], row a seeing the rows of the set sees[a].

  With low-rank `updates` of the layer, rows from `first` on have matrices of their own.
  """
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), WEIGHTS["params"][f"layer_{i}"])
  own = {name: p[name] + u["up"] @ u["down"] for name, u in (updates or {}).items()}

  def times(name, y):
    return np.stack([(own if a >= first and own else p)[name] @ row for a, row in enumerate(y)])

  R, H, G, C = len(x), MODEL.heads, MODEL.kv_heads, MODEL.head_dim
  qkv = times("qkv", plain_norm(x, p["attention_norm"]["weight"]))
  q, k, v = np.split(qkv.reshape(R, H + 2 * G, C), (H, H + G), 1)
  angle = (np.asarray(position)[:, None] * rope_frequencies(MODEL))[:, None]
  cos, sin = np.cos(angle), np.sin(angle)

  def turn(y):
    a, b = np.split(y, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

  q, k = turn(q), turn(k)
  mixed = np.zeros((R, H, C))
  for a in range(R):
    seen = sorted(sees[a])
    for h in range(H):
      score = np.exp(k[seen, h // (H // G)] @ q[a, h] / np.sqrt(C))
      mixed[a, h] = score @ v[seen, h // (H // G)] / score.sum()
  x = x + times("out", mixed.reshape(R, -1))
  gate, up = np.split(times("gate_up", plain_norm(x, p["mlp_norm"]["weight"])), 2, -1)
  return x + times("down", gate / (1 + np.exp(-gate)) * up)


def plain_logits(hidden):
  return hidden @ np.asarray(WEIGHTS["params"]["lm_head"], np.float64).T


def plain(name: str, text, k_most: int = K):
  """(target's states after every token of `text`, its pseudo rows after the last), [., E]."""
  sets = getattr(CONFIGS[name], "ensemble", 1)
  found = [plain_set(name, text, k_most, i, sets) for i in range(sets)]
  return found[0][0], np.mean([rows for _, rows in found], 0)


def plain_set(name: str, text, k_most: int, number: int, sets: int):
  """What `plain` returns for one of the sets of rows, alone."""
  _, params, layers = head(name)
  own = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
  n = len(text)
  x = np.asarray(WEIGHTS["params"]["embedding"], np.float64)[np.asarray(text)]
  inside: list[int] = []
  for i in range(MODEL.layers):
    for k in range(1, k_most + 1):
      if layers[k - 1] == i:
        if "maps" in own:
          row = own["maps"][k - 1] @ x[n - 1]
        else:
          row = own["mask"] if "mask" in own else own["prompt"][(k - 1) * sets + number]
        x, inside = np.concatenate([x, row[None]]), [*inside, k]
    sees = [set(range(a + 1)) for a in range(n)]
    for k in inside:
      rows = {n + j for j, other in enumerate(inside) if other <= k or "mask" in own}
      sees.append(set(range(n)) | rows)
    updates = own.get("lora", {}).get(f"layer_{i}")
    x = plain_layer(i, x, [*range(n), *(n - 1 + k for k in inside)], sees, updates, n)
  x = plain_norm(x, np.asarray(WEIGHTS["params"]["norm"]["weight"], np.float64))
  return x[:n], x[n:][np.argsort(inside)]


@functools.partial(jax.jit, static_argnames="hidden_layers")
def features_of(tokens, hidden_layers=()):
  position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
  segment = jnp.zeros_like(tokens)
  features, _ = Transformer(MODEL).apply(
    WEIGHTS,
    tokens,
    position,
    attention_mask(segment, True),
    hidden_layers=hidden_layers,
    method="features",
  )
  return features, position, segment


def unrolled(name: str, params, tokens, cuts):
  """[M, K, V]: what the head says from each cut of one text."""
  made = head(name)[0]
  features, position, segment = features_of(tokens, made.hidden_layers)

  @jax.jit
  def run(params):
    examples = Examples(tokens, position, segment, features, jnp.asarray([cuts], jnp.int32))
    states = drafting.unroll(made, params, WEIGHTS, examples)
    return jnp.stack([made.read(params, WEIGHTS, s, d)[0] for d, s in enumerate(states, 1)], 1)

  return np.asarray(run(params))


TEXT = np.random.default_rng(5).integers(0, V, (1, 11)).astype(np.int32)


def test_the_plain_network_is_the_target():
  got = features_of(TEXT)[0].hidden[0]
  np.testing.assert_allclose(got, plain("ppd", TEXT[0], 0)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_guess_is_its_formula(name):
  cuts = [0, 6, 6, 10]
  got = unrolled(name, head(name)[1], TEXT, cuts)
  for m, t in enumerate(cuts):
    want = plain_logits(plain(name, TEXT[0, : t + 1])[1])
    np.testing.assert_allclose(got[m], want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layers", [(0, 0, 0), (2, 2, 2), (1, 2, 3)])
def test_true_states_entering_are_true_states_leaving(layers):
  cuts = jnp.asarray([[2, 5]], jnp.int32)
  features, position, segment = features_of(TEXT, tuple(range(MODEL.layers)))

  def enter(k, stream):
    return features.hidden_layers[layers[k - 1]][:, cuts[0] + k]

  @jax.jit
  def run(x):
    return run_with_pseudo_rows(
      TARGET, WEIGHTS, x, position, attention_mask(segment, True), cuts, (K, K), layers, enter,
      start=min(layers),
    )  # fmt: skip

  hidden, guesses, kv = run(features.hidden_layers[min(layers)])
  ahead = (np.asarray(cuts[0])[:, None] + np.arange(1, K + 1)).reshape(-1)
  np.testing.assert_allclose(guesses[0], features.hidden[0, ahead], atol=1e-5)
  np.testing.assert_allclose(hidden, features.hidden, atol=1e-5)
  assert {x.shape[2] for x in (*kv.k, *kv.v)} == {TEXT.shape[1]}
  assert len(kv.k) == len(kv.v) == MODEL.layers - min(layers)


@pytest.mark.parametrize("name", ["hidden_transfer", "up", "shared", "ppd"])
def test_weights_that_reproduce_the_future_give_the_targets_logits(name):
  t, layers = 4, head(name)[2]
  features = features_of(TEXT, tuple(range(MODEL.layers)))[0]
  if name == "ppd":
    trained = {
      "prompt": jnp.take(WEIGHTS["params"]["embedding"], TEXT[0, t + 1 : t + 1 + K], axis=0)
    }
  else:
    streams = [np.asarray(features.hidden_layers[layers[k]][0], np.float64) for k in range(K)]
    trained = {
      "maps": jnp.asarray(
        [np.outer(x[t + k], x[t]) / (x[t] @ x[t]) for k, x in enumerate(streams, 1)], jnp.float32
      )
    }
  got = unrolled(name, {"params": trained}, TEXT, [t])[0]
  want = plain_logits(np.asarray(features.hidden[0, t + 1 : t + 1 + K], np.float64))
  np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_weights_before_training():
  maps = hidden_transfer(target(MODEL), CONFIGS["up"]).init(jax.random.key(3), WEIGHTS)["params"][
    "maps"
  ]
  np.testing.assert_array_equal(maps, np.stack([np.eye(MODEL.width)] * K))
  prompt = ppd(target(MODEL), CONFIGS["ppd"]).init(jax.random.key(3), WEIGHTS)["params"]["prompt"]
  table = np.asarray(WEIGHTS["params"]["embedding"])
  rows = {int(np.flatnonzero((table == p).all(1))[0]) for p in np.asarray(prompt)}
  assert len(rows) == K


# Every token is among the first level's guesses, so one at least is accepted where any are made.
TREE = (*((r,) for r in range(V)), *((r, s) for r in range(0, V, 3) for s in range(3)))
COUNTS = (2, *(r % 3 for r in range(V)), *(1 for _ in range(V)))
# The same numbers for each T_m, in an order of its own; T_0 has no other node than the root.
OWN_TREES = ByGuesses([(), TREE[:V], TREE])
OWN_COUNTS = (
  tuple(sorted(COUNTS, reverse=True)),
  *(tuple(np.random.default_rng(m).permutation(COUNTS).tolist()) for m in (1, 2)),
)
DRAFTERS = {
  "ppd": ("ppd", TREE, COUNTS), "ensemble": ("ensemble", TREE, COUNTS),
  "any order": ("any order", TREE, None), "masked_slots": ("masked_slots", TREE, COUNTS),
  "own trees": ("ensemble", OWN_TREES, OWN_COUNTS),
}  # fmt: skip
LENGTHS = (T, 1, 5)
LEAST = 0.2  # some guesses are likelier


def rows_of(name: str, known: int):
  """(pseudo rows of each node of a draft after `known` guesses, the first of them)."""
  nodes, counts = len(TREE) + 1, DRAFTERS[name][2] or (2,) * (len(TREE) + 1)
  order = range(nodes)
  if isinstance(counts[0], tuple):
    counts = counts[known]
    order = sorted(order, key=lambda v: -counts[v])
  first = dict(zip(order, np.cumsum([0, *(counts[v] for v in order)]), strict=False))
  return counts, first


@functools.cache
def method(name: str | None):
  if name is None:
    return pair(TARGET, none(), target_only()), speculate.Weights(WEIGHTS, ())
  of, tree, counts = DRAFTERS[name]
  made, params, _ = head(of)
  drafter = drafting.drafter(made, tree, counts)
  return pair(TARGET, drafter, target_only()), speculate.Weights(WEIGHTS, params)


def begin(name: str | None, temperature: float = 0.0):
  B, capacity = len(LENGTHS), speculate.capacity_for(T, BUDGET, 2)
  tokens = np.random.default_rng(6).integers(0, V, (B, T)).astype(np.int32)
  length, one = jnp.asarray(LENGTHS, jnp.int32), jnp.ones(B)
  request = speculate.DecodeRequest(
    Settings(temperature * one, jnp.zeros(B, jnp.int32), one, 0 * one),
    request_keys(0, np.arange(B)), length + BUDGET, jnp.asarray([-1], jnp.int32),
  )  # fmt: skip
  pair = method(name)
  return request, speculate.compiled_start(*pair, jnp.asarray(tokens), length, request, capacity)


def onward(name: str | None, request, state, rounds: int):
  return speculate.compiled_advance(*method(name), request, state, jnp.int32(rounds))


@functools.cache
def one_pass(name: str):
  """Compiled (request, state, weights of the rows) -> (draft, its evaluation, the target's own)."""
  (_, drafter, *_), (target_params, params, *_) = method(name)

  @jax.jit
  def run(request, state, weights=params):
    noise = Noise(request.key, state.context.length)
    draft, guesses = drafter.propose(
      params, target_params, state.drafter, state.context, request.settings, noise
    )
    mask = ancestors(draft.parent, drafter.depth)
    ours = drafter.evaluate(weights, target_params, guesses, state.cache, draft, mask)
    return draft, ours, TARGET.evaluate(target_params, state.cache, draft.tokens, draft.depth, mask)

  return run


@pytest.mark.slow
@pytest.mark.full(but=["ppd", "any order"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_candidates_do_not_notice_and_rows_are_those_of_their_node(name):
  request, state = begin(name)
  state = onward(name, request, state, 2)
  draft, ours, own = one_pass(name)(request, state)
  # Other rows in the same program: not a bit of a candidate may change.
  other = one_pass(name)(request, state, random_like(method(name)[1].drafter, 9))[1]
  assert np.abs(other.aux - ours.aux).max() > 0.1
  seen = [jax.tree.leaves((x.logits, x.features.hidden, x.kv)) for x in (ours, own, other)]
  for a, b, c in zip(*seen, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-6)
    np.testing.assert_array_equal(a, c)
  text, length = np.asarray(state.context.tokens), np.asarray(state.context.length)
  tokens, parent = np.asarray(draft.tokens), np.asarray(draft.parent)
  for b, v in zip(np.arange(9) // 3, (0, 5, V + 1, 0, 8, len(TREE), 2, 11, V + 9), strict=True):
    counts, first = rows_of(name, int(state.drafter.known[b]))
    assert ours.aux.shape[1] == sum(counts)
    path, up = [], v
    while up:
      path, up = [int(tokens[b, up]), *path], parent[b, up]
    want = plain(DRAFTERS[name][0], [*text[b, : length[b]].tolist(), *path], counts[v])[1]
    got = ours.aux[b, first[v] : first[v] + counts[v]]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_what_is_carried_is_of_the_accepted_node(name):
  request, state = begin(name)
  assert not np.asarray(state.drafter.known).any()
  depth = from_choices(TREE).depth
  seen = set()
  for _ in range(4):
    known, before = np.asarray(state.drafter.known), np.asarray(state.context.length)
    draft = one_pass(name)(request, state)[0]
    tokens, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
    np.testing.assert_array_equal(valid, depth[None] <= known[:, None])
    state = onward(name, request, state, 1)
    text, length = np.asarray(state.context.tokens), np.asarray(state.context.length)
    for b in range(len(LENGTHS)):
      assert length[b] < LENGTHS[b] + BUDGET
      node = 0
      for token in text[b, before[b] : length[b] - 1]:
        children = np.flatnonzero((np.asarray(draft.parent[b]) == node) & valid[b])
        node = next(c for c in children if c and tokens[b, c] == token)
      assert node or not known[b]
      counts, _ = rows_of(name, int(known[b]))
      assert state.drafter.known[b] == counts[node]
      want = plain(DRAFTERS[name][0], text[b, : length[b] - 1], counts[node])[1]
      got = state.drafter.states[b, : counts[node]]
      np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
      seen.add((int(known[b]), int(depth[node])))
  assert {(0, 0), (2, 1)} <= seen
  if DRAFTERS[name][2] is not None:
    assert {k for k, _ in seen} == {0, 1, 2}


@functools.cache
def decoded(name: str | None, temperature: float):
  request, state = begin(name, temperature)
  return onward(name, request, state, 100)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_text_and_cache_are_those_of_plain_decoding(name, temperature):
  got, want = decoded(name, temperature), decoded(None, temperature)
  assert int(got.stats.passes.sum()) < 0.8 * int(want.stats.passes.sum())
  for b, n in enumerate(LENGTHS):
    n += BUDGET
    assert got.context.length[b] == want.context.length[b] == n
    assert got.cache.length[b] == n - 1
    np.testing.assert_array_equal(got.context.tokens[b, :n], want.context.tokens[b, :n])
    for x, y in zip(jax.tree.leaves(got.cache.kv), jax.tree.leaves(want.cache.kv), strict=True):
      np.testing.assert_allclose(x[b, :, : n - 1], y[b, :, : n - 1], atol=2e-5)


@pytest.mark.parametrize("name", DRAFTERS)
def test_rows_do_not_see_their_neighbours(name):
  request, state = begin(name)
  state = onward(name, request, state, 1)
  run = one_pass(name)
  whole = run(request, state)[1]
  # The neighbours' caches, texts and guesses are those of other rows.
  for b in range(len(LENGTHS)):
    order = np.array([(b + 1) % 3, b, b])
    mixed = jax.tree.map(
      lambda x, order=order: x[order], (request._replace(stop=request.key), state)
    )
    alone = run(mixed[0]._replace(stop=request.stop), mixed[1])[1]
    np.testing.assert_allclose(alone.aux[1], whole.aux[b], atol=1e-6)
    np.testing.assert_allclose(alone.logits[2], whole.logits[b], atol=1e-6)


def test_each_number_of_guesses_has_the_best_tree_of_its_own():
  nodes, (made, params, _) = 9, head("ppd")
  rates = np.array([[0.51, 0.23, 0.11, 0.06], [0.43, 0.19, 0.1, 0.05], [0.37, 0.17, 0.13, 0.07]])
  tree, counts = share_rows(rates, nodes, 12, own=True)
  drafter = drafting.drafter(made, tree, counts)
  D = drafter.depth
  states = jnp.asarray(np.random.default_rng(3).normal(size=(D + 1, D, MODEL.width)), jnp.float32)
  guesses = Guesses(states, jnp.arange(D + 1, dtype=jnp.int32))
  length, one = jnp.ones(D + 1, jnp.int32), jnp.ones(D + 1)
  draft, _ = drafter.propose(
    params, WEIGHTS, guesses, context=Context(jnp.full((D + 1, 4), 7, jnp.int32), length),
    settings=Settings(one, 0 * length, one, 0 * one), noise=None,
  )  # fmt: skip
  best = np.argsort(-plain_logits(np.asarray(states, np.float64)), -1)
  for m in range(D + 1):
    # The likeliest of all paths of m ranks at most; after one guess there are but four.
    every = [p for d in range(1, m + 1) for p in itertools.product(range(4), repeat=d)]
    every.sort(key=lambda p: -np.prod([rates[d, r] for d, r in enumerate(p)]))
    want = {tuple(best[m, d, r] for d, r in enumerate(p)) for p in every[: nodes - 1]}
    valid, parent = np.asarray(draft.valid[m]), np.asarray(draft.parent[m])
    texts = {0: ()}
    for v in range(1, nodes):
      assert parent[v] < v and (not valid[v] or valid[parent[v]])
      if valid[v]:
        texts[v] = (*texts[parent[v]], int(draft.tokens[m, v]))
        assert draft.depth[m, v] == len(texts[v])
    assert {*texts.values()} == {(), *want} and len(texts) == 1 + len(want)
    assert draft.tokens[m, 0] == 7 and valid[0]
  logits = made.read(params, WEIGHTS, states, None)
  whole = tree.fill(jnp.full((D + 1, 1), 7, jnp.int32), Guesser(independent(logits)))
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[D], y[D]), whole, draft)


def advanced(verifier, least: float, temperature: float):
  """The state at the end of texts that units of masked slots draft."""
  made, params, _ = head("masked_slots")
  rule = pair(TARGET, lexical_units(made, K + 1, least), verifier)
  weights = speculate.Weights(WEIGHTS, params)
  request, state = begin(None, temperature)
  tokens, length = state.context.tokens[:, :T], jnp.asarray(LENGTHS, jnp.int32)
  capacity = speculate.capacity_for(T, BUDGET, K)
  state = speculate.compiled_start(rule, weights, tokens, length, request, capacity)
  return speculate.compiled_advance(rule, weights, request, state, jnp.int32(100))


@pytest.mark.parametrize("least", [0.0, LEAST, 1.0])
def test_units_are_the_text_unverified(least):
  """A round adds the leading sure guesses and the target's token, and reads K slots behind them."""
  state, lengths = advanced(unverified(), least, 0.0), set()
  for b, n in enumerate(LENGTHS):
    text, guesses, rounds = state.context.tokens[b, :n].tolist(), [], 0
    while len(text) < n + BUDGET:
      likely = [np.exp(x) / np.exp(x).sum() for x in guesses]
      unit = list(itertools.takewhile(lambda p: p.max() > least, likely))
      lengths.add(len(unit))
      text += [int(p.argmax()) for p in unit]
      states, slots = plain("masked_slots", text)
      guesses, rounds = plain_logits(slots), rounds + 1
      text.append(int(plain_logits(states[-1]).argmax()))
    assert state.context.tokens[b, : n + BUDGET].tolist() == text[: n + BUDGET]
    assert state.stats.passes[b] == rounds
  some = {0, 1, 2} <= lengths
  assert some if least == LEAST else lengths == ({0, K} if least == 0 else {0})


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_units_that_are_verified_change_no_token(temperature):
  got, want = advanced(target_only(), LEAST, temperature), decoded(None, temperature)
  for b, n in enumerate(LENGTHS):
    n += BUDGET
    np.testing.assert_array_equal(got.context.tokens[b, :n], want.context.tokens[b, :n])
  assert (np.asarray(got.stats.offered).sum(0) > 0)[:2].all()


def test_a_threshold_that_is_no_probability_is_refused():
  with pytest.raises(ValueError, match=r"`least` must be .* 0 .* 1.*, got 2"):
    lexical_units(head("masked_slots")[0], 4, 2.0)


BAD_COUNTS = [
  (1, 1), (1, 1, 1, 1), (0, 1, 1), (1, 2, 1), (1, -1, 1), ((1, 0, 1),) * 3, ((0, 1, 1),) * 2,
  ((1, 0, 1), (1, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("counts", BAD_COUNTS)
def test_counts_that_do_not_fit_are_refused(counts):
  with pytest.raises(
    ValueError, match=r"`counts` must be 3 numbers between 0 and 1, the first at least 1.*got "
  ):
    drafting.drafter(ppd(target(MODEL), PPDConfig()), ((0,), (1,)), counts)


@pytest.mark.parametrize("layers", [(1,), (1, 1, 1, 1), (1, 1, 4), (-1, 1, 1)])
def test_layers_that_do_not_fit_are_refused(layers):
  with pytest.raises(
    ValueError, match=r"`layers` must be \(\) or depth=3 layers between 0 and 3, got "
  ):
    hidden_transfer(target(MODEL), HiddenTransferConfig(layers=layers))


def test_an_ensemble_of_nothing_is_refused():
  with pytest.raises(ValueError, match=r"`ensemble` must be between 1 and 2147483647, got 0\."):
    ppd(target(MODEL), PPDConfig(ensemble=0))
