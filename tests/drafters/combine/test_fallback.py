"""The first source that has something to say: exact, per row, and no later source is run for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax import Decoder
from specjax.base import Context, Features
from specjax.decoding.method import method as pair
from specjax.drafters import draft_tree, fallback, history, none, prompt_lookup, union
from specjax.drafters.retrieval.history import append, empty
from specjax.sampling import Noise, Settings, request_keys
from specjax.testing import (
  Case,
  emitted_distribution,
  fixed_draft,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import IID, WithoutReplacement
from specjax.verifiers import recursive, target_only, traversal

V = 3
TABLE = table_model(V)
ONE = draft_tree(TABLE, IID(((0,),)))
TWO = draft_tree(TABLE, IID(((0,), (1,))))
FORK = fixed_draft([[0], [1], [0, 0]], [1, 2, 1])
SURE = prompt_lookup(4, 3, 2)  # two tokens must match
DRAFT = random_table(100, V)
EXACT_FOR = {
  "both chosen": (fallback(SURE, FORK), ((), ()), (target_only(), recursive())),
  "chosen, then drawn": (fallback(SURE, ONE), ((), DRAFT), (recursive(), traversal())),
  "three": (fallback(SURE, prompt_lookup(2), TWO), ((), (), DRAFT), (recursive(),)),
  "in a union": (union(fallback(SURE, prompt_lookup(2)), FORK), (((), ()), ()), (target_only(),)),
}
PROMPTS = ((0, 2, 0), (0, 2, 0, 2), (1, 1, 2))  # what matches: one token, two, none


@pytest.mark.slow
@pytest.mark.full(but=["both chosen-0", "chosen, then drawn-0"])
@pytest.mark.parametrize(
  ("name", "rule"), [(name, i) for name, row in EXACT_FOR.items() for i in range(len(row[2]))]
)
def test_the_emitted_distribution_is_the_targets(name, rule):
  drafter, params, rules = EXACT_FOR[name]
  method = pair(TABLE, drafter, rules[rule])
  for seed, settings in enumerate(({"temperature": 0.8}, {"temperature": 0.0}, {"stop": (1,)})):
    logits = np.asarray(random_table(seed, V)["logits"])
    case = Case(logits, prompt=PROMPTS[seed], **settings)
    found = emitted_distribution(case, method, params)
    assert total_variation(found, target_distribution(case)) < 1e-6


def propose(drafter, params, texts, brought=None):
  """The drafts after texts, where a round of a choice has brought so many tokens until now."""
  tokens = np.zeros((len(texts), 8), np.int32)
  for b, text in enumerate(texts):
    tokens[b, : len(text)] = text
  length = jnp.array([len(text) for text in texts], jnp.int32)
  f, i = jnp.zeros(len(texts)), jnp.zeros(len(texts), jnp.int32)
  settings, noise = Settings(f, i, f + 1, f), Noise(request_keys(0, range(len(texts))), length)
  context = Context(jnp.asarray(tokens), length)
  features = Features(jnp.zeros((len(texts), 1, 1)), ())
  state = drafter.init(params, (), context, features, 8)
  if brought is not None:
    state = state._replace(tokens=jnp.full_like(state.tokens, brought))
  return jax.jit(drafter.propose)(params, (), state, context, settings, noise)


def test_each_row_has_the_draft_of_its_first_source_that_speaks():
  first, second = prompt_lookup(5, 3, 2), prompt_lookup(3)
  texts = [[0, 2, 0, 2], [0, 2, 0], [0, 1, 2]]  # two tokens match, one, none
  got, _ = propose(fallback(first, second), ((), ()), texts)
  a, _ = propose(first, (), texts)
  b, _ = propose(second, (), texts)
  assert got.tokens.shape == (3, 5)
  assert got.valid.sum(1).tolist() == [5, 3, 1]
  for row, want in enumerate((a, b, b)):
    n = int(want.valid[row].sum())
    assert got.tokens[row, :n].tolist() == want.tokens[row, :n].tolist()
    assert got.parent[row, :n].tolist() == want.parent[row, :n].tolist()


@pytest.mark.parametrize(
  ("brought", "drafts"),
  [(1, [0, 2, 0, 2]), (2, [1])],  # 2/3 + 4/9 + 8/27 + 16/81 = 1.6 tokens are expected
)
def test_a_source_that_expects_less_than_a_round_brings_stands_back(brought, drafts):
  fork = fixed_draft([[1]], [1])
  got, _ = propose(fallback(prompt_lookup(5, 3, 2), fork), ((), ()), [[0, 2, 0, 2]], brought)
  assert got.tokens[0][got.valid[0]].tolist()[1:] == drafts


def test_where_the_others_are_silent_a_draft_of_which_little_is_expected_stays():
  sources = fallback(prompt_lookup(5, 3, 2), prompt_lookup(5, 3, 3), none())
  got, _ = propose(sources, ((), (), ()), [[0, 2, 0, 2]], 9)
  assert got.tokens[0].tolist() == [2, 0, 2, 0, 2] and got.valid.all()


@pytest.mark.parametrize("longest", [2, 3])
def test_what_prompt_lookup_and_history_expect(longest):
  """The score, spelled out over lists."""
  rng, D, S = np.random.default_rng(longest), 4, 24
  texts = [rng.integers(0, 3, n).tolist() for n in (2, 7, 12, 20, 24, 24)]

  def score(before, last, chain, known):
    def match(end):
      same = [k for k in range(1, longest + 1) if k <= end and before[end - k : end] == last[-k:]]
      return max(same, default=0)

    lengths = [match(end) for end in range(known + 1)]
    l = max(lengths)
    ends = [end for end in range(known + 1) if l and lengths[end] == l]
    total = 0
    for j in range(1, len(chain) + 1):
      agree = [e for e in ends if all(a == b for a, b in zip(before[e:], chain[:j], strict=False))]
      total += len(agree) / len(ends) * (l / (l + 1)) ** j
    return total

  tokens = np.stack([np.pad(np.array(t, np.int32), (0, S - len(t))) for t in texts])
  context = Context(jnp.asarray(tokens), jnp.array([len(t) for t in texts], jnp.int32))
  lookup, past = prompt_lookup(D + 1, longest, 1), history(D + 1, longest, 1, 0, 32)
  ring = append(empty(32), jnp.asarray([texts[4]]), jnp.array([24], jnp.int32))
  own = [(text, len(text) - 1) for text in texts]
  for drafter, params, places in (
    (lookup, (), own),
    (past, ring, [(ring.tolist(), 32)] * len(texts)),
  ):
    draft = drafter.propose(params, (), (), context, None, None)[0]
    got = drafter.expects(params, context, draft)
    for b, (before, known) in enumerate(places):
      chain = draft.tokens[b, 1:][draft.valid[b, 1:]].tolist()
      assert got[b] == pytest.approx(score(before, texts[b], chain, known), abs=1e-5), b
  assert (got > 0).sum() > 3


def test_a_later_source_is_run_only_where_a_row_needs_it():
  runs = []

  def counted(params, target_params, state, context, settings, noise):
    jax.debug.callback(lambda: runs.append(1))
    return FORK.propose(params, target_params, state, context, settings, noise)

  drafter = fallback(SURE, FORK._replace(propose=counted))
  propose(drafter, ((), ()), [[0, 2, 0, 2], [1, 0, 1, 0]])
  jax.effects_barrier()
  assert not runs
  propose(drafter, ((), ()), [[0, 2, 0, 2], [0, 1, 2]])
  jax.effects_barrier()
  assert runs


@pytest.mark.parametrize(
  ("sources", "words"),
  [
    ((), "a choice has one source or more"),
    ((ONE, SURE), "drafter='draft_tree' draws its tokens: only the last"),
    ((SURE, draft_tree(TABLE, WithoutReplacement(((0,), (1,))))), "a choice takes chain, determin"),
    ((SURE, none()._replace(evaluate=TABLE.evaluate)), "replaces the target's evaluation"),
  ],
)
def test_what_cannot_be_joined_is_refused(sources, words):
  with pytest.raises(ValueError, match=words):
    fallback(*sources)


def test_names():
  name = "prompt_lookup-16,longest=8,shortest=3,per_match=1|token_recycling-4+prompt_lookup-4"
  decoder = Decoder(cut(), name)
  assert decoder.name == name
  assert decoder.method.drafter.nodes == 16 and decoder.method.drafter.depth == 15
  with pytest.raises(ValueError, match=r"`drafter` must be NAME, NAME-NUMBER or.*got ''\."):
    Decoder(cut(), "prompt_lookup|")
  with pytest.raises(ValueError, match=r"`tree` must be left out.*, got "):
    Decoder(cut(), "prompt_lookup|medusa", tree=[[0]])
