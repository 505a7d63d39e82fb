"""Several sources in one tree: exact, merged only where that is harmless, none loses its place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut
from test_every_head import TARGET, T, V, head, start, target_params

from specjax import speculate
from specjax.base import Context, Draft
from specjax.decoding.decoder import Decoder
from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree, none, prompt_lookup, union
from specjax.drafters.combine.union import merge
from specjax.heads import drafting
from specjax.sampling import DRAFT, Noise
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  p_value,
  random_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import IID, Mixed, Static, WithoutReplacement
from specjax.verifiers import recursive, target_only, traversal

EXACT, BIASED = 1e-6, 1e-3
SMALL = 3  # vocabulary of what is enumerated
TABLE = table_model(SMALL)
RULES = {rule.name: rule for rule in (recursive(), traversal(), target_only())}
ONE = draft_tree(TABLE, IID(((0,),)))
TWO = draft_tree(TABLE, IID(((0,), (0, 0))))
PAIR = draft_tree(TABLE, IID(((0,), (1,))))
FORK = fixed_draft([[0], [1], [0, 0]], [1, 2, 1])
DRAFTS = random_table(100, SMALL), random_table(101, SMALL)

BOTH = ("recursive", "traversal")
EXACT_FOR = {
  "copied, then drawn": (union(prompt_lookup(3), ONE), ((), DRAFTS[0]), BOTH),
  "drawn, then chosen": (union(ONE, FORK), (DRAFTS[0], ()), ("recursive",)),
  "two models": (union(ONE, TWO), DRAFTS, BOTH),
  "a union of unions": (
    union(union(prompt_lookup(2), ONE), ONE), (((), DRAFTS[0]), DRAFTS[1]), ("recursive",),
  ),
  "independent draws": (union(prompt_lookup(2), PAIR), ((), DRAFTS[0]), ("traversal",)),
  "all chosen": (union(prompt_lookup(2), FORK), ((), ()), ("recursive", "target_only")),
  "with nothing": (union(none(), prompt_lookup(3)), ((), ()), ("target_only",)),
}  # fmt: skip
SETTINGS = [
  {"temperature": 0.7},
  {"temperature": 1.3, "top_p": 0.8, "stop": (1,)},
  {"temperature": 0.0},
]


def distances(drafter, rule, params) -> list[float]:
  method = pair(TABLE, drafter, rule)
  found = []
  for seed, settings in enumerate(SETTINGS):
    logits = np.asarray(random_table(seed, SMALL)["logits"])
    case = Case(logits, **{"prompt": (0, 2, 0), **settings})
    found.append(
      total_variation(emitted_distribution(case, method, params), target_distribution(case))
    )
  return found


@pytest.mark.slow
@pytest.mark.full(
  but=[
    "copied, then drawn-recursive",
    "a union of unions*",
    "independent draws*",
    "all chosen-target_only",
  ]
)
@pytest.mark.parametrize(
  ("name", "rule"), [(name, rule) for name, row in EXACT_FOR.items() for rule in row[2]]
)
def test_the_emitted_distribution_is_the_targets(name, rule):
  drafter, params, _ = EXACT_FOR[name]
  assert max(distances(drafter, RULES[rule], params)) < EXACT


def merged_anyway(drafter):
  """A union that drops a drawn token because a chosen one says the same."""

  def propose(params, target_params, state, context, settings, noise):
    draft, state = drafter.propose(params, target_params, state, context, settings, noise)
    return merge(draft, drafter.depth), state

  return drafter._replace(propose=propose)


@pytest.mark.slow
@pytest.mark.parametrize("rule", BOTH)
def test_merging_drawn_with_chosen_tokens_is_seen(rule):
  source = union(fixed_draft([[0]], [1]), ONE)
  params = ((), DRAFTS[0])
  assert max(distances(source, RULES[rule], params)) < EXACT
  assert max(distances(merged_anyway(source), RULES[rule], params)) > BIASED
  # The rule that uses no distribution does not mind.
  assert max(distances(merged_anyway(source), RULES["target_only"], params)) < EXACT


class OneStream(Noise):
  """The two sources of a union draw with the same noise."""

  def children(self, stream, log_probs, count, distinct):
    return super().children(DRAFT + (stream - DRAFT) // 2 * 2, log_probs, count, distinct)


@pytest.mark.slow
def test_sources_draw_apart():
  case = Case(
    np.asarray(random_table(0, SMALL)["logits"]), prompt=(0, 2), length=2, temperature=1.5
  )
  method = pair(TABLE, union(ONE, ONE), RULES["recursive"])
  params = (DRAFTS[0], DRAFTS[0])
  assert p_value(case, method, params, requests=2**14) > 1e-6
  assert p_value(case, method, params, requests=2**14, source=OneStream) < 1e-6


def paths(draft, b: int) -> list[tuple[int, ...]]:
  """The tokens on the way to each valid node, one entry per node."""
  tokens, parent = draft.tokens[b].tolist(), draft.parent[b].tolist()
  found: list[tuple[int, ...]] = [()]
  for node in range(1, len(tokens)):
    assert 0 <= parent[node] < node
    found.append((*found[parent[node]], tokens[node]))
  return [path for path, ok in zip(found, draft.valid[b].tolist(), strict=True) if ok]


def test_merged_trees_hold_every_path_once():
  rng = np.random.default_rng(0)
  B, N, D = 200, 9, 4
  parent = np.zeros((B, N), np.int32)
  for node in range(1, N):
    parent[:, node] = rng.integers(0, node, B)
  depth = np.zeros_like(parent)
  for node in range(1, N):
    depth[:, node] = depth[np.arange(B), parent[:, node]] + 1
  valid = (rng.random((B, N)) < 0.9) & (depth <= D)
  valid[:, 0] = True
  tokens = rng.integers(0, 2, (B, N)).astype(np.int32)
  draft = Draft(*map(jnp.asarray, (tokens, parent, depth, valid)))
  got = jax.device_get(jax.jit(merge, static_argnums=1)(draft, D))
  merged_some = False
  for b in range(B):
    want, reached = {(): 0}, [()]
    for node in range(1, N):
      above = reached[parent[b, node]]
      ok = above is not None and valid[b, node]
      reached.append((*above, int(tokens[b, node])) if ok else None)
      if ok:
        want.setdefault(reached[-1], node)
    assert paths(got, b) == list(want)  # the first of each, in order
    merged_some |= len(want) < sum(path is not None for path in reached)
  assert merged_some


@pytest.mark.full
def test_every_source_knows_the_committed_text():
  """The state after some rounds is what a prefill of the text so far gives, whoever won."""
  names, tree = ("eagle3", "hydra", "medusa"), ((0,), (1,), (0, 0))
  made = [head(name) for name in names]
  knowing = draft_tree(TARGET, Static(((0,), (0, 0))))  # the target itself: it wins
  losing = draft_tree(TARGET, Static(((0,), (1,))))
  sources = [
    prompt_lookup(5), *(drafting.drafter(h, Static(tree)) for h, _ in made), losing, knowing,
  ]  # fmt: skip
  other = jax.tree.map(lambda x: -x, target_params())
  params = ((), *(p for _, p in made), other, target_params())
  drafter = union(*sources)
  method, weights, request, state = start(drafter, params, [T, 1, 5])

  @jax.jit
  def recomputed(context):
    text, length, _ = context
    S = text.shape[1]
    _, features = TARGET.prefill(
      target_params(), text[:, :-1], length, S, hidden_layers=drafter.hidden_layers
    )
    return drafter.init(params, target_params(), context, features, S)

  for _ in range(2):
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(2))
    want = recomputed(state.context)
    pairs = zip(jax.tree.leaves(state.drafter), jax.tree.leaves(want), strict=True)
    for got, expected in jax.device_get(list(pairs)):
      for b, n in enumerate(np.asarray(state.context.length).tolist()):
        rows = (slice(None), slice(0, n - 1)) if got.ndim == 4 else ()
        np.testing.assert_allclose(got[b][rows], expected[b][rows], atol=2e-4)
  assert (state.stats.accepted[:, 2:].sum(1) > 0).all()


def test_sizes_taps_and_names():
  eagle3, _ = head("eagle3")
  source = union(prompt_lookup(6), drafting.drafter(eagle3, ((0,), (1,))), random_draft([[0]], V))
  assert (source.nodes, source.depth, source.proposal) == (1 + 5 + 2 + 1, 5, "deterministic")
  assert (
    source.name == "prompt_lookup+eagle3+random_draft"
    and source.hidden_layers == eagle3.hidden_layers
  )
  assert union(prompt_lookup(6), ONE).proposal == "independent"
  assert union(prompt_lookup(6), ONE) is union(prompt_lookup(6), ONE)


@pytest.mark.parametrize(
  ("sources", "words"),
  [
    ((), "a union has one source or more"),
    (
      (draft_tree(TABLE, WithoutReplacement(((0,), (1,)))),),
      "has the proposal 'without_replacement': a union",
    ),
    ((draft_tree(TABLE, Mixed(((0,), (1,)))),), "chain, deterministic, iid, independent"),
    ((none()._replace(evaluate=TABLE.evaluate),), "replaces the target's evaluation"),
  ],
)
def test_what_cannot_be_joined_is_refused(sources, words):
  with pytest.raises(ValueError, match=words):
    union(*sources)


def test_a_source_that_counts_on_winning_is_refused():
  method = pair(TABLE, union(prompt_lookup(3), draft_model(TABLE, 3)), target_only())
  with pytest.raises(ValueError, match="drafter='draft_model' writes its state while it drafts"):
    emitted_distribution(Case(np.asarray(DRAFTS[0]["logits"])), method, ((), DRAFTS[1]))


@pytest.mark.slow
def test_of_a_pruned_source_stay_the_branches_that_another_starts_too():
  leading = fixed_draft([[0], [1], [0, 0]], [1, 2, 0])
  context = Context(jnp.asarray([[0, 0, 0]]), jnp.asarray([1]))
  found = fixed_draft([[0], [1], [0, 0], [1, 0], [1, 0, 0]], [3, 2, 1, 0, 1])

  def ways(*drafters, **more):
    joined = union(*drafters, **more)
    draft, _ = joined.propose(((),) * len(drafters), (), ((),) * len(drafters), context=context,
                              settings=None, noise=None)  # fmt: skip
    return {way for way in paths(draft, 0) if way}

  own = {(1,), (2,), (1, 0)}
  assert ways(leading, found, pruned=(1,)) == own | {(2, 0), (2, 0, 1)}
  assert ways(leading, found) == own | {(2, 0), (2, 0, 1), (3,), (3, 1)}
  assert ways(found, leading, pruned=(0,)) == own | {(2, 0), (2, 0, 1)}
  silent = fixed_draft([[0]], [1], [False])
  assert ways(silent, found, pruned=(1,)) == {(2,), (2, 0), (2, 0, 1), (3,), (3, 1)}
  for sources, pruned in (((found,), (0,)), ((ONE, found), (1,))):
    with pytest.raises(
      ValueError,
      match=("fixed_draft/pruned needs a union with a drafter that is not pruned, in which"),
    ):
      union(*sources, pruned=pruned)


@pytest.mark.slow
def test_a_pruned_source_is_named_and_changes_no_token():
  model, prompt = cut(), "Q: Ann has 3 apples and buys 4.\nA:"
  plain = Decoder(model)([prompt], 24)[0].tokens
  decoder = Decoder(model, "medusa-8+prompt_lookup-6/pruned")
  assert decoder.name == "medusa+prompt_lookup-6/pruned"
  (got,) = decoder([prompt], 24)
  assert got.tokens == plain and got.passes < 24
  for name in ("prompt_lookup/pruned", "prompt_lookup/pruned|medusa"):
    with pytest.raises(
      ValueError,
      match=("prompt_lookup/pruned needs a union with a drafter that is not pruned, in which"),
    ):
      Decoder(model, name)
