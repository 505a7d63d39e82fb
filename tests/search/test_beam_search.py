"""Beam search against lists in Python, and against all texts that there are."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_conversation import MODEL

import specjax
from specjax.search.beam_search import hypotheses, search
from specjax.testing import random_table, table_model

V, PROMPT = 3, [0, 2]


def log_prob(table, text, x):
  logits = table[text[-2], text[-1]]
  return float(logits[x] - np.log(np.exp(logits).sum()))


def by_hand(table, k, G, new, diversity, penalty, stop):
  """[(score, new ids)] of all groups, best first."""
  b = k // G
  live, final = [[(0.0, [])] for _ in range(G)], [[] for _ in range(G)]
  for n in range(1, new + 1):
    said = collections.Counter()
    for g in range(G):
      every = [
        (p + log_prob(table, PROMPT + text, x), [*text, x]) for p, text in live[g] for x in range(V)
      ]
      every.sort(key=lambda x: diversity * said[x[1][-1]] - x[0])
      final[g] += [(p / n**penalty, text) for p, text in every[:b] if text[-1] in stop]
      live[g] = [x for x in every if x[1][-1] not in stop][:b]
      said.update(text[-1] for _, text in live[g])
  found = {}
  for g in range(G):
    whole = final[g] + [(p / new**penalty, text) for p, text in live[g]]
    for score, text in sorted(whole, key=lambda x: -x[0])[:b]:
      found.setdefault(tuple(text), score)
  return sorted(((score, list(text)) for text, score in found.items()), key=lambda x: -x[0])


def found(table, k, G, new, diversity, penalty, stop):
  ids = jnp.asarray([[*PROMPT, 1, 1]], jnp.int32)  # padded
  state = search(
    table_model(V), {"logits": jnp.asarray(table)}, ids, jnp.int32(2), jnp.int32(2 + new),
    jnp.asarray(stop or [-1], jnp.int32), jnp.float32(diversity), jnp.float32(penalty),
    beams=k, groups=G, capacity=16,
  )  # fmt: skip
  return hypotheses(jax.device_get(state._replace(cache=None)), 2, 2 + new, penalty)


def equal(got, want):
  assert [text for _, text in got] == [text for _, text in want]
  np.testing.assert_allclose([score for score, _ in got], [score for score, _ in want], rtol=1e-5)


@pytest.mark.parametrize(
  ("k", "G", "diversity", "penalty", "stop"),
  [(2, 1, 0.5, 1.0, [1]), (4, 2, 0.7, 0.0, []), (6, 3, 2.0, 0.6, [0, 2])],
)
def test_the_beams_are_those_of_lists(k, G, diversity, penalty, stop):
  for seed in range(4):
    table = np.asarray(random_table(seed, V)["logits"])
    for new in (1, 5):
      case = table, k, G, new, diversity, penalty, stop
      equal(found(*case), by_hand(*case))


@pytest.mark.parametrize("stop", [[], [1]])
def test_as_many_beams_as_texts_find_the_best(stop):
  new = 3
  for seed, penalty in itertools.product(range(3), (0.0, 1.0)):
    table, every = np.asarray(random_table(seed, V)["logits"]), {}
    for text in itertools.product(range(V), repeat=new):
      ends = [i + 1 for i, x in enumerate(text) if x in stop]
      text = text[: ends[0]] if ends else text
      p = sum(log_prob(table, [*PROMPT, *text[:i]], x) for i, x in enumerate(text))
      every[text] = p / len(text) ** penalty
    best = max(every, key=every.get)
    score, ids = found(table, V ** (new - 1), 1, new, 0.0, penalty, stop)[0]
    assert tuple(ids) == best
    np.testing.assert_allclose(score, every[best], rtol=1e-5)


def test_diversity_keeps_groups_apart():
  table = np.asarray(random_table(0, V)["logits"])
  together, apart = (found(table, 3, 3, 4, x, 0.0, []) for x in (0.0, 100.0))
  assert len(together) == 1 and len({text[0] for _, text in apart}) == 3


@pytest.mark.full
def test_one_beam_is_greedy_decoding():
  prompts = [[1, 2, 3], [4, 4, 5, 6, 7]]
  got = specjax.search.beam_search(MODEL, prompts, 1, [9, 6])
  for (beam,), want in zip(got, specjax.Decoder(MODEL)(prompts, [9, 6]), strict=True):
    assert beam.tokens == want.tokens
    np.testing.assert_allclose(beam.log_prob, sum(want.log_probs), rtol=1e-4)


@pytest.mark.parametrize(
  "wrong",
  [{"beams": 0}, {"groups": 3}, {"groups": 0}, {"diversity": -1}, {"length_penalty": -1},
   {"stop": [-1]}, {"max_new_tokens": 0}],
)  # fmt: skip
def test_bad_numbers_are_refused(wrong):
  with pytest.raises(ValueError, match=next(iter(wrong))):
    specjax.search.beam_search(MODEL, [[1, 2]], **wrong)
