"""Every method's joint distribution of emitted tokens, exactly, against the target's.

One test per method (it compiles once); settings, tables, stop tokens and budgets are traced, so
each test runs through many cells.
"""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate, trees
from specjax.base import Verdict, Verifier
from specjax.decoding.method import method as pair
from specjax.draft_length import confidence
from specjax.drafters import (
  adaptive_model,
  draft_model,
  draft_tree,
  jacobi,
  lookahead,
  none,
  prompt_lookup,
  speculative_jacobi,
  token_recycling,
)
from specjax.sampling import COIN, RESIDUAL
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import DySpec, Static
from specjax.trees.structure import match
from specjax.verifiers import (
  block,
  greedy,
  judge,
  k_seq,
  recursive,
  target_only,
  token,
  traversal,
  typical,
)
from specjax.verifiers.judge import Judge

EXACT, BIASED = 1e-6, 1e-3
V = 3

TREES = {
  "1": fixed_draft([[0]], [1]),
  "2": fixed_draft([[0], [1]], [2, 0]),
  "3": fixed_draft([[0], [1], [2]], [1, 2, 0]),
  "2,1": fixed_draft([[0], [1], [0, 0], [1, 0]], [1, 2, 1, 0]),
  "2,2": fixed_draft([[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]], [0, 2, 1, 0, 2, 1]),
  "chain of 2": fixed_draft([[0], [0, 0]], [2, 1]),
  "chain of 3": fixed_draft([[0], [0, 0], [0, 0, 0]], [1, 0, 2]),
  "unbalanced": fixed_draft([[0], [1], [1, 0], [1, 0, 0], [1, 1]], [0, 1, 2, 1, 0]),
  "repeated sibling": fixed_draft([[0], [1], [0, 0], [1, 0]], [1, 1, 0, 2]),
  "padding": fixed_draft([[0], [1], [0, 0], [1, 0]], [1, 2, 0, 1], [True, False, False, True]),
  "garbage": random_draft([[0], [1], [0, 0]], V),
  "prompt lookup": prompt_lookup(3),
  "token recycling": token_recycling(table_model(V), tree=Static([[0], [1], [0, 0]])),
  "jacobi": jacobi(3),
  "lookahead": lookahead(2, 2, 2),
}  # fmt: skip
SAMPLED = {depth: draft_model(table_model(V), depth + 1) for depth in (1, 2, 3)}
P_MIN = confidence(0.4, keep=False, step=0.0)
KEPT = {depth: adaptive_model(table_model(V), P_MIN, depth + 1) for depth in (1, 2)}
GREEDY, TARGET_ONLY, TOKEN, TYPICAL = greedy(), target_only(), token(), typical()
BLOCK, RECURSIVE, TRAVERSAL, K_SEQ = block(), recursive(), traversal(), k_seq()


def judged(b: float) -> Verifier:
  """Judge decoding with a head that says the same of every token."""
  params = Judge(jnp.zeros(V), jnp.float32(b))
  rule = judge()
  return rule._replace(verify=lambda _, *rest, **named: rule.verify(params, *rest, **named))


NEVER, ALWAYS = judged(-jnp.inf), judged(jnp.inf)

SHAPES = {
  "2": ((0,), (1,)),
  "3": ((0,), (1,), (2,)),
  "2,1": ((0,), (1,), (0, 0), (1, 0)),
  "2,2": ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)),
  "unbalanced": ((0,), (1,), (1, 0), (1, 0, 0)),
}
DRAWN = {
  **{
    f"{shape} {how}": draft_tree(table_model(V), trees.TREES[how](choices))
    for shape, choices in SHAPES.items()
    for how in ("iid", "without_replacement", "mixed")
  },
  "DySpec": draft_tree(table_model(V), DySpec(nodes=4, depth=2, children=2)),
}

