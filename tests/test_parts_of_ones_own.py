"""A tree, a rule, a policy and a processor from outside the package take a few lines each."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import trees
from specjax.base import PROPOSALS, Processor, Proposal, Verifier
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.method import method as pair
from specjax.draft_length.base import DraftLength
from specjax.drafters import adaptive_model, draft_tree
from specjax.names.load import load
from specjax.sampling import RESIDUAL
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees.structure import ending_at
from specjax.verifiers import target_only, token

V = 3
TABLE = table_model(V)
CASE = Case(np.asarray(random_table(0, V)["logits"]), prompt=(0, 2), length=2, temperature=0.8)


def distance(drafter, rule, params=(), case=CASE, processors=()) -> float:
  emitted = emitted_distribution(case, pair(TABLE, drafter, rule, processors), params)
  return total_variation(emitted, target_distribution(case))


@dataclasses.dataclass(frozen=True)
class Fan:
  """The head's best guesses of the next token, and nothing below them."""

  width: int
  depth: ClassVar[int] = 1
  proposal: ClassVar[Proposal] = "deterministic"

  @property
  def nodes(self) -> int:
    return 1 + self.width

  def fill(self, root, guesser):
    return trees.Static([[rank] for rank in range(self.width)]).fill(root, guesser)


def test_a_tree_is_a_class_and_a_row(monkeypatch, tmp_path):
  monkeypatch.setitem(trees.TREES, "fan", Fan)
  tree = trees.build("fan", {"width": 2})
  assert tree == Fan(2)
  trees.save(tmp_path / "tree.json", tree, {})
  assert trees.load(tmp_path / "tree.json") == tree
  drafter = draft_tree(TABLE, tree)
  assert (drafter.nodes, drafter.depth) == (3, 1)
  assert distance(drafter, target_only(), random_table(9, V)) < 1e-6


def hesitant(how: str) -> Verifier:
  """Accepts nothing, and says a token of the target's after the root, or after the first guess."""

  def verify(params, draft, log_probs, features, noise, *, depth, proposal):
    zero = jnp.zeros(len(log_probs), jnp.int32)
    extra = noise.draw(RESIDUAL, log_probs[:, 1 if how == "biased" else 0])
    return ending_at(draft, zero, zero, extra, depth)

  return Verifier("hesitant", "EXACT", PROPOSALS, "any", verify)


@pytest.mark.parametrize(("how", "exact"), [("exact", True), ("biased", False)])
def test_a_rule_is_a_function_and_a_row(how, exact):
  found = distance(fixed_draft([[0], [1]], [2, 0]), hesitant(how))
  assert found < 1e-6 if exact else found > 1e-3


