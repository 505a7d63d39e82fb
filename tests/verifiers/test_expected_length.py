"""Every rule accepts as many tokens as published, where distributions do not depend on the text.

All outcomes of draft and coins are enumerated; the last token, which counts one, is not.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.base import Draft
from specjax.drafters import draft_model, draft_tree
from specjax.eval import theory
from specjax.sampling import DRAFT, Settings
from specjax.testing import table_model
from specjax.testing.enumerate import Script, probability
from specjax.verifiers import block, k_seq, recursive, target_only, token, traversal
from specjax.verifiers.k_seq import ratio

P, Q = (0.5, 0.3, 0.15, 0.05), (0.2, 0.4, 0.1, 0.3)
TWO_THIRDS = ((1 / 3, 2 / 3), (2 / 3, 1 / 3))
RECURSIVE, TRAVERSAL = recursive(), traversal()


class Counting(Script):
  """Leaves the last token out."""

  def draw(self, stream, log_probs):
    return (
      super().draw(stream, log_probs) if stream >= DRAFT else jnp.zeros(len(log_probs), jnp.int32)
    )


def rows_of(log_probs, script):
  return jnp.log(
    jnp.broadcast_to(jnp.asarray(log_probs, jnp.float32), (len(script.rows), 1, len(log_probs)))
  )


def drafted(script: Script, q, drafter, tree: trees.Tree | None) -> Draft:
  log_probs, root = rows_of(q, script), jnp.zeros((len(script.rows), 1), jnp.int32)
  if tree is not None:
    one = jnp.ones(len(root))
    settings = Settings(one, jnp.zeros(len(root), jnp.int32), one, 0 * one)
    sampling = trees.Sampling(settings, script, len(q))
    return tree.fill(root, trees.Guesser(lambda *_: (log_probs, (), ()), sampling=sampling))
  D = drafter.depth
  tokens = [root[:, 0], *(script.draw(DRAFT + i, log_probs[:, 0]) for i in range(D))]
  node = jnp.broadcast_to(jnp.arange(D + 1), (len(root), D + 1))
  distributions = jnp.broadcast_to(log_probs, (len(root), D + 1, log_probs.shape[-1]))
  return Draft(jnp.stack(tokens, 1), jnp.maximum(node - 1, 0), node, node >= 0, distributions)


def expected_tokens(verifier, p, q, drafter, tree=None) -> float:
  def play(rows):
    script = Counting(rows)
    draft = drafted(script, q, drafter, tree)
    log_probs = rows_of(p, script)
    log_probs = jnp.broadcast_to(log_probs, (len(rows), drafter.nodes, log_probs.shape[-1]))
    verdict = verifier.verify(
      (), draft, log_probs, None, script, depth=drafter.depth, proposal=drafter.proposal
    )
    play.combinations = script.combinations
    return verdict.count, script.record

  jax.eval_shape(play, jnp.zeros(1, jnp.int32))
  count, record = jax.device_get(jax.jit(play)(jnp.arange(play.combinations)))
  weight = np.prod([probability(entry) for entry in record], axis=0)
  np.testing.assert_allclose(weight.sum(), 1, rtol=1e-6)
  return 1 + float(weight @ count)


@pytest.mark.parametrize(
  ("distributions", "verifier", "want"),
  [
    ((P, Q), token(), (1.65, 2.0725, 2.347125)),
    ((P, Q), block(), (1.65, 2.12, 2.4805)),
    ((P, Q), RECURSIVE, (1.65, 2.0725, 2.347125)),
    ((P, Q), TRAVERSAL, (1.65, 2.12, 2.4805)),
    ((P, Q), target_only(), None),
    (TWO_THIRDS, token(), (5 / 3, 1 + 10 / 9, 1 + 38 / 27)),
    (TWO_THIRDS, block(), (5 / 3, 1 + 11 / 9, 1 + 45 / 27)),
  ],
  ids=lambda x: getattr(x, "name", None),
)
def test_chains(distributions, verifier, want):
  p, q = distributions
  if want is None:  # a drawn token is followed when the target draws it too
    a = float(np.dot(p, q))
    want = (1 + a, 1 + a + a**2)
  for depth, tokens in enumerate(want, 1):
    chain = draft_model(table_model(len(p)), depth + 1)
    np.testing.assert_allclose(expected_tokens(verifier, p, q, chain), tokens, rtol=2e-6)


@pytest.mark.parametrize(
  ("widths", "how", "verifier", "want"),
  [
    ((2,), "without_replacement", RECURSIVE, 1.804762),
    ((2,), "without_replacement", TRAVERSAL, 1.804762),
    ((2,), "iid", RECURSIVE, 1.755),
    ((2,), "iid", k_seq(), 1.788098),
    ((2,), "mixed", RECURSIVE, 1.833333),
    ((2,), "iid", target_only(), 1.426),
    ((2,), "without_replacement", target_only(), 1.500992),
    ((3,), "iid", RECURSIVE, 1.819),
    ((3,), "without_replacement", RECURSIVE, 1.934286),
    ((3,), "iid", k_seq(), 1.858519),
    ((3,), "mixed", RECURSIVE, 2.0),
    ((2, 1), "without_replacement", RECURSIVE, 2.327857),
    ((2, 1), "without_replacement", TRAVERSAL, 2.376071),
    ((2, 1), "iid", RECURSIVE, 2.24575),
    pytest.param((2, 2), "without_replacement", RECURSIVE, 2.452404, marks=pytest.mark.full),
    pytest.param((2, 2), "without_replacement", TRAVERSAL, 2.505068, marks=pytest.mark.full),
    pytest.param((2, 2), "iid", RECURSIVE, 2.325025, marks=pytest.mark.full),
  ],
)
def test_trees(widths, how, verifier, want):
  tree = trees.build(how, widths)
  got = expected_tokens(verifier, P, Q, draft_tree(table_model(4), tree), tree)
  np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_the_ratio_of_k_seq_accepts_what_the_figures_say():
  """Flat and peaked distributions, equal and disjoint ones, and tokens without mass."""
  rng = np.random.default_rng(0)
  p, q = (rng.dirichlet(np.full(40, x), 30) for x in (0.1, 0.3))
  q[10:15], p[15:20, :20], q[15:20, 20:] = p[10:15], 0, 0
  p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
  for count in range(1, 7):
    of_rows = np.full(30, count, np.int32)
    rho, beta = ratio(*(jnp.asarray(x, jnp.float32) for x in (p, q)), jnp.asarray(of_rows))
    assert (np.asarray(rho) >= 1).all() and (np.asarray(rho) <= count).all()
    accepted = 1 - (1 - np.asarray(beta, np.float64)) ** count
    want = [theory.acceptance(x, y, count, "k_seq") for x, y in zip(p, q, strict=True)]
    np.testing.assert_allclose(accepted, want, atol=2e-6)


def with_multiplicity(p, q, widths, alive: int = 1) -> float:
  """Expected tokens of K-SEQ where `alive` nodes of one text have widths[0] children each."""
  if not widths:
    return 1.0
  k, tokens = alive * widths[0], 1.0
  p, q = np.asarray(p, np.float32), np.asarray(q, np.float32)
  passing = np.minimum(1, p / (float(ratio(p, q, jnp.int32(k))[0]) * q))
  for drafts in itertools.product(range(len(q)), repeat=k):
    weight = np.prod(q[list(drafts)])
    for x in drafts:
      equal = drafts.count(x)
      tokens += weight * passing[x] * with_multiplicity(p, q, widths[1:], equal)
      weight *= 1 - passing[x]
  return tokens


@pytest.mark.slow
@pytest.mark.full(but=["widths1"])
@pytest.mark.parametrize("widths", [(2,), (2, 1), (3, 1), (2, 1, 1)])
def test_k_seq_keeps_equal_beginnings_together(widths):
  got = expected_tokens(
    k_seq(), P, Q, draft_tree(table_model(4), trees.build("iid", widths)),
    trees.build("iid", widths),
  )  # fmt: skip
  assert got == pytest.approx(with_multiplicity(P, Q, widths), abs=1e-5)
  apart = theory.tree_length(P, Q, widths, "k_seq")
  assert got > apart + 1e-2 if len(widths) > 1 else got == pytest.approx(apart, abs=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_weighing_all_of_a_draft_accepts_no_less(seed):
  p, q = np.random.default_rng(seed).dirichlet(np.ones(4), 2)
  for depth in (2, 3):
    chain = draft_model(table_model(4), depth + 1)
    whole, single = (expected_tokens(rule, p, q, chain) for rule in (block(), token()))
    assert whole >= single - 1e-5
  for widths, how in (((2, 1), "without_replacement"), ((2, 1), "iid"), ((2, 2), "mixed")):
    tree = trees.build(how, widths)
    drafter = draft_tree(table_model(4), tree)
    whole, single = (expected_tokens(r, p, q, drafter, tree) for r in (TRAVERSAL, RECURSIVE))
    assert whole >= single - 1e-5