METHODS = {
  "plain, greedy": (none(), GREEDY, 2),
  "plain, target_only": (none(), TARGET_ONLY, 2),
  "plain, token": (none(), TOKEN, 2),
  **{f"{name}, target_only": (tree, TARGET_ONLY, 1) for name, tree in TREES.items()},
  **{f"{name}, greedy": (TREES[name], GREEDY, 2) for name in ("2,2", "unbalanced", "padding")},
  "chain of 2, target_only, 2 rounds": (TREES["chain of 2"], TARGET_ONLY, 2),
  "2,1, target_only, 2 rounds": (TREES["2,1"], TARGET_ONLY, 2),
  **{
    f"token recycling, {r.name}, 2 rounds": (TREES["token recycling"], r, 2)
    for r in (TARGET_ONLY, GREEDY, RECURSIVE)
  },
  **{
    f"{name}, {r.name}, 2 rounds": (TREES[name], r, 2)
    for name in ("jacobi", "lookahead")
    for r in (TARGET_ONLY, GREEDY, RECURSIVE)
  },
  "speculative jacobi, token, 2 rounds": (speculative_jacobi(table_model(V), 3), TOKEN, 2),
  **{f"draft model {d}, token": (SAMPLED[d], TOKEN, 1) for d in SAMPLED},
  **{f"draft model {d}, target_only": (SAMPLED[d], TARGET_ONLY, 1) for d in SAMPLED},
  **{
    f"draft model {d}, {rule.name}": (SAMPLED[d], rule, 1)
    for d in SAMPLED
    for rule in (BLOCK, RECURSIVE, TRAVERSAL)
  },
  **{
    f"{name}, {rule.name}": (drafter, rule, 1)
    for name, drafter in DRAWN.items()
    for rule in (RECURSIVE, TRAVERSAL, K_SEQ)
    if drafter.proposal in rule.accepts
  },
  **{
    f"{name}, {rule.name}": (TREES[name], rule, 1)
    for name in ("2,1", "unbalanced", "padding")
    for rule in (RECURSIVE, TRAVERSAL)
  },
  **{
    f"kept {d}, {rule.name}": (KEPT[d], rule, 1)
    for d in KEPT
    for rule in (TOKEN, BLOCK, TARGET_ONLY)
  },
  "kept 1, greedy": (KEPT[1], GREEDY, 2),
  "kept 2, greedy": (KEPT[2], GREEDY, 2),
  "kept 2, block, 2 rounds": (KEPT[2], BLOCK, 2),
  "unbalanced, judge that finds nothing right": (TREES["unbalanced"], NEVER, 1),
  "draft model 2, judge that finds nothing right": (SAMPLED[2], NEVER, 1),
  "2,1 distinct, target_only": (DRAWN["2,1 without_replacement"], TARGET_ONLY, 1),
  "2 distinct, recursive, 2 rounds": (DRAWN["2 without_replacement"], RECURSIVE, 2),
  "2 distinct, traversal, 2 rounds": (DRAWN["2 without_replacement"], TRAVERSAL, 2),
  "draft model 2, block, 2 rounds": (SAMPLED[2], BLOCK, 2),
  "draft model 1, greedy": (SAMPLED[1], GREEDY, 2),
  "draft model 2, greedy": (SAMPLED[2], GREEDY, 2),
  "draft model 1, token, 2 rounds": (SAMPLED[1], TOKEN, 2),
  "draft model 2, token, 2 rounds": (SAMPLED[2], TOKEN, 2),
}

SLOW = (
  "speculative jacobi, token, 2 rounds",
  "2,1 distinct, target_only",
  "2,1, traversal",
  "2 distinct, recursive, 2 rounds",
  "draft model 1, greedy",
  "draft model 1, token, 2 rounds",
  "draft model 2, judge that finds nothing right",
  "draft model 2, traversal",
  "kept 1, greedy",
  "kept 2, block",
  "kept 2, target_only",
)

