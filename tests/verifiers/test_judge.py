"""The judge against plain loops, and its limits: nothing right, everything right, NaN."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, speculate
from specjax.base import Draft, Features
from specjax.decoding.method import method as pair
from specjax.sampling import COIN, DRAFT, RESIDUAL, Noise, Settings, request_keys
from specjax.testing import random_draft, random_table, table_model
from specjax.verifiers import judge, target_only, token
from specjax.verifiers.judge import Judge, probability

B, N, D, V, E = 60, 8, 4, 6, 5
CHAIN = drafters.draft_model(table_model(V), D + 1)
TREE = random_draft([[0]], V)._replace(depth=D)
NOISE = Noise(request_keys(0, np.arange(B)), jnp.full(B, 4))
HEAD = Judge(jnp.asarray(np.random.default_rng(5).normal(size=E), jnp.float32), jnp.float32(-0.3))
NOTHING, EVERYTHING = (HEAD._replace(b=jnp.float32(b)) for b in (-np.inf, np.inf))


def random_features(nodes: int) -> Features:
  return Features(jnp.asarray(np.random.default_rng(6).normal(size=(B, nodes, E)), jnp.float32))


def random_tree():
  """(draft, distribution): depths up to D, repeated siblings, padding."""
  rng = np.random.default_rng(0)
  parent, depth = np.zeros((B, N), np.int32), np.zeros((B, N), np.int32)
  for b in range(B):
    for i in range(1, N):
      parent[b, i] = rng.choice(np.flatnonzero(depth[b, :i] < D))
      depth[b, i] = depth[b, parent[b, i]] + 1
  tokens = rng.integers(V, size=(B, N)).astype(np.int32)
  valid = rng.random((B, N)) < 0.9
  valid[:, 0] = True
  log_probs = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(B, N, V)) * 2, jnp.float32))
  return Draft(*map(jnp.asarray, (tokens, parent, depth, valid))), log_probs


def random_chain():
  """(draft, distribution): chains drawn from q, of all lengths up to D."""
  rng = np.random.default_rng(1)
  log_probs, q = (
    jax.nn.log_softmax(jnp.asarray(rng.normal(size=(B, D + 1, V)) * 2, jnp.float32)) for _ in "pq"
  )
  tokens = jnp.stack([NOISE.draw(DRAFT + i, q[:, max(i - 1, 0)]) for i in range(D + 1)], 1)
  node = jnp.broadcast_to(jnp.arange(D + 1), tokens.shape)
  valid = node <= jnp.asarray(rng.integers(D + 1, size=(B, 1)))
  return Draft(tokens, jnp.maximum(node - 1, 0), node, valid, q), log_probs


CASES = {"chain": (CHAIN, token(), random_chain()), "tree": (TREE, target_only(), random_tree())}


def verify(rule, params, name: str, features=None):
  drafter, _, (draft, log_probs) = CASES[name]
  features = features or random_features(draft.tokens.shape[1])
  run = jax.jit(rule.verify, static_argnames=("depth", "proposal"))
  return run(
    params, draft, log_probs, features, NOISE, depth=drafter.depth, proposal=drafter.proposal
  )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("params", [NOTHING, HEAD._replace(b=jnp.float32(np.nan))])
def test_a_judge_that_finds_nothing_right_is_its_base(name, params):
  base = CASES[name][1]
  chex.assert_trees_all_equal(verify(judge(), params, name), verify(base, (), name))


@pytest.mark.parametrize("name", CASES)
def test_states_that_are_not_numbers_are_not_right(name):
  states = jnp.full((B, CASES[name][2][0].tokens.shape[1], E), jnp.nan)
  got = verify(judge(), EVERYTHING, name, Features(states))
  chex.assert_trees_all_equal(got, verify(CASES[name][1], (), name))


def test_a_judge_that_finds_everything_right_accepts_the_whole_chain():
  draft, _ = CASES["chain"][2]
  verdict = verify(judge(), EVERYTHING, "chain")
  np.testing.assert_array_equal(verdict.count, draft.valid.sum(1) - 1)
  for b, n in enumerate(np.asarray(verdict.count)):
    assert verdict.tokens[b, :n].tolist() == draft.tokens[b, 1 : n + 1].tolist()


def right_by_hand(features: Features, threshold: float) -> np.ndarray:
  score = np.asarray(features.hidden, np.float64) @ np.asarray(HEAD.w) + float(HEAD.b)
  return 1 / (1 + np.exp(-score)) > threshold


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_a_tree_is_walked_as_by_a_plain_loop(threshold):
  draft, log_probs = CASES["tree"][2]
  features = random_features(N)
  right = right_by_hand(features, threshold)
  assert judge(threshold).exactness == f"LOSSY (threshold={threshold})"
  verdict = verify(judge(threshold), HEAD, "tree", features)
  after = np.asarray(NOISE.choose(log_probs, draft.depth))
  tokens, parent, _, valid = (np.asarray(x) for x in draft[:4])
  overruled = 0
  for b in range(B):
    best: list[int] = []
    walks = [[0]]
    while walks:  # siblings that repeat a token are walked apart; the deepest walk wins
      walk = walks.pop(0)
      children = [i for i in range(1, N) if parent[b, i] == walk[-1] and valid[b, i]]
      said = [i for i in children if tokens[b, i] == after[b, walk[-1]]]
      passed = [i for i in children if right[b, i]]
      if not said and passed:
        said = [i for i in children if tokens[b, i] == tokens[b, passed[0]]]
        overruled += 1
      walks += [[*walk, i] for i in said]
      if len(walk) > len(best) or (len(walk) == len(best) and walk[-1] < best[-1]):
        best = walk
    n = len(best) - 1
    assert verdict.count[b] == n
    assert verdict.path[b, : n + 1].tolist() == best
    assert verdict.tokens[b, : n + 1].tolist() == [*tokens[b, best[1:]], after[b, best[-1]]]
  assert overruled > 10


def test_a_chain_is_judged_at_the_token_and_weighed_before_it():
  draft, log_probs = CASES["chain"][2]
  features = random_features(D + 1)
  right = right_by_hand(features, 0.5)
  verdict = verify(judge(), HEAD, "chain", features)
  p, q = np.exp(np.asarray(log_probs)), np.exp(np.asarray(draft.log_probs))
  row, x = np.arange(B), np.asarray(draft.tokens)
  coins = np.stack([p[row, d, x[:, d + 1]] for d in range(D)], 1)
  weights = np.stack([q[row, d, x[:, d + 1]] for d in range(D)], 1)
  coins = np.asarray(NOISE.accept(COIN, jnp.asarray(coins), jnp.asarray(weights)))
  overruled = 0
  for b in range(B):
    length, n = int(draft.valid[b].sum()) - 1, 0
    while n < length and (coins[b, n] or right[b, n + 1]):
      overruled += not coins[b, n]
      n += 1
    assert verdict.count[b] == n
    assert verdict.tokens[b, :n].tolist() == x[b, 1 : n + 1].tolist()
  assert overruled > 10
  n = np.asarray(verdict.count)
  proposed = n < np.asarray(draft.valid).sum(1) - 1
  left = np.maximum(p[row, n] - np.where(proposed[:, None], q[row, n], 0), 0)
  left = np.where(left.sum(1, keepdims=True) > 0, left, p[row, n])
  with np.errstate(divide="ignore"):
    extra = NOISE.draw(RESIDUAL, jnp.asarray(np.log(left)))
  assert verdict.tokens[row, n].tolist() == extra.tolist()


def test_another_head_is_not_another_trace():
  rule = judge(0.7)

  @jax.jit
  @chex.assert_max_traces(n=1)
  def run(params, log_probs):
    draft, _ = CASES["tree"][2]
    return rule.verify(
      params, draft, log_probs, random_features(N), NOISE, depth=TREE.depth, proposal=TREE.proposal
    )

  _, log_probs = CASES["tree"][2]
  for params in (HEAD, NOTHING, EVERYTHING):
    run(params, log_probs)


@pytest.mark.slow
def test_it_decodes_in_the_loop_and_a_judge_without_weights_is_refused():
  drafter = drafters.draft_model(table_model(V), 3)
  method = pair(table_model(V), drafter, judge())
  tokens, length = jnp.zeros((1, 4), jnp.int32), jnp.array([4])
  one = jnp.ones(1)
  request = speculate.DecodeRequest(
    Settings(one, jnp.zeros(1, jnp.int32), one, 0 * one), request_keys(0, [0]), jnp.array([16]),
    jnp.array([-1]),
  )  # fmt: skip
  table, other = random_table(0, V), random_table(1, V)
  params = Judge(jnp.zeros(V), jnp.float32(9))
  weights = speculate.Weights(table, other, params)
  state = speculate.start(method, weights, tokens, length, request, 20)
  state = speculate.advance(method, weights, request, state, jnp.int32(9))
  assert state.stats.accepted.tolist() == [[0, 0, 4]]
  state = speculate.start(method, weights, tokens, length, request, 20)
  with pytest.raises(
    ValueError, match=r"`params` of verifier='judge' must be a trained Judge, got \(\)"
  ):
    speculate.advance(method, weights._replace(verifier=()), request, state, jnp.int32(9))


def test_the_probability_is_a_logistic_one():
  hidden = random_features(3).hidden.astype(jnp.bfloat16)
  score = np.asarray(hidden, np.float64) @ np.asarray(HEAD.w, np.float64) + float(HEAD.b)
  got = probability(HEAD, hidden)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, 1 / (1 + np.exp(-score)), rtol=1e-5)
