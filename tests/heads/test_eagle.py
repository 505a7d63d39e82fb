"""EAGLE, EAGLE-3 and heads like them: their formulas in NumPy, and caches against recomputation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from specjax import bucketing, speculate
from specjax.base import Context, Features
from specjax.decoding.method import method as pair
from specjax.heads import drafting, prefix
from specjax.heads.base import Examples
from specjax.heads.eagle import EagleConfig, eagle
from specjax.heads.eagle3 import Eagle3Config, eagle3
from specjax.heads.griffin import GriffinConfig, griffin
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.heads.jakiro import JakiroConfig, jakiro
from specjax.heads.mtp import MTPConfig, mtp
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.sampling import Noise, Settings, request_keys
from specjax.trees import Dynamic
from specjax.verifiers import greedy

V, E, H, K, C = 6, 8, 4, 2, 4
# The target's window and its norms on q and k are its alone.
MODEL = Config(
  vocab_size=V, width=E, layers=4, heads=H, kv_heads=K, head_dim=C, mlp_width=12, max_length=64,
  rope_theta=100.0, qkv_bias=True, qk_norm=True, window=6, tied=False,
)  # fmt: skip
D = 3
HEADS = {
  "eagle": eagle(target(MODEL), EagleConfig(depth=D, mlp_width=10)),
  "eagle, no bias": eagle(target(MODEL), EagleConfig(depth=D, bias=False)),
  "eagle3": eagle3(target(MODEL), Eagle3Config(depth=D, mlp_width=10)),
  "eagle, a window": eagle(target(MODEL), EagleConfig(depth=D, window=D + 1)),
  "eagle3, a window": eagle3(target(MODEL), Eagle3Config(depth=D, window=D + 2)),
  "eagle3, two hidden_layers": eagle3(target(MODEL), Eagle3Config(depth=D, hidden_layers=(4, 0))),
  "mtp": mtp(target(MODEL), MTPConfig(depth=D)),
  "mtp, two modules": mtp(target(MODEL), MTPConfig(depth=D, modules=2, shares=True)),
  "mtp, three modules": mtp(target(MODEL), MTPConfig(depth=D, modules=3)),
  "jakiro": jakiro(target(MODEL), JakiroConfig(depth=D)),
  "griffin": griffin(target(MODEL), GriffinConfig(depth=D, mlp_width=10)),
}


@functools.cache
def weights_of(name: str):
  """(target params, head params), random."""
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(functools.partial(transformer.init, MODEL), jax.random.key(0))
  own = jax.eval_shape(HEADS[name].init, jax.random.key(0), shapes)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 + (len(x.shape) == 1), jnp.float32),
    (shapes, own),
  )


def norm(x, weight):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + MODEL.norm_epsilon) * weight


def rotate(x, t: int):
  """Rotary embedding of one head [C] at position t."""
  angle = t * MODEL.rope_theta ** (-np.arange(0, C, 2) / C)
  a, b = x[: C // 2], x[C // 2 :]
  return np.concatenate(
    [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
  )


def attention(w, x, attended):
  """Attention over a whole text, with the stream x [T, E]; attended from `attended` [T, any]."""
  qkv = (attended @ w["qkv"].T + w.get("qkv_bias", 0)).reshape(len(x), H + 2 * K, C)
  for first, stop, name in ((0, H, "q_norm"), (H, H + K, "k_norm")):
    if name in w:
      qkv[:, first:stop] = norm(qkv[:, first:stop], w[name]["weight"])
  out = x.copy()
  for t in range(len(x)):
    heads, first = [], max(0, t + 1 - w.get("window", t + 1))
    for h in range(H):
      q, g = rotate(qkv[t, h], t), h // (H // K)
      scores = [q @ rotate(qkv[s, H + g], s) / C**0.5 for s in range(first, t + 1)]
      p = np.exp(scores - np.max(scores))
      heads.append(p / p.sum() @ qkv[first : t + 1, H + K + g])
    out[t] += w["out"] @ np.concatenate(heads)
  return out


def gated(x, gate_up, down):
  """The MLP of x [T, E], which is normed already."""
  gate, up = np.split(x @ np.transpose(gate_up), 2, axis=-1)
  return (gate / (1 + np.exp(-gate)) * up) @ down.T


def block(w, x, attended):
  """One decoder layer over a whole text: x [T, E], attended from `attended` [T, any]."""
  out = attention(w, x, attended)
  return out + gated(norm(out, w["mlp_norm"]["weight"]), w["gate_up"], w["down"])


def eagle_layer(w, state, e):
  x = np.concatenate([e, state], -1) @ w["fc"].T + w.get("fc_bias", 0)
  return block(w["layers"]["layer_0"], x, x)


def eagle3_layer(w, state, e):
  normed = norm(e, w["input_norm"]["weight"]), norm(state, w["hidden_norm"]["weight"])
  return block(w["layers"]["layer_0"], state, np.concatenate(normed, -1))


def mtp_layer(w, state, e):
  normed = norm(e, w["token_norm"]["weight"]), norm(state, w["state_norm"]["weight"])
  x, layer = np.concatenate(normed, -1) @ w["projection"].T, w["layers"]["layer_0"]
  return norm(block(layer, x, norm(x, layer["attention_norm"]["weight"])), w["norm"]["weight"])


def softmax(x):
  return np.exp(x) / np.exp(x).sum()


def jakiro_layer(w, state, e):
  """The next states and those after them, side by side."""
  z, mlp = np.concatenate([e, state], -1) @ w["fc"].T + w["fc_bias"], w["experts"]
  x, rows = attention(w["attention"]["layer_0"], z, z), []
  for y in norm(x, w["mlp_norm"]["weight"]):
    experts = [gated(y, *pair) for pair in zip(mlp["gate_up"], mlp["down"], strict=True)]
    a, b = softmax(mlp["router"][:2] @ y), softmax(mlp["router"][2:] @ y)
    best = int(a[1] > a[0])
    contrast = b[0] * experts[best] - b[1] * experts[1 - best]
    rows.append(np.concatenate([a[0] * experts[0] + a[1] * experts[1], contrast]))
  return np.concatenate([x, x], -1) + rows


def griffin_layer(w, state, e):
  """What the LM head reads and the next states, side by side."""
  z = np.concatenate([e, state], -1) @ w["fc"].T + w["fc_bias"]
  normed = norm(z, w["fused_norm"]["weight"]), norm(e, w["token_norm"]["weight"])
  units = np.concatenate(normed, -1) @ w["fuse_up"].T
  z = z + units / (1 + np.exp(-units)) @ w["fuse_down"].T
  x = attention(w["attention"]["layer_0"], z, z)
  y = gated(norm(x, w["mlp_norm"]["weight"]), w["gate_up"], w["down"])
  return np.concatenate([x, x], -1) + y


LAYERS = {
  "eagle": eagle_layer, "eagle3": eagle3_layer, "mtp": mtp_layer, "jakiro": jakiro_layer,
  "griffin": griffin_layer,
}  # fmt: skip
# Where in a layer's output the next pair's state is.
STATE = {"griffin": slice(E, None)}


def naive_states(name, tokens, hidden, hidden_layers, t: int) -> list[np.ndarray]:
  """Guesses after token t of one text: (state, next token) pairs anew for every guess."""
  model, own = jax.tree.map(np.float64, jax.device_get(weights_of(name)))
  w, embedding = own["params"], model["params"]["embedding"]
  if (window := HEADS[name].window) is not None:
    w["layers"]["layer_0"]["window"] = window
  if name.startswith("eagle3"):
    pairs = list(np.concatenate(hidden_layers, -1)[: t + 1] @ w["fc"].T)
  else:
    pairs = list(hidden[: t + 1])
  states: list[np.ndarray] = []
  # Row i of module d of several has the state of row i of the one before, and token i + d.
  *earlier, w = [w, *(w | w[key] for key in sorted(w) if key.startswith("depth_"))]
  for d, own in enumerate(earlier, 1):
    pairs = list(mtp_layer(own, np.stack(pairs), embedding[tokens[d : d + t + 1]]))
    states.append(pairs[-1])
  first = len(states) + 1
  for _ in range(D - len(states)):
    state, e = np.stack(pairs), embedding[tokens[first : len(pairs) + first]]
    output = LAYERS[HEADS[name].name](w, state, e)[-1]
    pairs.append(output[STATE.get(name, slice(E))])
    above = states[-1][E : 2 * E] if name == "jakiro" and states else []
    states.append(np.concatenate([output, above]))
  return states


def modules(name: str) -> int:
  """How many a head has that takes them in turn."""
  return {"mtp, two modules": 2, "mtp, three modules": 3}.get(name, 1)


@pytest.mark.full(but=["eagle", "eagle3", "jakiro", "mtp", "mtp, two modules", "griffin"])
@pytest.mark.parametrize("name", HEADS)
def test_unroll_is_drafting_without_a_cache(name):
  """Training-time test: every guess is from true states up to `at`, own ones after it."""
  head, (model, own) = HEADS[name], weights_of(name)
  rng = np.random.default_rng(1)
  T, M = 18, 6
  segment = np.repeat(np.int32([[0, 1], [2, 2]]), (11, 7), axis=1)  # packed texts
  position = np.stack([[*range(11), *range(7)], range(T)]).astype(np.int32)
  tokens = rng.integers(0, V, (2, T)).astype(np.int32)
  hidden = rng.normal(size=(2, T, E)).astype(np.float32)
  hidden_layers = tuple(rng.normal(size=(2, T, E)).astype(np.float32) for _ in head.hidden_layers)
  at = np.array([[7, 0, 12, 3, 9, 17], [0, 14, 13, 2, 2, 16]], np.int32)
  examples = Examples(tokens, position, segment, Features(hidden, hidden_layers), at)
  got = jax.device_get(jax.jit(functools.partial(drafting.unroll, head))(own, model, examples))
  assert len(got) == D
  checked = 0
  for b in range(2):
    for m in range(M):
      text = np.flatnonzero(segment[b] == segment[b, at[b, m]])
      t = at[b, m] - text[0]
      padded = np.append(tokens[b, text], [0] * D)
      want = naive_states(name, padded, hidden[b, text], [x[b, text] for x in hidden_layers], t)
      for d in range(D):
        assert np.isfinite(got[d][b, m]).all()
        if t + d + 1 < len(text) and t >= modules(name) - 2:
          found = head.feature(got[d][b, m], d + 1) if head.name == "mtp" else got[d][b, m]
          np.testing.assert_allclose(found, want[d], rtol=1e-3, atol=1e-4)
          checked += 1
  assert checked > M * D  # of twice as many


CACHED = ["eagle, a window", "eagle3, a window", "mtp, two modules", "mtp, three modules"]


@pytest.mark.full(but=["eagle3, a window", "mtp, three modules"])
@pytest.mark.parametrize("name", CACHED)
def test_windows_and_modules_over_the_cache(name):
  """The chain of best guesses after a prompt, which is longer than the window."""
  head, (model, own) = HEADS[name], weights_of(name)
  drafter = drafting.drafter(head, tuple((0,) * d for d in range(1, D + 1)))
  tokens = jnp.asarray(np.random.default_rng(5).integers(0, V, (2, 13)), jnp.int32)
  context = Context(tokens, jnp.asarray([12, 8], jnp.int32))

  @jax.jit
  def draft(context):
    _, features = target(MODEL).prefill(
      model, context.tokens[:, :-1], context.length, 20, hidden_layers=drafter.hidden_layers
    )
    state = drafter.init(own, model, context, features, 20)
    f = jnp.zeros(2)
    settings = Settings(f, jnp.zeros(2, jnp.int32), f + 1, f)
    noise = Noise(request_keys(0, range(2)), context.length)
    return drafter.propose(own, model, state, context, settings, noise)[0], features

  drafted, features = jax.device_get(draft(context))
  for b, n in enumerate(context.length.tolist()):
    text = [*np.asarray(tokens[b, :n]), *drafted.tokens[b, 1:]]
    states = naive_states(
      name, text, features.hidden[b], [x[b] for x in features.hidden_layers], n - 2
    )
    for d, state in enumerate(states, 1):
      state = jnp.tile(jnp.asarray(state, jnp.float32), modules(name))
      logits = np.asarray(head.read(own, model, state, d))
      assert drafted.tokens[b, d] in np.flatnonzero(logits > logits.max() - 1e-4)
  assert head.window is None or head.window < 8


def test_a_window_of_the_draft_alone_is_refused():
  with pytest.raises(
    ValueError,
    match=(r"`window` must be between 4 and 2147483647 \(more than the depth\), got 3\."),
  ):
    eagle(target(MODEL), EagleConfig(depth=3, window=3))


@pytest.mark.parametrize("name", HEADS)
def test_unroll_keeps_no_square_of_the_drafting_positions(name):
  """Each attends to the text and its own guesses; a square would take most of the memory."""
  head, (model, own) = HEADS[name], weights_of(name)
  B, T, M = 1, 11, 13
  ints, states = np.zeros((B, T), np.int32), np.zeros((B, T, E), np.float32)
  features = Features(states, (states,) * len(head.hidden_layers))
  examples = Examples(ints, ints, ints, features, np.zeros((B, M), np.int32))
  program = jax.make_jaxpr(functools.partial(drafting.unroll, head))(own, model, examples)

  def shapes(jaxpr):
    for eqn in jaxpr.eqns:
      yield from (x.aval.shape for x in eqn.outvars)
      for inner in jaxprs_in_params(eqn.params):
        yield from shapes(inner)

  found = list(shapes(program.jaxpr))
  assert any(shape.count(M) == 1 and T in shape for shape in found)  # positions by text
  assert not [shape for shape in found if shape.count(M) > 1]


T, BUDGETS = 9, (20, 1, 13, 20)
# Most of the vocabulary is among the children, so that random weights are often right.
TREES = {
  "static": (*((i,) for i in range(5)), *((i, j) for i in range(5) for j in range(4)), (0, 0, 0)),
  "dynamic": Dynamic(nodes=40, depth=3, beam=5),
}


@pytest.mark.slow
@pytest.mark.full(but=["eagle-dynamic-by rows", "mtp, three modules-dynamic-whole"])
@pytest.mark.parametrize("least", [0, prefix.LARGE], ids=["by rows", "whole"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("name", ["eagle", "eagle3", "mtp, three modules"])
def test_memory_after_some_rounds_is_that_of_the_text_from_scratch(name, tree, least, monkeypatch):
  """Rows of different lengths, finished ones among them; what was only guessed leaves no trace.

  A large head's layers read as many rows as were accepted.
  """
  monkeypatch.setattr(prefix, "LARGE", least)
  widths, run = set(), bucketing.narrowest
  monkeypatch.setattr(bucketing, "narrowest", lambda w, *rest: widths.add(w) or run(w, *rest))
  head, (model, own) = HEADS[name], weights_of(name)
  drafter = drafting.drafter(head, tree)
  method = pair(target(MODEL), drafter, greedy())
  weights, B = speculate.Weights(model, own), len(BUDGETS)
  tokens = jnp.asarray(np.random.default_rng(2).integers(0, V, (B, T)), jnp.int32)
  length = jnp.asarray([T, 4, 1, 6], jnp.int32)
  f = jnp.zeros(B)
  request = speculate.DecodeRequest(
    Settings(f, jnp.zeros(B, jnp.int32), f + 1, f), request_keys(0, range(B)),
    length + jnp.asarray(BUDGETS, jnp.int32), jnp.asarray([-1], jnp.int32),
  )  # fmt: skip
  capacity = speculate.capacity_for(T, max(BUDGETS), drafter.depth)
  state = speculate.compiled_start(method, weights, tokens, length, request, capacity)

  @jax.jit
  def from_scratch(tokens, length):
    _, features = target(MODEL).prefill(
      model, tokens, length, capacity, hidden_layers=drafter.hidden_layers
    )
    context = Context(jnp.pad(tokens, ((0, 0), (0, 1))), length)
    return drafter.init(own, model, context, features, capacity)

  for _ in range(3):
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(2))
    got = jax.device_get(state.drafter)
    want = jax.device_get(from_scratch(state.context.tokens, state.context.length))
    np.testing.assert_array_equal(got.cache.length, state.context.length - 1)
    np.testing.assert_allclose(got.last, want.last, rtol=1e-3, atol=1e-4)
    for a, b in zip(jax.tree.leaves(got.cache.kv), jax.tree.leaves(want.cache.kv), strict=True):
      for row, n in enumerate(got.cache.length):
        np.testing.assert_allclose(a[row, :, :n], b[row, :, :n], rtol=1e-3, atol=1e-4)
  assert state.stats.accepted[:, 2:].sum() > 2  # rounds that committed several rows
  assert 0 < state.done.sum() < B
  assert ((2,) in widths) == (least == 0)


def test_what_is_read_of_a_wide_state_and_what_is_like_the_targets():
  state = np.random.default_rng(4).normal(size=(2, 3 * E)).astype(np.float32)
  mixture, contrast, above = np.split(state, 3, -1)
  for name, d, wide, read, feature in (
    ("jakiro", 1, state[:, : 2 * E], mixture, mixture), ("jakiro", 2, state, mixture, mixture),
    ("jakiro", D, state, above, above), ("griffin", D, state[:, : 2 * E], mixture, contrast),
  ):  # fmt: skip
    head, (model, own) = HEADS[name], weights_of(name)
    want = read @ model["params"]["lm_head"].T
    np.testing.assert_allclose(head.read(own, model, wide, d), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(head.feature(wide, d), feature)


def test_the_last_two_depths_of_jakiro_are_one_pass():
  """Its last row is dead code: nothing but the reading is paid for one more level."""
  head, (model, own) = HEADS["jakiro"], weights_of("jakiro")

  def flops(depth: int) -> float:
    drafter = drafting.drafter(head, tuple((0,) * d for d in range(1, depth + 1)))
    tokens, length = jnp.zeros((1, 8), jnp.int32), jnp.full(1, 5, jnp.int32)
    features = Features(jnp.zeros((1, 6, E)))

    def draft(own, model):
      context = Context(tokens, length)
      state = drafter.init(own, model, context, features, 16)
      return drafter.propose(own, model, state, context, None, None)[0]

    cost = jax.jit(draft).lower(own, model).compile().cost_analysis()
    assert cost is not None
    return cost["flops"]

  one, two, three = map(flops, range(1, D + 1))
  layer = sum(x.size for x in jax.tree.leaves(own["params"]))
  assert three - two < layer < two - one


def test_eagle3_starts_from_the_targets_head_over_its_own_vocabulary():
  ids = np.array([1, 2, 5], np.int32)
  model, _ = weights_of("eagle3")
  head = HEADS["eagle3"]
  params = head.init(jax.random.key(0), model, ids)
  np.testing.assert_array_equal(params["params"]["lm_head"], model["params"]["lm_head"][ids])
  x = np.random.default_rng(3).normal(size=(2, E)).astype(np.float32)
  want = norm(x.astype(np.float64), 1) @ np.float64(model["params"]["lm_head"])[ids].T
  np.testing.assert_allclose(head.read(params, model, x, 2), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  ("layers", "want"),
  [
    (32, (2, 16, 29)),
    (7, (2, 3, 4)),
    (6, (1, 3, 5)),
    (4, (1, 2, 3)),
    (2, (1, 1, 1)),
    (1, (1, 0, 0)),
  ],
)
def test_layers_that_eagle3_reads(layers, want):
  model = Config(V, E, layers, H, K, C, 12)
  assert hidden_layers_of(model.layers) == want
  assert eagle3(target(model), Eagle3Config(hidden_layers=(layers,))).hidden_layers == (layers,)
  for hidden_layers in ((0, layers + 1), (-1,)):
    with pytest.raises(
      ValueError, match=f"`hidden_layers` must be between 0 and {layers}, .*, got "
    ):
      hidden_layers_of(model.layers, hidden_layers)