MISTAKES = {
  "a node less": (
    lambda draft: draft._replace(tokens=draft.tokens[:, 1:]),
    r"`tokens` .* N = 3, got int32\[\d+, 2\]",
  ),
  "another type": (
    lambda draft: draft._replace(valid=draft.depth),
    r"`valid` .* must be bool\[B, N\] with .* got int32",
  ),
  "no batch": (
    lambda draft: draft._replace(parent=draft.parent[0]),
    r"`parent` .* must be int32\[B, N\] with .* got int32\[3\]",
  ),
  "a probability a node": (
    lambda draft: draft._replace(log_probs=draft.depth.astype(jnp.float32)),
    r"`log_probs` .* must be float32\[B, N, V\]",
  ),
  "no draft": (tuple, "must return a Draft, got"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_drafters_mistake_is_one_sentence(name):
  mistake, sentence = MISTAKES[name]
  right = fixed_draft([[0], [1]], [2, 0])

  def propose(*args, **kwargs):
    draft, state = right.propose(*args, **kwargs)
    return mistake(draft), state

  wrong = right._replace(name="mine", propose=propose)
  with pytest.raises(ValueError, match=f"(?=.*the drafter 'mine').*{sentence}"):
    distance(wrong, target_only())


def test_a_verifiers_mistake_is_one_sentence():
  def verify(*args, **kwargs):
    verdict = target_only().verify(*args, **kwargs)
    return verdict._replace(path=verdict.path[:, :1])

  wrong = target_only()._replace(name="mine", verify=verify)
  with pytest.raises(ValueError, match=r"`path` of the verifier 'mine' must be int32\[B, A\]"):
    distance(fixed_draft([[0], [1]], [2, 0]), wrong)


@pytest.mark.slow
def test_a_draft_length_policy_is_three_functions_and_a_row():
  def stop(params, state, observation):
    return jnp.exp(observation.log_probs).max(-1) < state, state

  policy = DraftLength(
    "peaked", False, False, lambda batch: jnp.full(batch, 0.5), stop,
    lambda state, accepted, drafted: state,
  )  # fmt: skip
  drafter = adaptive_model(TABLE, policy, 3)
  assert distance(drafter, token(), (random_table(9, V), ())) < 1e-6


def test_a_processor_is_four_functions_and_a_row():
  forbidden = Processor(
    "forbidden",
    lambda params, context, limit: (),
    lambda params, state, draft, mask, logits: logits.at[..., 1].set(-jnp.inf),
    lambda params, state, tokens: jnp.zeros(tokens.shape, bool),
    lambda params, state, tokens, rows: state,
  )
  case = dataclasses.replace(
    CASE, processors=lambda B: ((),),
    processed=lambda logits, tokens: np.where(np.arange(V) == 1, -np.inf, logits),
  )  # fmt: skip
  assert distance(fixed_draft([[0], [1]], [1, 0]), target_only(), (), case, (forbidden,)) < 1e-6


OWN = """
import functools

import jax.numpy as jnp

from specjax.diffusion.base import Policy
from specjax.drafters import stateless

again = stateless("again", 3, lambda context: jnp.repeat(context.root, 3, 1))


@functools.cache
def repeat(nodes: int = 4, fewer: int = 0):
  depth = nodes - 1
  return stateless("repeat", depth, lambda context: jnp.repeat(context.root, depth - fewer, 1))


def flat():
  return stateless("flat", 1, lambda context: context.root[:, 0])


def all_at_once():
  def select(params, memory, prediction):
    return prediction.open, prediction.confidence, memory

  return Policy("all_at_once", lambda B, W, V: (), select)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mine.py").write_text(OWN)


@pytest.mark.parametrize(
  "name", ["mine.py:again", "mine.py:repeat-3", "mine.py:repeat+prompt_lookup-4"]
)
def test_a_drafter_in_a_file_has_a_name(file, name):
  assert Decoder(cut(), name).name == name


@pytest.mark.slow
def test_a_drafter_in_a_file_changes_no_token(file):
  (drafted,), (plain,) = (Decoder(cut(), d)(["a pen"], 6) for d in ("mine.py:again", "none"))
  assert drafted.tokens == plain.tokens


def test_a_policy_in_a_file_has_a_name(file):
  decoder = DiffusionDecoder(load("lists-3m"), "mine.py:all_at_once/dual", blocks=8)
  assert decoder.name == "mine.py:all_at_once/fixed-8/dual"


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("absent.py:again", "drafter='absent.py:again': there is no file absent.py in "),
    ("mine.py:never", "mine.py has no function never"),
    ("mine.py:again-4", "mine.py:again takes no number"),
    ("mine.py:all_at_once", "`drafter` must be a name, a Drafter, or a pair"),
    ("mine.py:repeat-3,fewer=1", r"must be i32\[B, depth\], .* \(1, 2\), got int32 .* \(1, 1\)"),
    ("mine.py:flat", r"must be i32\[B, depth\], .* shape \(1, 1\), got int32 of the shape \(1,\)"),
  ],
)
def test_a_drafter_that_breaks_its_word_is_one_sentence(file, name, words):
  with pytest.raises(ValueError, match=words):
    Decoder(cut(), name)(["a pen"], 4)
