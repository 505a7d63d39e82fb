"""Passes over the nodes that a draft has: the same draft, the same numbers, the same tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut
from test_speculate import CONFIG, PARAMS, V

from specjax import Decoder, bucketing
from specjax.base import Draft
from specjax.decoding.method import method as pair
from specjax.draft_length import confidence
from specjax.drafters import adaptive_model, prompt_lookup, union
from specjax.models.transformer import target
from specjax.names import load as models
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees.structure import ancestors
from specjax.verifiers import recursive, target_only, token

TARGET = target(CONFIG)
B, N, D = 3, 9, 4


def random_drafts(seed: int, most: int = N) -> Draft:
  """Trees of which at most so many nodes can be reached, some of the others valid by themselves."""
  rng = np.random.default_rng(seed)
  parent, depth, valid = np.zeros((B, N), int), np.zeros((B, N), int), rng.random((B, N)) < 0.7
  valid[:, 0] = True
  for b in range(B):
    reached = 1
    for i in range(1, N):
      parent[b, i] = rng.choice([j for j in range(i) if depth[b, j] < D])
      depth[b, i] = depth[b, parent[b, i]] + 1
      above, node = [], parent[b, i]
      while node:
        above.append(node)
        node = parent[b, node]
      valid[b, i] &= reached < most
      reached += valid[b, [i, *above]].all()
  tokens = rng.integers(V, size=(B, N))
  log_probs = rng.normal(size=(B, N, 2)).astype(np.float32)
  arrays = (x.astype(np.int32) for x in (tokens, parent, depth))
  return Draft(*map(jnp.asarray, arrays), jnp.asarray(valid), jnp.asarray(log_probs))


def nodes_of(draft: Draft, b: int) -> list:
  """(tokens on the way, log-probabilities) of every node that can be reached, in order."""
  found = {0: ()}
  for i in range(1, N):
    if draft.valid[b, i] and int(draft.parent[b, i]) in found:
      found[i] = (*found[int(draft.parent[b, i])], int(draft.tokens[b, i]))
  return [(way, len(way), draft.log_probs[b, i].tolist()) for i, way in found.items()]


def test_a_compact_draft_has_the_same_nodes_in_the_same_order():
  moved = 0
  for seed in range(20):
    draft = random_drafts(seed)
    compact = jax.jit(bucketing.compact, static_argnums=1)(draft, D)
    parent, node = np.asarray(compact.parent), np.arange(N)
    assert (parent[:, 1:] < node[1:]).all() and (parent >= 0).all()
    for b in range(B):
      want = nodes_of(draft, b)
      assert nodes_of(compact, b) == want
      assert compact.valid[b].tolist() == [i < len(want) for i in node]
      assert compact.depth[b, : len(want)].tolist() == [depth for _, depth, _ in want]
      moved += int(draft.valid[b].sum()) != len(want)
  assert moved > 10


@pytest.mark.slow
@pytest.mark.full(but=["1", "3", "9"])
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, N])
def test_every_width_says_what_the_whole_pass_says(most):
  rng = np.random.default_rng(0)
  tokens = jnp.asarray(rng.integers(V, size=(B, 8)), jnp.int32)
  cache, _ = TARGET.prefill(PARAMS, tokens, jnp.array([8, 3, 1], jnp.int32), 24)
  draft = bucketing.compact(random_drafts(most, most), D)
  mask = ancestors(draft.parent, D)

  @functools.partial(jax.jit, static_argnums=0)
  def run(widths):
    return bucketing.evaluate(TARGET, PARAMS, widths, cache, draft, mask, (1, 2))

  want, got = run(()), run((1, 2, 4))
  used = int(draft.valid.sum(1).max())
  width = next(w for w in (1, 2, 4, N) if w >= used)
  computed = np.asarray(got.logits).any((0, 2))
  assert computed.tolist() == [node < width for node in range(N)]  # which pass has run
  assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    axis = 1 if a.ndim == 3 else 2  # keys and values are [B, K, N, C]
    for row in range(B):
      keep = np.flatnonzero(draft.valid[row])
      one, other = (np.take(np.asarray(x[row]), keep, axis - 1) for x in (a, b))
      np.testing.assert_allclose(one, other, atol=1e-5)


def compacted(drafter):
  """The drafter, its drafts made compact as the loop does it before a narrow pass."""

  def propose(params, target_params, state, context, settings, noise):
    draft, state = drafter.propose(params, target_params, state, context, settings, noise)
    return bucketing.compact(draft, drafter.depth), state

  return drafter._replace(propose=propose)


@pytest.mark.full
def test_drafts_that_were_made_compact_stay_exact():
  small = table_model(3)
  fork = fixed_draft([[0], [1], [0, 0]], [1, 2, 1])
  drawn = random_table(100, 3)
  for drafter, rule, params in (
    (union(prompt_lookup(3), fork), target_only(), ((), ())),
    (union(prompt_lookup(3), fork), recursive(), ((), ())),
    (adaptive_model(small, confidence(0.5, 2, keep=True), 3), token(), (drawn, ())),
  ):
    for seed, temperature in enumerate((0.8, 0.0)):
      logits = np.asarray(random_table(seed, 3)["logits"])
      case = Case(logits, prompt=(0, 2, 0), temperature=temperature)
      found = emitted_distribution(case, pair(small, compacted(drafter), rule), params)
      assert total_variation(found, target_distribution(case)) < 1e-6


@pytest.mark.slow
def test_a_large_model_gets_narrow_passes_on_a_cpu(monkeypatch):
  model, prompts = cut(), ["Q: 2 + 2 + 2 + 2 = 2 + 2 +", "one two one two"]
  whole = Decoder(model, "prompt_lookup-6", batch=2)
  assert whole.method.narrow == ()
  monkeypatch.setattr(models, "LARGE", 2**20)
  narrowed = Decoder(model, "prompt_lookup-6", batch=2)
  assert narrowed.method.narrow == (1, 4)
  assert Decoder(model).method.narrow == ()
  assert Decoder(model, "medusa").method.narrow == ()  # its trees are always full
  want, got = whole(prompts, 24), narrowed(prompts, 24)
  assert [r.tokens for r in got] == [r.tokens for r in want]
  assert [r.rounds for r in got] == [r.rounds for r in want]
