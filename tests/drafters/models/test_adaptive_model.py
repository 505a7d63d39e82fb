"""A chain that a policy ends: which tokens it has, what it costs, and what is remembered."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.decoding.method import method as pair
from specjax.draft_length import confidence, constant, heuristic
from specjax.draft_length.base import DraftLength
from specjax.drafters import adaptive_model, draft_model, none
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.sampling import Noise, Settings, request_keys
from specjax.testing import random_table, table_model
from specjax.verifiers import target_only, token

V, T, D = 8, 6, 4
SMALL = Config(vocab_size=V, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=8)
TABLE = table_model(V)
LENGTH = np.array([6, 1, 3], np.int32)
B = len(LENGTH)
TOKENS = np.random.default_rng(1).integers(V, size=(B, T)).astype(np.int32)


def small_params():
  rng = np.random.default_rng(0)
  init = functools.partial(transformer.init, SMALL)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, jnp.float32), shapes)


SMALL_PARAMS = small_params()
WEIGHTS = speculate.Weights(random_table(0, V), (SMALL_PARAMS, ()))


def request_of(temperature: float = 0.8, limit=(26, 4, 30)) -> speculate.DecodeRequest:
  settings = Settings(jnp.full(B, temperature), jnp.full(B, 0), jnp.full(B, 1.0), jnp.full(B, 0.0))
  keys = request_keys(1, np.arange(B))
  return speculate.DecodeRequest(settings, keys, jnp.array(limit), jnp.array([-1]))


def start(drafter, weights, request, rule=None):
  method = pair(TABLE, drafter, rule or token())
  return method, speculate.compiled_start(method, weights, TOKENS, LENGTH, request, 40)


def proposed(drafter, params, temperature: float = 0.8, change=lambda state: state):
  """The first draft of a table model, or of what replaces it."""
  request = request_of(temperature)
  weights = speculate.Weights(random_table(0, V), params)
  _, state = start(drafter, weights, request, target_only())
  noise = Noise(request.key, state.context.length)
  return jax.jit(drafter.propose)(
    params, (), change(state.drafter), state.context, request.settings, noise
  )


@pytest.mark.slow
@pytest.mark.full(but=["dropped"])
@pytest.mark.parametrize(
  "policy",
  [constant(2), confidence(0.2, D, step=0.5), confidence(0.2, D, step=0.5, keep=False)],
  ids=["before", "truncated", "dropped"],
)
def test_its_cache_is_that_of_the_committed_text(policy):
  request, capacity = request_of(), 40
  method, state = start(adaptive_model(target(SMALL), policy, D + 1), WEIGHTS, request)
  prefill = jax.jit(target(SMALL).prefill, static_argnums=3)
  for _ in range(4):
    state = speculate.compiled_advance(method, WEIGHTS, request, state, jnp.int32(2))
    text, length, _ = state.context
    want, _ = prefill(SMALL_PARAMS, text, length, capacity)
    cache = state.drafter.cache
    np.testing.assert_array_equal(cache.length, length - 1)
    for got, expected in zip(jax.tree.leaves(cache.kv), jax.tree.leaves(want.kv), strict=True):
      for b, n in enumerate(np.asarray(length) - 1):
        np.testing.assert_allclose(got[b, :, :n], expected[b, :, :n], atol=1e-5)
  assert len(np.flatnonzero(state.stats.accepted.sum(0))) > 1  # cut back to several lengths
  assert len(np.flatnonzero(state.stats.offered.sum(0))) > (policy.name != "constant")


def lengths_by_hand(draft, least: float, keep: bool) -> list[int]:
  """How long each row is when tokens less likely than `least` end it; from the whole draft."""
  rows = np.exp(np.take_along_axis(draft.log_probs[:, :D], draft.tokens[:, 1:, None], -1)[..., 0])
  lengths = []
  for q in rows:
    low = [j for j in range(D) if q[j] < least]
    lengths.append(min(D, low[0] + keep) if low else D)
  return lengths


@pytest.mark.full
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("least", [0.05, 0.2, 0.5])
def test_it_is_the_draft_models_chain_up_to_where_it_ends(least, keep):
  table = random_table(7, V)
  want, _ = proposed(draft_model(TABLE, D + 1), table)
  policy = confidence(least, D, keep=keep)
  got, _ = proposed(adaptive_model(TABLE, policy, D + 1), (table, ()))
  lengths = lengths_by_hand(want, least, keep)
  np.testing.assert_array_equal(got.valid.sum(1) - 1, lengths)
  for b, n in enumerate(lengths):
    assert got.valid[b, : n + 1].all()
    np.testing.assert_array_equal(got.tokens[b, : n + 1], want.tokens[b, : n + 1])
    for i in range(min(n + 1, D)):
      log_probs = want.log_probs[b, i]
      dropped = -np.inf if not keep else log_probs
      expected = np.where(np.exp(log_probs) < np.float32(least), dropped, log_probs)
      np.testing.assert_array_equal(got.log_probs[b, i], expected)
    assert n < D or bool((got.log_probs[b, D] == -jnp.inf).all())


@pytest.mark.slow
@pytest.mark.full(but=["lengths1"])
@pytest.mark.parametrize("lengths", [(0, 0, 0), (1, 3, 0), (4, 1, 1), (2, 2, 9)])
def test_the_draft_model_runs_until_the_last_row_has_ended(lengths):
  """And once more, on the last token of the longest draft, which may be accepted."""
  runs = []

  def evaluate(*arguments, **hidden_layers):
    jax.debug.callback(lambda: runs.append(1))
    return TABLE.evaluate(*arguments, **hidden_layers)

  drafter = adaptive_model(dataclasses.replace(TABLE, evaluate=evaluate), constant(D), D + 1)
  wanted = jnp.array(lengths, jnp.int32)
  draft, _ = proposed(
    drafter, (random_table(7, V), ()),
    change=lambda state: state._replace(policy=state.policy._replace(length=wanted)),
  )  # fmt: skip
  jax.effects_barrier()
  np.testing.assert_array_equal(draft.valid.sum(1) - 1, np.minimum(lengths, D))
  assert len(runs) == min(max(lengths), D) + 1


def watching(stops: int) -> DraftLength:
  """Remembers the distribution it saw last, and stops after `stops` tokens."""
  return DraftLength(
    "watching", False, False, lambda batch: jnp.zeros((batch, V)),
    lambda params, state, seen: (jnp.full(B, seen.step >= stops), seen.log_probs),
    lambda state, accepted, drafted: state,
  )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_greedy_rows_are_seen_at_temperature_1(temperature):
  table = random_table(7, V)
  draft, state = proposed(adaptive_model(TABLE, watching(0), D + 1), (table, ()), temperature)
  before, root = (TOKENS[range(B), LENGTH - i] for i in (2, 1))
  logits = table["logits"][np.where(LENGTH > 1, before, V), root] / (temperature or 1.0)
  np.testing.assert_allclose(state.policy, jax.nn.log_softmax(logits), atol=1e-5)
  assert bool((jnp.exp(draft.log_probs[:, 0]).max(-1) == 1).all()) == (temperature == 0)


@pytest.mark.full
def test_what_a_row_sees_after_its_end_is_not_remembered():
  def last_seen(stops: int, depth: int):
    drafter = adaptive_model(TABLE, watching(stops), depth + 1)
    return proposed(drafter, (random_table(7, V), ()))[1].policy

  np.testing.assert_array_equal(last_seen(0, D), last_seen(0, 1))
  assert not (last_seen(2, D) == last_seen(0, D)).all()


@pytest.mark.full
def test_a_finished_row_keeps_its_policys_state():
  drafter = adaptive_model(TABLE, heuristic(3, D), D + 1)
  weights = speculate.Weights(random_table(0, V), (random_table(7, V), ()))
  request = request_of(limit=(26, 2, 30))
  method, state = start(drafter, weights, request)
  lengths, done = [], []
  for _ in range(8):
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(1))
    lengths.append(np.asarray(state.drafter.policy.length))
    done.append(np.asarray(state.done))
  assert done[0].tolist() == [False, True, False]
  assert len({int(x[1]) for x in lengths}) == 1
  assert len({int(x[2]) for x in lengths}) > 1


@pytest.mark.full
@pytest.mark.parametrize("keep", [True, False])
def test_greedy_tokens_are_those_of_plain_decoding_in_one_trace(keep):
  traces = []

  def evaluate(*arguments, **hidden_layers):
    traces.append(1)
    return TABLE.evaluate(*arguments, **hidden_layers)

  policy = confidence(0.3, D, keep=keep)
  drafter = adaptive_model(TABLE, policy, D + 1)
  weights = speculate.Weights(random_table(0, V), (random_table(0, V), ()))
  request = request_of(0.0)
  plain, state = start(none(), weights._replace(drafter=()), request, target_only())
  forever = jnp.int32(100)
  want = speculate.compiled_advance(plain, weights._replace(drafter=()), request, state, forever)
  method = pair(dataclasses.replace(TABLE, evaluate=evaluate), drafter, token())
  seen = set()
  for least in (0.0, 0.3, 0.6, 2.0):
    begin = speculate.compiled_start(method, weights, TOKENS, LENGTH, request, 40)
    limit = begin.drafter.policy._replace(value=jnp.full(B, least))
    begin = begin._replace(drafter=begin.drafter._replace(policy=limit))
    state = speculate.compiled_advance(method, weights, request, begin, forever)
    seen.add(int(state.stats.passes.sum()))
    for b, n in enumerate(request.limit):
      np.testing.assert_array_equal(state.context.tokens[b, :n], want.context.tokens[b, :n])
  assert len(seen) > 2 and len(traces) == 1


def test_it_drafts_one_token_at_least():
  with pytest.raises(
    ValueError, match=(r"`nodes` must be at least 2, so that a draft model drafts a token, got 1\.")
  ):
    adaptive_model(TABLE, constant(0), 1)
