"""Drafts by a model's own layers: what they say, where they end, and that no text changes."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.base import Context, Verdict
from specjax.decoding.method import method as pair
from specjax.drafters import dynamic_exit, layerskip, none, self_speculative, swift
from specjax.drafters.layers import own_layers, skipped_layers
from specjax.drafters.layers.dynamic_exit import Shadows, expected_tokens_per_layer, unseen
from specjax.drafters.layers.layerskip import finished, first_layers
from specjax.drafters.layers.swift import begin
from specjax.models.config import Config
from specjax.models.transformer import init, target
from specjax.sampling import Settings, request_keys
from specjax.testing import table_model
from specjax.trees.structure import ancestors
from specjax.verifiers import target_only

V, L, B, T, D = 24, 6, 3, 7, 4
CONFIG = Config(
  vocab_size=V, width=16, layers=L, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=96
)
OWN = target(CONFIG)
PARAMS = jax.tree.map(
  lambda x: x * 12 + 0.01, jax.jit(functools.partial(init, CONFIG))(jax.random.key(1))
)
LENGTH = jnp.array([7, 1, 4])
TOKENS = jnp.asarray(np.random.default_rng(0).integers(V, size=(B, T)), jnp.int32)
RUN = np.ones((L, 2), bool)
RUN[2], RUN[4, 0] = False, False


def without(run):
  """The weights in which what does not run adds nothing to the stream."""
  layers = dict(PARAMS["params"])
  for i, (attention, mlp) in enumerate(np.asarray(run, np.float32)):
    own = layers[f"layer_{i}"]
    layers[f"layer_{i}"] = own | {"out": own["out"] * attention, "down": own["down"] * mlp}
  return {"params": layers}


@functools.cache
def text() -> Context:
  cache, _ = jax.jit(OWN.prefill, static_argnums=3)(PARAMS, TOKENS, LENGTH, 24)
  return Context(jnp.pad(TOKENS, ((0, 0), (0, 17))), LENGTH, cache)


@functools.partial(jax.jit, static_argnames=("whole", "layers"))
def draft_of(params, context, run, longest=None, least=None, whole=False, layers=()):
  return own_layers.drafted(
    OWN, params, context, run, D, longest=longest, least=least, whole=whole, layers=layers
  )


EVALUATE = jax.jit(OWN.evaluate, static_argnums=5)


def chain_pass(params, draft):
  """All nodes of a chain in one pass of the network, with the states before each layer."""
  mask = ancestors(draft.parent, D)
  return EVALUATE(params, text().cache, draft.tokens, draft.depth, mask, tuple(range(L)))


@pytest.mark.slow
@pytest.mark.full(but=["some"])
@pytest.mark.parametrize("run", [RUN, np.ones((L, 2), bool)], ids=["some", "all"])
def test_a_draft_is_what_these_layers_find_likeliest(run):
  draft, rows = draft_of(PARAMS, text(), jnp.asarray(run), whole=True, layers=(1, 3))
  assert draft.log_probs is None and bool(draft.valid.all())
  want = chain_pass(without(run), draft)
  np.testing.assert_array_equal(draft.tokens[:, 1:], want.logits.argmax(-1)[:, :-1])
  np.testing.assert_array_equal(draft.tokens[:, :1], text().root)
  for got, i in zip(rows.inputs, (1, 3), strict=True):
    np.testing.assert_allclose(got, want.features.hidden_layers[i], atol=1e-3)
  np.testing.assert_allclose(rows.kv.k[3], want.kv.k[3], atol=1e-3)
  np.testing.assert_allclose(OWN.norm(PARAMS, rows.stream), want.features.hidden, atol=1e-3)


@pytest.mark.full
def test_a_row_ends_after_a_token_that_is_not_sure():
  whole, _ = draft_of(PARAMS, text(), jnp.asarray(RUN))
  p = jax.nn.softmax(chain_pass(without(RUN), whole).logits).max(-1)[:, :-1]
  middle = jnp.asarray([np.sort(row)[1] + 1e-4 for row in np.asarray(p)], jnp.float32)
  for least in (middle, jnp.zeros(B), jnp.ones(B)):
    draft, _ = draft_of(PARAMS, text(), jnp.asarray(RUN), least=least)
    for b in range(B):
      low = [j + 1 for j in range(D) if p[b, j] < least[b]]
      n = low[0] if low else D
      assert draft.valid[b].tolist() == [j <= n for j in range(D + 1)]
      np.testing.assert_array_equal(draft.tokens[b, : n + 1], whole.tokens[b, : n + 1])


def counted(run):
  """(how often a wrapped target ran some of its layers and its head, the result of `run`)."""
  passes, heads = [], []

  def run_some(*x, **more):
    jax.debug.callback(lambda _: passes.append(1), x[1])
    return OWN.run_some(*x, **more)

  def head(params, hidden):
    jax.debug.callback(lambda _: heads.append(1), hidden)
    return OWN.head(params, hidden)

  result = jax.jit(functools.partial(run, dataclasses.replace(OWN, run_some=run_some, head=head)))()
  jax.effects_barrier()
  return len(passes), len(heads), result


@pytest.mark.full
@pytest.mark.parametrize("whole", [False, True], ids=["", "whole"])
@pytest.mark.parametrize("longest", [0, 2, D])
def test_layers_run_for_the_longest_row_and_once_more_where_rows_are_used_again(longest, whole):
  passes, heads, (draft, _) = counted(
    lambda own: own_layers.drafted(
      own, PARAMS, text(), jnp.asarray(RUN), D, longest=jnp.int32(longest), whole=whole
    )
  )
  assert (passes, heads) == (longest + whole, longest)
  assert draft.valid.sum(1).tolist() == [1 + longest] * B


@pytest.mark.full
def test_agreement_counts_the_tokens_of_a_window():
  context, end, width = text(), jnp.array([7, 0, 4]), 3
  got = jax.jit(own_layers.agreement, static_argnums=(0, 4))(
    OWN, PARAMS, context, end, width, jnp.asarray(RUN)
  )
  for b in (0, 2):
    first = int(end[b]) - width - 1
    cache, _ = OWN.prefill(PARAMS, TOKENS[b : b + 1], jnp.array([first + 1]), 24)
    step = jnp.arange(width, dtype=jnp.int32)[None]
    mask = jnp.tril(jnp.ones((1, width, width), bool))
    window = TOKENS[b : b + 1, first : first + width]
    said = EVALUATE(without(RUN), cache, window, step, mask, ()).logits.argmax(-1)[0]
    want = (said == TOKENS[b, first + 1 : first + 1 + width]).mean()
    assert float(got[b]) == pytest.approx(float(want), abs=1e-6)


# --- Through the loop

METHODS = {
  "self_speculative": (lambda: self_speculative(OWN, 4, 0.05), jnp.asarray(RUN)),
  "self_speculative, all": (lambda: self_speculative(OWN, 4, 0.01), jnp.ones((L, 2), bool)),
  "swift": (lambda: swift(OWN, 4, 4), begin(L)),
  "layerskip": (lambda: layerskip(OWN, 4, 5), ()),
  "del": (lambda: dynamic_exit(OWN, 4, 2), unseen(L, 2)),
}
LIMIT = np.array([20, 12, 25])


@functools.cache
def decode(name: str, temperature: float):
  """(texts, the final state, rounds)."""
  drafter, params = (METHODS | {"none": (none, ())})[name]
  method, weights = pair(OWN, drafter(), target_only()), speculate.Weights(PARAMS, params)
  settings = Settings(jnp.full(B, temperature), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B))
  request = speculate.DecodeRequest(
    settings, request_keys(1, np.arange(B)), jnp.asarray(LIMIT), jnp.array([-1])
  )
  state = speculate.compiled_start(method, weights, TOKENS, LENGTH, request, 40)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(99))
  return [state.context.tokens[b, :n].tolist() for b, n in enumerate(LIMIT)], state


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", METHODS)
def test_texts_are_those_of_plain_decoding(name, temperature):
  """Of rows of unlike lengths in one batch."""
  got, state = decode(name, temperature)
  want, plain = decode("none", temperature)
  assert got == want and bool(state.done.all())
  fewer = int(state.stats.passes.sum()) < int(plain.stats.passes.sum())
  assert fewer or name in ("swift", "del") or temperature > 0


@pytest.mark.full
def test_all_layers_draft_what_the_target_says():
  _, state = decode("self_speculative, all", 0.0)
  accepted, offered = np.asarray(state.stats.accepted), np.asarray(state.stats.offered)
  depth = np.arange(4)
  # A row's last draft may be cut by its budget after it was accepted.
  assert (accepted @ depth >= offered @ depth - 3).all() and (accepted @ depth > 3).all()


@pytest.mark.full
def test_the_threshold_follows_each_row_alone():
  _, state = decode("self_speculative", 0.8)
  limit = np.asarray(state.drafter.limit.value)
  assert len(set(limit.tolist())) > 1 and (np.abs(limit - 0.05) < 0.05).all()


# --- LayerSkip and DEL


def drafted_rows(exit: int, longest: int = D):
  early = first_layers(L, exit)
  return draft_of(PARAMS, text(), early, longest=jnp.int32(longest), whole=True)


@pytest.mark.full
def test_the_pass_that_verifies_reads_the_late_layers_alone():
  """And gives what a whole pass gives."""
  exit = 2
  draft, rows = drafted_rows(exit)
  mask = ancestors(draft.parent, D)
  layers = {
    name: jax.tree.map(jnp.full_like, x, jax.tree.map(lambda _: jnp.nan, x))
    if name in ("layer_0", "layer_1")
    else x
    for name, x in PARAMS["params"].items()
  }
  run = jax.jit(lambda params, rows: finished(OWN, params, rows, exit, text().cache, draft, mask))
  got, _ = run({"params": layers}, rows)
  want = chain_pass(PARAMS, draft)
  np.testing.assert_allclose(got.logits, want.logits, atol=1e-3)
  for one, other in zip(jax.tree.leaves(got.kv), jax.tree.leaves(want.kv), strict=True):
    np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.full
def test_nodes_that_were_not_drafted_are_finite_and_change_nothing():
  (some, rows), (all_, every) = drafted_rows(3, 1), drafted_rows(3)
  mask = ancestors(some.parent, D)
  run = jax.jit(lambda rows, draft: finished(OWN, PARAMS, rows, 3, text().cache, draft, mask)[0])
  got, want = run(rows, some), run(every, all_)
  assert bool(jnp.isfinite(got.logits).all())
  np.testing.assert_allclose(got.logits[:, :2], want.logits[:, :2], atol=1e-4)


def worth_its_layers(draft, exit: int, rate: float) -> list[int]:
  """How many nodes each row has: the root, and tokens that are worth the layers below the exit."""
  average = max(sum(rate**i for i in range(d + 1)) / (d * exit + L) for d in range(D + 1))
  run = np.arange(L)[:, None].repeat(2, 1) < exit
  sure = jax.nn.softmax(chain_pass(without(run), draft).logits).max(-1)[:, :-1]
  joint = np.cumprod(np.asarray(sure), 1)
  return [
    2 + next((i for i, p in enumerate(row[:-1]) if p * rate < average * exit), D - 1)
    for row in joint
  ]


@pytest.mark.full
def test_shadow_tokens_are_what_each_exit_would_have_said():
  drafter = dynamic_exit(OWN, D + 1, 2)
  # What was seen makes the exit behind 4 layers the best, with a long draft.
  known = Shadows(jnp.array([0.0, 30.0]), jnp.full(2, 30.0))
  state = drafter.init(known, PARAMS, context=text(), features=None, capacity=24)
  draft, state = jax.jit(drafter.propose)((), PARAMS, state, text(), None, None)
  assert state.exit.tolist() == [4] * B and bool(draft.valid[:, 1].all())
  assert draft.valid.sum(1).tolist() == worth_its_layers(draft, 4, (B * 30 + 1) / (B * 30 + 2))
  mask = ancestors(draft.parent, D)
  seen = jax.jit(drafter.evaluate)((), PARAMS, state, text().cache, draft, mask)
  count = int(draft.valid[0].sum())
  states = chain_pass(PARAMS, draft).features.hidden_layers
  for i, layer in enumerate((2, 4)):
    want = OWN.head(PARAMS, OWN.norm(PARAMS, states[layer])).argmax(-1)
    np.testing.assert_array_equal(seen.aux[:, i, :count], want[:, :count])
  # Only nodes up to the first refused one count, and no row that is finished.
  accepted = jnp.array([0, 1, 1], jnp.int32)
  path = jnp.zeros((B, D + 1), jnp.int32)
  verdict = Verdict(path, accepted, seen.aux[:, 0])
  after = drafter.update(
    (), PARAMS, state, draft=draft, evaluation=seen, verdict=verdict, rows=jnp.array([1, 2, 0])
  )
  known, now = np.array([1, 2]), after.shadows
  np.testing.assert_allclose(now.seen[:2, 0], 0.95 * 30 + known)
  np.testing.assert_allclose(now.hit[:2, 0], known)
  both = [(seen.aux[b, 1] == seen.aux[b, 0])[: known[b]].sum() for b in range(2)]
  np.testing.assert_allclose(now.hit[:2, 1], 0.95 * 30 + np.array(both), rtol=1e-6)
  np.testing.assert_array_equal(now.seen[2], state.shadows.seen[2])
  # The next requests begin with the mean of the rows.
  kept = drafter.keep((), after, text())
  np.testing.assert_allclose(kept.hit, np.asarray(now.hit).mean(0), rtol=1e-6)


def test_expected_tokens_per_loaded_layer():
  rate, exits = jnp.array([0.5, 0.9]), jnp.array([2.0, 4.0])
  got = expected_tokens_per_layer(rate, exits, 6, 3)
  for x in range(2):
    a, e = float(rate[x]), float(exits[x])
    for d in range(4):
      assert float(got[x, d]) == pytest.approx((1 - a ** (d + 1)) / (1 - a) / (d * e + 6), rel=1e-5)


# --- Files and names


def test_a_set_is_kept_in_a_file(tmp_path):
  file = tmp_path / "set.json"
  skipped_layers.save(file, RUN, {"model": "x"})
  np.testing.assert_array_equal(skipped_layers.load(file, L), RUN)


@pytest.mark.parametrize("raw, words", [
  ({"layers": L, "attention": [6], "mlp": []},
   r"`attention\[0\]` must be between 0 and 5, got 6\."),
  ({"layers": 40, "attention": [], "mlp": []}, r"`layers` must be 6, those of the model, got 40\."),
  ({"layers": L, "attention": [1]}, "lacks 'mlp'"),
  ({"layers": L, "attention": [True], "mlp": []}, "True"),
  ([], "no JSON object"),
])  # fmt: skip
def test_a_file_that_is_no_set_is_refused(raw, words, tmp_path):
  (tmp_path / "set.json").write_text(json.dumps(raw))
  with pytest.raises(ValueError, match=words):
    skipped_layers.load(tmp_path / "set.json", L)


@pytest.mark.parametrize("make, words", [
  (lambda: self_speculative(OWN, 1),
   "`nodes` must be at least 2, so that self_speculative drafts a token, got "
   r"1\."), (lambda: layerskip(OWN, 4, L),
   r"`exit` between 1 and 5 of the model's layers for layerskip, got 4 and 6\."),
  (lambda: layerskip(OWN, 4, 0),
   "`exit` between 1 and 5 of the model's layers for layerskip, got 4 and "
   r"0\."), (lambda: dynamic_exit(OWN, 4, L),
   r"`every` between 1 and 5 layers for del, got 4 and 6\."),
  (lambda: swift(OWN, 4, 0),
   "`window` at least 1 and `skip` between 0 and 1 for swift, got 4, 0 and "
   r"0\.45\."), (lambda: swift(OWN, 4, 8, 1.5),
   r"`skip` between 0 and 1 for swift, got 4, 8 and 1\.5\."),
  (lambda: swift(target(dataclasses.replace(CONFIG, layers=2))),
   r"the model of swift must have at least 3 layers, got 2\."),
  (lambda: swift(table_model(8)),
   r"the target of swift must be a LayeredTarget, which shows.*got one of type Target\."),
  (lambda: layerskip(table_model(8)),
   r"the target of layerskip must be a LayeredTarget, which.*got one of type Target\."),
])  # fmt: skip
def test_bad_numbers_are_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()