SETTINGS = [
  {"temperature": 0.0},
  {"temperature": 0.0, "top_p": 0.8},
  {"temperature": 0.7},
  {"temperature": 0.7, "top_p": 0.8},
  {"temperature": 1.3},
  {"temperature": 1.3, "top_p": 0.8},
  {"temperature": 1.3, "top_k": 2},
  {"temperature": 0.7, "min_p": 0.2},
  {"temperature": 1.3, "top_k": 2, "top_p": 0.9, "min_p": 0.1},
  {"temperature": 0.9, "typical_p": 0.4},
]
ENDS = [  # prompts of one length, which share a program
  {},
  {"stop": (1,)},
  {"stop": (2, 0), "prompt": (1, 2, 1)},
  {"budget": 1},
  {"budget": 2, "stop": (0,), "prompt": (1, 0, 2)},
]


def table(seed: int, vocab_size: int = V) -> np.ndarray:
  return np.asarray(random_table(seed, vocab_size)["logits"])


def drafter_params(drafter, seed: int, vocab_size: int = V):
  if drafter.name == "adaptive_model":
    return random_table(100 + seed, vocab_size), ()
  drawn = drafter.name in ("draft_model", "draft_tree")
  return random_table(100 + seed, vocab_size) if drawn else ()


def distance(case: Case, method: speculate.Method, params, rounds: int = 1) -> float:
  return total_variation(
    emitted_distribution(case, method, params, rounds=rounds), target_distribution(case)
  )


@pytest.mark.full(
  but=[
    "plain, greedy",
    "plain, target_only",
    "plain, token",
    "unbalanced, judge *",
    "2,1, recursive",
    "2,1, traversal",
    "repeated sibling, target_only",
    "padding, target_only",
    "prompt lookup, *",
    "draft model 1, greedy",
    "draft model 1, token, 2 rounds",
    "draft model 2, token",
    "draft model 2, block",
    "draft model 2, recursive",
    "draft model 2, traversal",
    "draft model 2, target_only",
    "draft model 2, judge *",
    "2 iid, *",
    "2 mixed, *",
    "2 without_replacement, *",
    "2 distinct, recursive*",
    "2,1 distinct, target_only",
    "token recycling, recursive*",
    "speculative jacobi, *",
    "kept 1, greedy",
    "kept 1, token",
    "kept 2, block",
    "kept 2, target_only",
  ]
)
@pytest.mark.parametrize(
  "name", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in METHODS]
)
def test_the_emitted_distribution_is_the_targets(name, pytestconfig):
  drafter, verifier, rounds = METHODS[name]
  method = pair(table_model(V), drafter, verifier)
  full = pytestconfig.option.full
  wide = (rounds == 2 and drafter.depth > 1) or drafter.name == "draft_tree"
  for number, (settings, end) in enumerate(itertools.product(SETTINGS, ENDS)):
    if verifier.temperature == "zero" and settings["temperature"] > 0:
      continue
    # Temperature x top-p x stop, on three tables each.
    whole = full and settings in SETTINGS[:6] and end in ENDS[:2]
    if wide and number % 3 and not whole:
      continue
    for seed in [number % 3] if (end or wide) and not whole else range(3):
      case = Case(table(seed), **{"prompt": (0, 2, 0), **settings, **end})
      found = distance(case, method, drafter_params(drafter, seed), rounds)
      assert found < EXACT, (settings, end, seed)


@pytest.mark.slow
@pytest.mark.full(but=["plain, target_only", "prompt lookup, target_only", "draft model 2, token"])
@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_before_a_prompt_of_one_token(name):
  drafter, verifier, rounds = METHODS[name]
  method = pair(table_model(V), drafter, verifier)
  temperatures = (0.0, 0.7, 1.3) if verifier.temperature == "any" else (0.0,)
  for seed, temperature in enumerate(temperatures):
    case = Case(table(seed), prompt=(2,), temperature=temperature, budget=2, stop=(0,))
    assert distance(case, method, drafter_params(drafter, seed), rounds) < EXACT


