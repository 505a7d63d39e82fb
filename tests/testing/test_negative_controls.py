"""Mistakes that published systems make, each of which enumeration must see.

Every control is a pairing of drafter and rule that looks right; beside it stands the pairing done
properly, which must be exact.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.base import Draft, Drafter, Verdict, Verifier
from specjax.decoding.method import method as pair
from specjax.draft_length import confidence
from specjax.drafters import adaptive_model, draft_model, draft_tree
from specjax.sampling import COIN, DRAFT, RESIDUAL
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees.structure import connected, follow, gather
from specjax.verifiers import block, recursive, siblings, target_only, token

V = 3
EXACT, BIASED = 1e-6, 1e-3
TARGET = table_model(V)
RECURSIVE = recursive()


def drawn(how, *widths) -> Drafter:
  return draft_tree(TARGET, trees.build(how, widths))


def changed(drafter: Drafter, change, **fields) -> Drafter:
  """The drafter with `change` made to every draft."""

  def propose(params, target_params, state, context, settings, noise):
    draft, state = drafter.propose(params, target_params, state, context, settings, noise)
    return change(draft), state

  return drafter._replace(propose=propose, **fields)


def likeliest_instead(drafter: Drafter) -> Drafter:
  """Children are the top of q, but their distribution is said to be q."""

  class Top:
    def children(self, stream, log_probs, count, distinct):
      return jax.lax.top_k(log_probs, count)[1].astype(jnp.int32)

  def propose(params, target_params, state, context, settings, noise):
    return drafter.propose(params, target_params, state, context, settings, Top())

  return drafter._replace(propose=propose)


def q_of(draft: Draft):
  """f32[B, N]: how likely the distribution at its parent made every node."""
  rows = jnp.take_along_axis(draft.log_probs, draft.parent[..., None], 1)
  return jnp.exp(jnp.take_along_axis(rows, draft.tokens[..., None], -1)[..., 0])


def least_likely_dropped(draft: Draft) -> Draft:
  q = jnp.where(draft.depth > 0, q_of(draft), 2.0)
  worst = jnp.argmin(q, 1)[:, None] == jnp.arange(q.shape[1])[None]
  return draft._replace(valid=draft.valid & ~worst)


def unlikely_dropped(draft: Draft) -> Draft:
  return draft._replace(valid=draft.valid & ((draft.depth == 0) | (q_of(draft) > 0.4)))


def unlikely_dropped_from_q(draft: Draft) -> Draft:
  """And q is said to be the distribution of what is kept."""
  return unlikely_dropped(draft)._replace(log_probs=draft.log_probs.at[:, -1].set(-jnp.inf))


def repeats_dropped(draft: Draft) -> Draft:
  same = (draft.tokens[:, :, None] == draft.tokens[:, None]) & (
    draft.parent[:, :, None] == draft.parent[:, None]
  )
  N = draft.tokens.shape[1]
  elder = jnp.tril(jnp.ones((N, N), bool), -1)[None] & (draft.depth[:, None] > 0)
  return draft._replace(valid=draft.valid & ~(same & elder).any(-1))


def two_exits(mixture: bool) -> Drafter:
  """One token from q1 = q(T = 1), but if q1 finds it unlikely one from q2 = q(T = 3)."""
  base = draft_model(TARGET, 2)

  def propose(params, target_params, state, context, settings, noise):
    chain, state = base.propose(params, target_params, state, context, settings, noise)
    first = chain.log_probs[:, 0]
    second = jax.nn.log_softmax(first / 3)
    again = noise.draw(DRAFT + 9, second)
    sure = gather(jnp.exp(first), chain.tokens[:, 1:])[:, 0] >= 0.5
    kept = jnp.where(jnp.exp(first) >= 0.5, jnp.exp(first), 0.0)
    whole = kept + (1 - kept.sum(-1, keepdims=True)) * jnp.exp(second)
    naive = jnp.where(sure[:, None], first, second)
    log_probs = jnp.log(whole) if mixture else naive
    guess = jnp.where(sure, chain.tokens[:, 1], again)
    tokens = jnp.stack([chain.tokens[:, 0], guess], 1)
    return chain._replace(tokens=tokens, log_probs=chain.log_probs.at[:, 0].set(log_probs)), state

  return base._replace(propose=propose)


def best_of_beams() -> Verifier:
  """Independent coins at every node, and the longest path that passes."""

  def verify(params, draft, log_probs, features, noise, *, depth, proposal):
    rows = jnp.take_along_axis(log_probs, draft.parent[..., None], 1)
    p = jnp.exp(jnp.take_along_axis(rows, draft.tokens[..., None], -1)[..., 0])
    hit = noise.accept(COIN, p[:, 1:], q_of(draft)[:, 1:]) & draft.valid[:, 1:]
    ok = connected(jnp.pad(hit, ((0, 0), (1, 0))), draft.parent, depth)
    tie = jnp.zeros(ok.shape)
    verdict = follow(draft, ok, tie, draft.tokens, depth)
    leaf = gather(verdict.path, verdict.count[:, None])
    P, Q = (
      jnp.exp(jnp.take_along_axis(x, leaf[..., None], 1)[:, 0])
      for x in (log_probs, draft.log_probs)
    )
    extra = noise.draw(RESIDUAL, jnp.log(siblings.residual(P, Q)))
    step = jnp.arange(depth + 1, dtype=jnp.int32)[None]
    tokens = jnp.where(step < verdict.count[:, None], verdict.tokens, extra[:, None])
    return verdict._replace(tokens=tokens)

  return Verifier("best of beams", "LOSSY", frozenset({"iid"}), "any", verify)


def a_draw_per_candidate() -> Verifier:
  """Every child of the root draws its own target token, and one that drew itself wins.

  REST samples in this way; specjax draws once per node.
  """

  def verify(params, draft, log_probs, features, noise, *, depth, proposal):
    children = range(1, draft.tokens.shape[1])
    hit = [noise.draw(DRAFT + 9 + i, log_probs[:, 0]) == draft.tokens[:, i] for i in children]
    ok = jnp.stack([jnp.ones_like(hit[0]), *hit], 1)
    verdict = follow(draft, ok, jnp.zeros(ok.shape), draft.tokens, depth)
    leaf = gather(verdict.path, verdict.count[:, None])
    extra = noise.draw(RESIDUAL, jnp.take_along_axis(log_probs, leaf[..., None], 1)[:, 0])
    tokens = jnp.where(verdict.count[:, None] > 0, verdict.tokens, extra[:, None])
    return verdict._replace(tokens=tokens.at[:, 1].set(extra))

  return Verifier("a draw per candidate", "LOSSY", frozenset({"deterministic"}), "any", verify)


def flawed_block(flaw: str) -> Verifier:
  """Block verification with a mistake, or none; token by token."""

  def verify(params, draft, log_probs, features, noise, *, depth, proposal):
    D = depth
    p, q = jnp.exp(log_probs), jnp.exp(draft.log_probs)
    drafted = draft.tokens[:, 1:]
    c, passing, left = jnp.ones(len(log_probs)), [], []
    for i in range(D + 1):
      at_end = i == D
      rest = jnp.maximum(c[:, None] * p[:, i] - (0 if at_end else q[:, i]), 0.0)
      mass = rest.sum(-1)
      whole = mass + 1 - c
      h = c if at_end or flaw == "h is c" else jnp.where(whole > 0, mass / whole, 1.0)
      passing.append(h)
      plain = jnp.maximum(p[:, i] - (0 if at_end else q[:, i]), 0.0)
      left.append(plain if flaw == "residual of a token" else rest)
      if not at_end:
        x = drafted[:, i, None]
        have, need = (jnp.take_along_axis(y[:, i], x, 1)[:, 0] for y in (p, q))
        c = jnp.where(need > 0, jnp.minimum(1.0, c * have / jnp.where(need > 0, need, 1.0)), 0.0)
    h = jnp.stack(passing[1:], 1)
    coins = noise.accept(COIN, h, jnp.ones_like(h))
    step = jnp.arange(D + 1, dtype=jnp.int32)[None]
    count = jnp.where(coins, step[:, 1:], 0).max(1)
    row = jnp.take_along_axis(jnp.stack(left, 1), count[:, None, None], 1)[:, 0]
    P = jnp.take_along_axis(p, count[:, None, None], 1)[:, 0]
    row = jnp.where(row.sum(-1, keepdims=True) > 0, row, P)
    extra = noise.draw(RESIDUAL, jnp.log(row))
    tokens = jnp.concatenate([drafted, extra[:, None]], 1)
    tokens = jnp.where(step < count[:, None], tokens, extra[:, None])
    return Verdict(jnp.minimum(step, count[:, None]), count, tokens)

  return Verifier("flawed block", "LOSSY", frozenset({"chain"}), "any", verify)


CHAIN = draft_model(TARGET, 3)
TWO = fixed_draft([[0], [1]], [0, 1])
KEPT = adaptive_model(TARGET, confidence(0.4, keep=False, step=0.0), 3)
CONTROLS = {
  "distinct draws, rule for iid": (
    drawn("without_replacement", 2)._replace(proposal="iid"),
    RECURSIVE,
  ),
  "iid draws, rule for distinct": (
    drawn("iid", 2)._replace(proposal="without_replacement"),
    RECURSIVE,
  ),
  "top of q taken for draws": (likeliest_instead(drawn("without_replacement", 2)), RECURSIVE),
  "block: passes with c": (CHAIN, flawed_block("h is c")),
  "block: residual of a token": (CHAIN, flawed_block("residual of a token")),
  "pruned after looking": (
    changed(drawn("without_replacement", 3), least_likely_dropped),
    RECURSIVE,
  ),
  "dropped, then p": (changed(draft_model(TARGET, 2), unlikely_dropped), token()),
  **{
    f"{name}, {rule.name}": (drafter, rule)
    for rule in (token(), block())
    for name, drafter in {
      "kept taken for a chain": KEPT._replace(proposal="chain"),
      "dropped, then what q leaves": changed(
        draft_model(TARGET, 3), unlikely_dropped_from_q, proposal="truncated"
      ),
    }.items()
  },
  "best of beams": (drawn("iid", 2, 1), best_of_beams()),
  "a draw per candidate": (TWO, a_draw_per_candidate()),
  "repeats dropped, rule for iid": (changed(drawn("iid", 2), repeats_dropped), RECURSIVE),
  "distribution of the exit": (two_exits(mixture=False), token()),
}
PROPER = {
  "without_replacement": (drawn("without_replacement", 2), RECURSIVE),
  "iid": (drawn("iid", 2), RECURSIVE),
  "top of q, chosen": (
    likeliest_instead(drawn("without_replacement", 2))._replace(proposal="deterministic"),
    RECURSIVE,
  ),
  "block": (CHAIN, flawed_block("none")),
  "the shipped block": (CHAIN, block()),
  "pruned, target_only": (
    changed(drawn("without_replacement", 3), least_likely_dropped), target_only(),
  ),
  "dropped, target_only": (
    changed(draft_model(TARGET, 2), unlikely_dropped), target_only(),
  ),
  "kept, token": (KEPT, token()),
  "kept, block": (KEPT, block()),
  "a draw per node": (TWO, target_only()),
  "repeats dropped, rule for distinct": (
    changed(drawn("iid", 2), repeats_dropped, proposal="without_replacement"), RECURSIVE,
  ),
  "distribution of the mixture": (two_exits(mixture=True), token()),
}  # fmt: skip


def distances(drafter, verifier) -> list[float]:
  method = pair(TARGET, drafter, verifier)
  found = []
  for seed, temperature in itertools.product(range(3), (0.7, 1.3)):
    case = Case(np.asarray(random_table(seed, V)["logits"]), temperature=temperature)
    params = random_table(100 + seed, V)
    params = (params, ()) if drafter.name == "adaptive_model" else params
    params = () if drafter is TWO else params
    log_probs = emitted_distribution(case, method, params)
    found.append(total_variation(log_probs, target_distribution(case)))
  return found


def test_a_draw_per_candidate_is_biased_as_was_worked_out():
  """For p = (.4, .4, .2) and the children 0 and 1: .4 + .36 * .4, .24 + .36 * .4 and .36 * .2."""
  table = np.log(np.tile(np.array([0.4, 0.4, 0.2], np.float32), (V + 1, V, 1)))
  case = Case(table, length=1)
  found = emitted_distribution(case, pair(TARGET, TWO, a_draw_per_candidate()), ())
  first = [found[token,] for token in range(V)]
  np.testing.assert_allclose(first, [0.544, 0.384, 0.072], atol=1e-5)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_mistake_is_seen(name):
  assert max(distances(*CONTROLS[name])) > BIASED


@pytest.mark.parametrize("name", PROPER)
def test_the_same_done_properly_is_exact(name):
  assert max(distances(*PROPER[name])) < EXACT
