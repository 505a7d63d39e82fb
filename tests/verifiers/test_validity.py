"""The table of valid pairings, row by row, and the sentences for the others."""

import pytest

from specjax.base import PROPOSALS, Drafter
from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree, none, prompt_lookup, union
from specjax.testing import random_draft, table_model
from specjax.trees import IID, Graph
from specjax.verifiers import VERIFIERS, k_seq, recursive, target_only, token
from specjax.verifiers.validity import WHY, exact_for

TABLE = {
  "greedy": PROPOSALS,
  "target_only": PROPOSALS,
  "typical": PROPOSALS,  # lossy for all of them
  "judge": PROPOSALS,
  "token": {"chain", "truncated", "coupled"},
  "block": {"chain", "truncated"},
  "recursive": PROPOSALS - {"truncated", "coupled"},
  "traversal": PROPOSALS - {"truncated", "coupled"},
  "k_seq": {"chain", "iid"},
  "transfer": {"chain", "truncated"},
  "unverified": PROPOSALS,  # lossy for all of them
}


def of_kind(proposal: str) -> Drafter:
  return random_draft([[0]], 4)._replace(proposal=proposal)


@pytest.mark.parametrize("proposal", sorted(PROPOSALS))
@pytest.mark.parametrize("name", VERIFIERS)
def test_a_pairing_is_accepted_or_refused_when_it_is_made(name, proposal):
  drafter, verifier = of_kind(proposal), VERIFIERS[name]()
  if proposal in TABLE[name]:
    assert pair(table_model(4), drafter, verifier).drafter is drafter
  else:
    with pytest.raises(ValueError, match=f"verifier='{name}' is not exact for drafter='random"):
      pair(table_model(4), drafter, verifier)


@pytest.mark.parametrize(
  ("verifier", "proposal", "words"),
  [
    (
      token(),
      "deterministic",
      "its tokens are chosen, not drawn, so there is no distribution q to correct for",
    ),
    (token(), "deterministic", "Use target_only or recursive or traversal."),
    (k_seq(), "without_replacement", r"drawn without replacement.*and the rule is for chain, iid"),
    (recursive(), "truncated", r"p must be reduced.*Use target_only or token or block\."),
  ],
)
def test_the_sentence_says_why_and_what_to_use(verifier, proposal, words):
  with pytest.raises(ValueError, match=words):
    pair(table_model(4), of_kind(proposal), verifier)


@pytest.mark.parametrize("name", VERIFIERS)
def test_without_a_draft_every_rule_is_exact(name):
  assert pair(table_model(4), none(), VERIFIERS[name]()).drafter == none()


def test_every_proposal_has_a_reason_and_a_rule():
  assert set(WHY) == PROPOSALS
  for proposal in PROPOSALS:
    assert "target_only" in exact_for(proposal)
  assert exact_for("chain") == [
    "target_only", "token", "block", "recursive", "traversal", "k_seq",
  ]  # fmt: skip


CHAIN = draft_tree(table_model(4), IID(((0,), (0, 0))))


@pytest.mark.parametrize(
  ("drafter", "proposal"),
  [
    (draft_tree(table_model(4), Graph(6, 3, 2)), "deterministic"),
    (union(prompt_lookup(4), draft_tree(table_model(4), Graph(6, 3, 2))), "deterministic"),
    (union(prompt_lookup(4), CHAIN), "independent"),
    (union(CHAIN, CHAIN), "independent"),
    (union(prompt_lookup(3), union(CHAIN, prompt_lookup(4))), "independent"),
  ],
  ids=lambda x: getattr(x, "name", x),
)
def test_merged_and_joined_drafts_have_the_rules_of_their_kind(drafter, proposal):
  assert drafter.proposal == proposal
  assert exact_for(proposal) == ["target_only", "recursive", "traversal"]
  assert pair(table_model(4), drafter, recursive()).drafter is drafter
  with pytest.raises(ValueError, match="verifier='token' is not exact"):
    pair(table_model(4), drafter, token())


def test_a_draft_model_is_a_chain():
  chain = draft_model(table_model(4), 3)
  assert pair(table_model(4), chain, target_only()).verifier is target_only()