@pytest.mark.parametrize(
  "values",
  [
    {"jax_default_prng_impl": "rbg"},
    {"jax_default_prng_impl": "unsafe_rbg"},
    {"jax_enable_x64": True},
  ],
  ids=lambda x: "-".join(map(str, x.values())),
)
def test_the_proofs_hold_under_each_generator_and_with_64_bits(values, switch):
  switch(values)
  for drafter, verifier in ((TREES["2,1"], TARGET_ONLY), (SAMPLED[1], TOKEN)):
    method = pair(table_model(V), drafter, verifier)
    for settings in (SETTINGS[0], SETTINGS[8]) if verifier is TARGET_ONLY else SETTINGS[8:]:
      case = Case(table(0), prompt=(0, 2, 0), **settings)
      assert distance(case, method, drafter_params(drafter, 0)) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(
  ("drafter", "verifier"),
  [(TREES["2,1"], TARGET_ONLY), (draft_model(table_model(4), 3), TOKEN)],
  ids=["2,1, target_only", "draft model 2, token"],
)
def test_four_tokens(drafter, verifier):
  method = pair(table_model(4), drafter, verifier)
  for seed, settings in itertools.product(range(3), SETTINGS[2:6]):
    case = Case(table(seed, 4), stop=(3,), **settings)
    assert distance(case, method, drafter_params(drafter, seed, 4)) < EXACT, (settings, seed)


def flawed_token(flaw: str) -> Verifier:
  """Token verification with one mistake, or none."""

  def verify(params, draft, log_probs, features, noise, *, depth, proposal):
    drafted = draft.tokens[:, 1:]
    row = log_probs[:, 1:] if flaw == "row of the child" else log_probs[:, :depth]
    p, q = (
      jnp.exp(jnp.take_along_axis(x, drafted[..., None], -1)[..., 0])
      for x in (row, draft.log_probs[:, :depth])
    )
    p, q = (q, p) if flaw == "p and q swapped" else (p, q)
    coin = noise.accept(COIN, p, q + 0.05 if flaw == "q padded" else q)
    count = jnp.cumprod(coin.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)
    last = count[:, None, None]
    P, Q = (jnp.exp(jnp.take_along_axis(x, last, 1)[:, 0]) for x in (log_probs, draft.log_probs))
    # Row D of draft.distribution is the draft model's, of a token that was not drafted.
    Q = jnp.where((count < depth)[:, None] | (flaw == "bonus corrected"), Q, 0.0)
    residual = P if flaw == "residual p" else jnp.maximum(P - Q, 0.0)
    residual = jnp.where(residual.sum(-1, keepdims=True) > 0, residual, P)
    extra = noise.draw(RESIDUAL, jnp.log(residual))
    step = jnp.arange(depth + 1, dtype=jnp.int32)[None]
    tokens = jnp.concatenate([drafted, extra[:, None]], 1)
    tokens = jnp.where(step < count[:, None], tokens, extra[:, None])
    return Verdict(jnp.minimum(step, count[:, None]), count, tokens)

  return Verifier("flawed token", "LOSSY", frozenset({"chain", "deterministic"}), "any", verify)


def redrawn_after_mismatch() -> Verifier:
  """Target-only verification that draws the last token again."""

  def verify(params, draft, log_probs, features, noise, *, depth, proposal):
    verdict = match(draft, noise.choose(log_probs, draft.depth), depth)
    leaf = verdict.path[:, -1:]
    again = noise.draw(RESIDUAL, jnp.take_along_axis(log_probs, leaf[..., None], 1)[:, 0])
    step = jnp.arange(depth + 1, dtype=jnp.int32)[None]
    tokens = jnp.where(step < verdict.count[:, None], verdict.tokens, again[:, None])
    return verdict._replace(tokens=tokens)

  return Verifier("redrawn", "LOSSY", frozenset({"chain", "deterministic"}), "any", verify)


def everyone_sees_everyone(drafter):
  """The drafter with a mask that ignores the tree."""

  def evaluate(params, target_params, state, cache, draft, mask):
    everyone = jnp.ones_like(mask)
    return table_model(V).evaluate(target_params, cache, draft.tokens, draft.depth, everyone)

  return drafter._replace(evaluate=evaluate)


