"""Closed forms against golden numbers, against enumeration draft by draft, and a linear program."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from specjax.eval import theory

P, Q = (0.5, 0.3, 0.15, 0.05), (0.2, 0.4, 0.1, 0.3)
THIRDS = (1 / 3, 2 / 3), (2 / 3, 1 / 3)
DRAWN = ("iid", "without_replacement", "mixed")


def tables(count, size=4, sharpness=1.0, seed=0):
  """Random p and q f[count, size]; smaller is sharper."""
  return np.random.default_rng(seed).dirichlet(np.full(size, sharpness), (2, count))


def special_tables():
  """Equal distributions, ties, tokens that one lacks, a rare one, and a tail of all sizes."""
  return [
    (np.full(4, 0.25), np.full(4, 0.25)),
    (np.array([0.4, 0.1, 0.4, 0.1]), np.array([0.1, 0.4, 0.1, 0.4])),
    (np.array([0.0, 0.5, 0.5, 0.0]), np.array([0.5, 0.25, 0.25, 0.0])),
    (np.array([0.3, 0.3, 0.2, 0.2]), np.array([0.0, 0.6, 0.4, 0.0])),
    (np.array([1e-4, 0.5, 0.3, 0.1999]), np.array([5e-4, 0.45, 0.35, 0.1995])),
    (np.array([0.5, 0.3, 0.1, 0.1]), np.array([1e-20, 1e-18, 1.0, 1e-9])),
  ]


def drafts(q, count, how):
  """(tokens, probability) of every draft; one that runs out of tokens ends there."""
  if how == "iid":
    known = np.flatnonzero(q)
    return [(x, q[list(x)].prod()) for x in itertools.product(known, repeat=count)]
  ranks = [x for x in np.argsort(-q, kind="stable") if q[x] > 0 or how == "deterministic"]
  if how == "deterministic":
    return [(tuple(ranks[:count]), 1.0)]
  if how == "mixed":
    top, rest = ranks[: count - 1], ranks[count - 1 :]
    return [((*top, x), q[x] / q[rest].sum()) for x in rest] or [(tuple(top), 1.0)]
  found = []
  for x in itertools.permutations(ranks, min(count, len(ranks))):
    left, chance = list(ranks), 1.0
    for token in x:
      chance *= q[token] / q[left].sum()
      left.remove(token)
    found.append((x, chance))
  return found


def transport(p, q, count, how):
  """Most mass that can flow from drafts to members of theirs, no token getting more than p."""
  distributions = drafts(q, count, how)
  edges = [(i, x) for i, (tokens, _) in enumerate(distributions) for x in set(tokens)]
  limits = np.zeros((len(distributions) + len(p), len(edges)))
  for column, (i, x) in enumerate(edges):
    limits[[i, len(distributions) + x], column] = 1
  bounds = [chance for _, chance in distributions] + list(p)
  return -linprog(-np.ones(len(edges)), A_ub=limits, b_ub=bounds).fun


def recursive_rejection(p, q, count, how):
  """The rule played for every draft, token by token."""
  accepted = 0.0
  for tokens, chance in drafts(q, count, how):
    target, probs, refused = p, q, 1.0
    for x in tokens:
      refused *= 1 - min(1.0, target[x] / probs[x])
      left = np.maximum(target - probs, 0)
      target = left / left.sum() if left.sum() > 1e-12 else target
      if how == "without_replacement":
        probs = np.where(np.arange(len(q)) == x, 0.0, probs)
        probs = probs / max(probs.sum(), 1e-300)
    accepted += chance * (1 - refused)
  return accepted


def block_by_enumeration(p, q, length):
  """1 + sum_i E[c_i], over all chains."""
  total = 1.0
  for chain in itertools.product(np.flatnonzero(q), repeat=length):
    c, chance = 1.0, q[list(chain)].prod()
    for x in chain:
      c = min(1.0, c * p[x] / q[x])
      total += chance * c
  return total


GOLDEN = [
  (theory.acceptance, (1, "iid"), 0.65),
  (theory.acceptance, (2, "iid"), 0.755),
  (theory.acceptance, (3, "iid"), 0.819),
  (theory.acceptance, (2, "without_replacement"), 0.804762),
  (theory.acceptance, (3, "without_replacement"), 0.934286),
  (theory.acceptance, (2, "k_seq"), 0.788098),
  (theory.acceptance, (3, "k_seq"), 0.858519),
  (theory.acceptance, (2, "mixed"), 0.833333),
  (theory.acceptance, (3, "mixed"), 1.0),
  (theory.acceptance, (2, "deterministic"), 0.35),
  (theory.acceptance, (3, "deterministic"), 0.85),
  (theory.optimal_acceptance, (2, "iid"), 0.86),
  (theory.optimal_acceptance, (3, "iid"), 0.988),
  (theory.optimal_acceptance, (2, "without_replacement"), 0.941270),
  (theory.optimal_acceptance, (3, "without_replacement"), 1.0),
  (theory.optimal_acceptance, (2, "mixed"), 0.833333),
  (theory.optimal_acceptance, (3, "mixed"), 1.0),
  (theory.optimal_acceptance, (2, "deterministic"), 0.35),
  (theory.optimal_acceptance, (3, "deterministic"), 0.85),
  (theory.chain_length, (1,), 1.65),
  (theory.chain_length, (2,), 2.0725),
  (theory.chain_length, (3,), 2.347125),
  (theory.block_length, (1,), 1.65),
  (theory.block_length, (2,), 2.12),
  (theory.block_length, (3,), 2.4805),
  (theory.tree_length, ((2,), "without_replacement"), 1.804762),
  (theory.tree_length, ((2,), "iid"), 1.755),
  (theory.tree_length, ((2,), "deterministic"), 1.35),
  (theory.tree_length, ((2, 1), "without_replacement"), 2.327857),
  (theory.tree_length, ((2, 1), "iid"), 2.24575),
  (theory.tree_length, ((2, 1), "deterministic"), 1.455),
  (theory.tree_length, ((2, 2), "without_replacement"), 2.452404),
  (theory.tree_length, ((2, 2), "iid"), 2.325025),
  (theory.tree_length, ((2, 2), "deterministic"), 1.4725),
]


@pytest.mark.parametrize(("figure", "arguments", "value"), GOLDEN)
def test_golden_numbers(figure, arguments, value):
  assert figure(P, Q, *arguments) == pytest.approx(value, abs=6e-7)


def test_acceptance_by_position():
  reached = [theory.acceptance(P, Q, k, "without_replacement") for k in (1, 2, 3)]
  assert np.diff([0, *reached, 1]) == pytest.approx([0.65, 0.154762, 0.129524, 0.065714], abs=6e-7)


@pytest.mark.parametrize(
  ("length", "token", "block"),
  [(2, 10 / 9, 11 / 9), (3, 1.40741, 1.66667), (4, 1.60494, 2.04938)],
)
def test_accepted_tokens_of_chains_of_thirds(length, token, block):
  assert theory.chain_length(*THIRDS, length) - 1 == pytest.approx(token, abs=6e-6)
  assert theory.block_length(*THIRDS, length) - 1 == pytest.approx(block, abs=6e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("how", [*DRAWN, "deterministic"])
def test_optimum_is_that_of_the_linear_program(how, count):
  cases = [*zip(*tables(6), strict=True), *zip(*tables(6, sharpness=0.2), strict=True)]
  for p, q in cases + special_tables():
    best = theory.optimal_acceptance(p, q, count, how)
    assert best == pytest.approx(transport(p, q, count, how), abs=1e-7)


@pytest.mark.parametrize("sharpness", [1.0, 0.05])
def test_optimum_of_a_wider_vocabulary(sharpness):
  # Over all sets of tokens, not prefixes, with the probability of each draft worked out.
  for p, q in zip(*tables(4, size=6, sharpness=sharpness), strict=True):
    distributions = drafts(q, 3, "without_replacement")
    gaps = []
    for inside in itertools.product([False, True], repeat=6):
      members = set(np.flatnonzero(inside))
      caught = sum(chance for tokens, chance in distributions if members.issuperset(tokens))
      gaps.append(p[list(members)].sum() - caught)
    best = theory.optimal_acceptance(p, q, 3, "without_replacement")
    assert best == pytest.approx(1 + min(gaps), abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rule", ["iid", "without_replacement"])
def test_recursive_rejection_draft_by_draft(rule, count):
  cases = [*zip(*tables(4), strict=True), *zip(*tables(4, sharpness=0.2), strict=True)]
  for p, q in cases + special_tables()[1:4]:
    expected = recursive_rejection(p, q, count, rule)
    assert theory.acceptance(p, q, count, rule) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_k_seq_is_at_the_smallest_ratio_that_is_exact(count):
  # There the emitted token's distribution has no negative parts, and mass 1 - accepted is enough.
  for p, q in zip(*tables(8, size=6), strict=True):
    accepted = theory.acceptance(p, q, count, "k_seq")
    beta = 1 - (1 - accepted) ** (1 / count)
    rho = accepted / beta
    assert 1 <= rho <= count
    assert np.minimum(q, p / rho).sum() == pytest.approx(beta, abs=1e-9)
    assert (p - np.minimum(q, p / rho) * accepted / beta).min() > -1e-9


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_block_length_chain_by_chain(length):
  for p, q in [*zip(*tables(4, size=3), strict=True), *special_tables()[1:4]]:
    expected = block_by_enumeration(p, q, length)
    assert theory.block_length(p, q, length) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_orderings(count):
  p, q = tables(60, size=5)
  best = {how: theory.optimal_acceptance(p, q, count, how) for how in DRAWN}
  reached = {rule: theory.acceptance(p, q, count, rule) for rule in (*DRAWN, "k_seq")}
  slack = 1e-12
  for rule in DRAWN:
    assert (reached[rule] <= best[rule] + slack).all()
  assert (reached["iid"] < best["iid"] - 0.01).any()
  assert (reached["without_replacement"] < best["without_replacement"] - 0.01).any()
  assert (reached["k_seq"] <= best["iid"] + slack).all()
  assert (reached["k_seq"] >= (1 - (1 - 1 / count) ** count) * best["iid"] - slack).all()
  assert (best["iid"] <= best["without_replacement"] + slack).all()
  one_more = theory.optimal_acceptance(p, q, count + 1, "without_replacement")
  assert (best["without_replacement"] <= one_more + slack).all()
  token, block = theory.chain_length(p, q, count), theory.block_length(p, q, count)
  assert (token <= block + slack).all() and (token < block - 0.01).any()


@pytest.mark.parametrize("size", [2, 5, 9])
def test_one_sibling_is_the_overlap(size):
  p, q = tables(10, size)
  overlap = np.minimum(p, q).sum(-1)
  for rule in (*DRAWN, "k_seq"):
    assert theory.acceptance(p, q, 1, rule) == pytest.approx(overlap, abs=1e-12)
  for how in DRAWN:
    assert theory.optimal_acceptance(p, q, 1, how) == pytest.approx(overlap, abs=1e-12)
  for length in (theory.chain_length, theory.block_length):
    assert length(p, q, 1) == pytest.approx(1 + overlap)
  tree = theory.tree_length(p, q, (1, 1, 1), "without_replacement")
  assert tree == pytest.approx(theory.chain_length(p, q, 3))


@pytest.mark.parametrize("rule", ["iid", "without_replacement"])
def test_one_hot_target_is_accepted_where_drafted(rule):
  p, q = np.eye(4)[1], np.array(Q)
  drafted = sum(chance for tokens, chance in drafts(q, 2, rule) if 1 in tokens)
  assert theory.acceptance(p, q, 2, rule) == pytest.approx(drafted)
  assert theory.optimal_acceptance(p, q, 2, rule) == pytest.approx(drafted)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_disjoint_distributions_accept_nothing_and_equal_ones_all(count):
  p, q = (0.6, 0.4, 0.0, 0.0), (0.0, 0.0, 0.3, 0.7)
  for rule in (*DRAWN, "k_seq"):
    assert theory.acceptance(p, q, count, rule) == pytest.approx(0, abs=1e-12)
    assert theory.acceptance(P, P, count, rule) == pytest.approx(1)
  for how in DRAWN:
    assert theory.optimal_acceptance(p, q, count, how) == pytest.approx(0, abs=1e-12)
    assert theory.optimal_acceptance(P, P, count, how) == pytest.approx(1)
  assert theory.block_length(p, q, count) == 1
  assert theory.block_length(P, P, count) == pytest.approx(1 + count)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_draft_that_runs_out_of_tokens(count):
  # q has two tokens: once both are drafted, all that p gives to them is accepted.
  p, q = (0.1, 0.5, 0.15, 0.25), (0.0, 0.9, 0.0, 0.1)
  for figure in (theory.acceptance, theory.optimal_acceptance):
    for how in ("without_replacement", "mixed"):
      assert figure(p, q, count, how) == pytest.approx(0.75)


def test_ties_go_to_the_lower_id():
  p, q = tables(1, size=90)[0, 0], np.tile([1, 2, 1], 30) / 120
  ranks = [*range(1, 90, 3), *(x for x in range(90) if x % 3 != 1)]
  for count in (5, 50):
    point = theory.acceptance(p, q, count, "deterministic")
    assert point == pytest.approx(p[ranks[:count]].sum())
    top, rest = ranks[: count - 1], ranks[count - 1 :]
    mixed = theory.acceptance(p, q, count, "mixed")
    expected = p[top].sum() + np.minimum(p[rest], q[rest] / q[rest].sum()).sum()
    assert mixed == pytest.approx(expected)


@pytest.mark.parametrize("figure", [theory.acceptance, theory.optimal_acceptance])
@pytest.mark.parametrize("name", [*DRAWN, "deterministic"])
def test_leading_axes_are_a_batch(figure, name):
  p, q = tables(6)
  p, q = p.reshape(2, 3, 4), q.reshape(2, 3, 4)
  rows = [[figure(p[i, j], q[i, j], 2, name) for j in range(3)] for i in range(2)]
  assert figure(p, q, 2, name) == pytest.approx(np.array(rows), abs=1e-12)
  against_one = [figure(x, Q, 2, name) for x in p[0]]
  assert figure(p[0], Q, 2, name) == pytest.approx(np.array(against_one), abs=1e-12)


def test_lengths_of_a_batch():
  p, q = tables(3)
  for figure, rest in [
    (theory.chain_length, (3,)),
    (theory.block_length, (3,)),
    (theory.tree_length, ((2, 3), "k_seq")),
  ]:
    rows = [figure(p[i], q[i], *rest) for i in range(3)]
    assert figure(p, q, *rest) == pytest.approx(np.array(rows), abs=1e-12)


def test_tree_of_no_depth_yields_one_token():
  assert theory.tree_length(P, Q, (), "iid") == 1
  assert theory.block_length(P, Q, 0) == theory.chain_length(P, Q, 0) == 1


def test_uniform_chain():
  a = np.array([0.0, 0.3, 0.9])
  assert theory.uniform_chain(a, 4) == pytest.approx((1 - a**5) / (1 - a))
  assert theory.uniform_chain(1.0, 4) == 5
  assert theory.uniform_chain(0.7, 0) == 1


@pytest.mark.parametrize(
  ("a", "lengths", "gains"),
  [
    (0.6, (6, 4, 3, 2), (2.17, 1.92, 1.67, 1.40)),
    (0.8, (11, 8, 6, 4), (3.82, 3.09, 2.47, 1.87)),
    (0.9, (19, 13, 10, 7), (6.37, 4.67, 3.43, 2.37)),
  ],
)
def test_best_lengths(a, lengths, gains):
  for cost, length, gain in zip((0.02, 0.05, 0.1, 0.2), lengths, gains, strict=True):
    assert theory.best_length(a, cost) == length
    tau = theory.uniform_chain(a, length)
    assert theory.expected_speed_up(tau, cost, length) == pytest.approx(gain, abs=0.005)


def test_best_length_with_a_cost_of_verifying():
  # A pass over n tokens costs one up to 4 of them and grows steeply after: three drafted tokens.
  def steep(tokens):
    return 1.0 if tokens <= 4 else 1.0 + tokens

  assert theory.best_length(0.9, 0.02, verify=steep) == 3
  assert theory.best_length(0.9, 0.02, most=9, verify=[steep(n) for n in range(1, 11)]) == 3
  # Where every token costs a pass of its own, or all are refused, plain decoding is best.
  assert theory.best_length(0.9, 0.02, verify=float) == 0
  assert theory.best_length(0.0, 0.1) == 0
  assert theory.best_length(1.0, 0.1, most=7) == 7


def test_expected_speed_up():
  # Three tokens for four drafts of a tenth, a pass of 1.5 and 0.1 for the rest.
  assert theory.expected_speed_up(3.0, 0.1, 4, 1.5, 0.1) == pytest.approx(3 / 2)
  assert theory.expected_speed_up([1, 2], 0.0, 5) == pytest.approx(np.array([1.0, 2.0]))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (
      lambda: theory.optimal_acceptance(P, Q, 2, "k_seq"),
      r"`how` must be one of iid, without_replacement, mixed, deterministic, got 'k_seq'\.",
    ),
    (
      lambda: theory.acceptance(P, Q, 2, "block"),
      "`rule` must be one of iid, without_replacement, mixed, deterministic, k_seq, got "
      r"'block'\.",
    ),
    (
      lambda: theory.optimal_acceptance(P, Q, 0, "iid"),
      r"`count` must be at least 1, as a node needs a sibling, got 0\.",
    ),
    (
      lambda: theory.acceptance(P, Q, 0, "deterministic"),
      r"`count` must be at least 1, as a node needs a sibling, got 0\.",
    ),
    (lambda: theory.acceptance(P, Q, 10, "without_replacement"), r"4\*\*10 ordered drafts"),
    (
      lambda: theory.tree_length(P, Q, (2, 0), "iid"),
      r"`count` must be at least 1, as a node needs a sibling, got 0\.",
    ),
    (lambda: theory.block_length(*tables(1, 50), 10), "multisets of 10 tokens out of 50"),
  ],
)
def test_refusals(call, message):
  with pytest.raises(ValueError, match=message):
    call()
