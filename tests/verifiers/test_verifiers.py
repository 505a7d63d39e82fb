"""The rules against plain loops and closed forms; testing/test_enumeration.py has distributions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import PROPOSALS, Draft
from specjax.sampling import DRAFT, Noise, request_keys
from specjax.testing.enumerate import Script, probability
from specjax.verifiers import VERIFIERS, greedy, token, typical, unverified

B, N, D, V = 60, 8, 4, 6


def of_chain(depth: int) -> dict:
  """What a rule is told of the drafter of a chain."""
  return {"depth": depth, "proposal": "chain"}


def random_case(seed: int):
  """(draft, distribution) with depths up to D, repeated siblings and padding."""
  rng = np.random.default_rng(seed)
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


@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.3, 0.09), (0.02, 0.9)])
def test_typical_equals_a_plain_loop(epsilon, delta):
  draft, log_probs = random_case(0)
  noise = Noise(request_keys(0, np.arange(B)), jnp.full(B, 4))
  rule = typical(epsilon, delta)
  assert rule.exactness == f"LOSSY (epsilon={epsilon}, delta={delta})"
  verdict = jax.jit(rule.verify, static_argnames=("depth", "proposal"))(
    (), draft, log_probs, None, noise, **of_chain(D)
  )
  after = noise.choose(log_probs, draft.depth)
  tokens, parent, depth, valid = (np.asarray(x) for x in draft[:4])
  p = np.exp(np.asarray(log_probs, np.float64))
  entropy = -(p * np.log(p)).sum(-1)
  threshold = np.minimum(epsilon, delta * np.exp(-entropy))
  counts = []
  for b in range(B):
    best, best_score = [0], (0, 0.0)
    for i in range(1, N):
      path = [i]
      while path[0]:
        path.insert(0, int(parent[b, path[0]]))
      steps = list(itertools.pairwise(path))
      kept = [p[b, above, tokens[b, x]] > threshold[b, above] and valid[b, x] for above, x in steps]
      likelihood = sum(np.log(p[b, above, tokens[b, x]]) for above, x in steps)
      # Longer wins, then clearly likelier; the first of equals stays.
      better = (depth[b, i], likelihood - 1e-5) > best_score
      if all(kept) and better:
        best, best_score = path, (depth[b, i], likelihood)
    n = len(best) - 1
    counts.append(n)
    assert verdict.count[b] == n
    assert verdict.path[b].tolist() == best + [best[-1]] * (D - n)
    want = [*tokens[b, best[1:]].tolist(), int(after[b, best[-1]])]
    assert verdict.tokens[b, : n + 1].tolist() == want
  assert len(set(counts)) > 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unverified_takes_the_whole_draft(temperature):
  draft, log_probs = random_case(1)
  draft = draft._replace(valid=draft.valid.at[:9, 1:].set(False))  # nothing is drafted
  noise = Noise(request_keys(0, np.arange(B)), jnp.full(B, 4))
  if temperature == 0:
    log_probs = jnp.where(log_probs == log_probs.max(-1, keepdims=True), 0.0, -jnp.inf)
  rule = unverified()
  assert rule.exactness.startswith("LOSSY") and rule.temperature == "any"
  verdict = jax.jit(rule.verify, static_argnames=("depth", "proposal"))(
    (), draft, log_probs, None, noise, **of_chain(D)
  )
  after = np.asarray(noise.choose(log_probs, draft.depth))
  tokens, parent, _, valid = (np.asarray(x) for x in draft[:4])
  for b in range(B):
    paths = {0: [0]}
    for i in range(1, N):
      if valid[b, i] and parent[b, i] in paths:
        paths[i] = [*paths[parent[b, i]], i]
    best = max(paths.values(), key=len)  # the first of the longest
    assert verdict.count[b] == len(best) - 1 and (b >= 9 or len(best) == 1)
    assert verdict.path[b].tolist() == best + [best[-1]] * (D + 1 - len(best))
    want = [*tokens[b, best[1:]].tolist(), after[b, best[-1]]]
    assert verdict.tokens[b, : len(best)].tolist() == want
    assert temperature or want[-1] == log_probs[b, best[-1]].argmax()


def test_greedy_takes_the_lower_token_and_the_first_sibling_on_ties():
  log_probs = jnp.log(
    jnp.array([[[0.2, 0.4, 0.4], [0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.6, 0.2, 0.2]]])
  )
  draft = Draft(
    tokens=jnp.array([[0, 2, 1, 1]]), parent=jnp.array([[0, 0, 0, 0]]),
    depth=jnp.array([[0, 1, 1, 1]]), valid=jnp.ones((1, 4), bool),
  )  # fmt: skip
  verdict = greedy().verify((), draft, log_probs, None, None, **of_chain(1))
  assert verdict.path.tolist() == [[0, 2]]
  assert verdict.tokens.tolist() == [[1, 2]]


@pytest.mark.parametrize(("gamma", "want"), [(1, 2 / 3), (2, 10 / 9), (3, 38 / 27)])
def test_token_accepts_as_many_as_the_closed_form(gamma, want):
  # Distributions that do not depend on the text: E[count] sums (1 - TV(p, q)) ** d over depths.
  log_p, log_q = jnp.log(jnp.array([1 / 3, 2 / 3])), jnp.log(jnp.array([2 / 3, 1 / 3]))
  rows = 2 ** (2 * gamma + 1)
  script = Script(jnp.arange(rows))
  p, q = (jnp.broadcast_to(x, (rows, gamma + 1, 2)) for x in (log_p, log_q))
  drawn = [script.draw(DRAFT + i, q[:, i]) for i in range(gamma)]
  tokens = jnp.stack([jnp.zeros(rows, jnp.int32), *drawn], 1)
  node = jnp.broadcast_to(jnp.arange(gamma + 1), tokens.shape)
  chain = Draft(tokens, jnp.maximum(node - 1, 0), node, jnp.ones(tokens.shape, bool), q)
  verdict = token().verify((), chain, p, None, script, **of_chain(gamma))
  weight = np.prod([probability(entry) for entry in script.record], axis=0)
  assert script.combinations == rows
  np.testing.assert_allclose(weight.sum(), 1, rtol=1e-6)
  np.testing.assert_allclose(weight @ np.asarray(verdict.count), want, rtol=1e-6)


@pytest.mark.slow
def test_token_accepts_everything_when_the_distributions_agree():
  rng = np.random.default_rng(0)
  log_probs = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(B, D + 1, V)), jnp.float32))
  noise = Noise(request_keys(0, np.arange(B)), jnp.full(B, 4))
  tokens = jnp.stack([noise.draw(DRAFT + i, log_probs[:, max(i - 1, 0)]) for i in range(D + 1)], 1)
  node = jnp.broadcast_to(jnp.arange(D + 1), tokens.shape)
  chain = Draft(tokens, jnp.maximum(node - 1, 0), node, jnp.ones(tokens.shape, bool), log_probs)
  verdict = token().verify((), chain, log_probs, None, noise, **of_chain(D))
  assert verdict.count.tolist() == [D] * B
  np.testing.assert_array_equal(verdict.tokens[:, :D], tokens[:, 1:])


def test_token_stops_where_a_chain_ends():
  # The chain is one token long; after it the distribution is the target's, uncorrected.
  rows = 2**D * V
  script = Script(jnp.arange(rows))
  q = jnp.log(jnp.broadcast_to(jnp.eye(V)[0], (rows, D + 1, V)) * 0.5 + 0.5 / V)
  p = jnp.broadcast_to(jax.nn.log_softmax(jnp.arange(V, dtype=jnp.float32)), (rows, D + 1, V))
  node = jnp.broadcast_to(jnp.arange(D + 1), (rows, D + 1))
  chain = Draft(jnp.full_like(node, V - 1), jnp.maximum(node - 1, 0), node, node < 2, q)
  verdict = token().verify((), chain, p, None, script, **of_chain(D))
  assert verdict.count.max() == 1
  after = np.asarray(script.record[-1].log_probs)[np.asarray(verdict.count) == 1]
  np.testing.assert_allclose(after, np.broadcast_to(p[0, 0], after.shape), rtol=1e-5)


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_rule_says_what_it_is(name):
  rule = VERIFIERS[name]()
  assert rule.name == name
  assert rule.exactness.split()[0] in ("GREEDY-EXACT", "EXACT", "LOSSY")
  assert rule.accepts <= PROPOSALS