def commits_the_first_nodes():
  """A target that commits nodes 0, 1, .. whatever the path."""

  def commit(cache, kv, path, rows):
    first = jnp.broadcast_to(jnp.arange(path.shape[1], dtype=path.dtype)[None], path.shape)
    return table_model(V).commit(cache, kv, first, rows)

  return dataclasses.replace(table_model(V), commit=commit)


def forgets_to_cut_its_cache(drafter):
  """A draft model that keeps what was refused."""

  def update(params, target_params, cache, draft, evaluation, verdict, rows):
    return cache

  return drafter._replace(update=update)


TARGET = table_model(V)
FLAWS = {
  **{
    flaw: (TARGET, SAMPLED[2], flawed_token(flaw), 1)
    for flaw in (
      "residual p", "row of the child", "p and q swapped", "q padded", "bonus corrected",
    )
  },
  "redrawn after mismatch": (TARGET, TREES["2,1"], redrawn_after_mismatch(), 1),
  "greedy above temperature 0": (TARGET, TREES["2,1"], GREEDY, 1),
  "typical": (TARGET, TREES["2,1"], TYPICAL, 1),
  "judge, tree": (TARGET, TREES["2,1"], ALWAYS, 1),
  "judge, chain": (TARGET, SAMPLED[2], ALWAYS, 1),
  "point draft taken for a sampled one": (
    TARGET, TREES["chain of 2"], TOKEN._replace(accepts=frozenset({"deterministic"})), 1,
  ),
  "mask without the tree": (TARGET, everyone_sees_everyone(TREES["2,1"]), TARGET_ONLY, 1),
  "wrong rows committed": (commits_the_first_nodes(), TREES["2,1"], TARGET_ONLY, 2),
}  # fmt: skip


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_seen(flaw):
  target, drafter, verifier, rounds = FLAWS[flaw]
  method = pair(target, drafter, verifier)
  found = [
    distance(Case(table(seed), temperature=t), method, drafter_params(drafter, seed), rounds)
    for seed, t in itertools.product(range(3), (0.7, 1.3))
  ]
  assert max(found) > BIASED


@pytest.mark.slow
def test_the_flawed_rule_without_its_flaw_is_exact():
  method = pair(TARGET, SAMPLED[2], flawed_token("none"))
  assert distance(Case(table(0)), method, drafter_params(SAMPLED[2], 0)) < EXACT


@pytest.mark.slow
def test_a_draft_models_cache_never_changes_the_distribution():
  # It only guesses worse: the distributions it reports are those it drew from.
  method = pair(TARGET, forgets_to_cut_its_cache(SAMPLED[1]), TOKEN)
  assert distance(Case(table(0)), method, drafter_params(SAMPLED[1], 0), 2) < EXACT


def test_too_many_combinations_is_an_error():
  wide = fixed_draft([[i, *[0] * d] for i in range(3) for d in range(4)], [0] * 12)
  method = pair(TARGET, wide, TARGET_ONLY)
  with pytest.raises(ValueError, match="at most 300000 ways, got 1594323"):
    emitted_distribution(Case(table(0)), method)


def test_total_variation():
  assert total_variation({(0,): 0.5, (1,): 0.5}, {(0,): 1.0}) == 0.5
  assert total_variation({(0,): 1.0}, {(1,): 1.0}) == 1.0


def test_the_targets_distribution_by_hand():
  logits = np.log(np.array([[[0.25, 0.75]] * 2] * 2 + [[[0.5, 0.5]] * 2], np.float32))
  case = Case(logits, prompt=(0,), length=2, stop=(1,))
  got = target_distribution(case)
  want = {(1,): 0.5, (0, 1): 0.375, (0, 0): 0.125}
  assert got.keys() == want.keys()
  np.testing.assert_allclose([got[x] for x in want], list(want.values()), rtol=1e-7)
  assert target_distribution(dataclasses.replace(case, temperature=0.0)) == {(0, 1): 1.0}
