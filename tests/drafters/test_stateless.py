"""A drafter of one's own is one function of the text, and whatever it guesses nothing is lost."""

import jax.numpy as jnp
import numpy as np
import pytest

import specjax.drafters
from specjax.base import Context
from specjax.decoding.method import method as pair
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.verifiers import VERIFIERS

V = 3


def repeat(context):  # guesses that the newest token will be said again
  return jnp.repeat(context.root, 3, 1)


def counts_down(context):
  """V - 1, V - 2, .. from below the root; negative where there is nothing left to say."""
  return context.root - 1 - jnp.arange(3, dtype=jnp.int32)[None]


def drafted(guess, *rows):
  drafter = specjax.drafters.stateless(guess.__name__, 3, guess)
  length = jnp.array([len(row) for row in rows])
  tokens = jnp.array([row + [9] * (8 - len(row)) for row in rows])
  return drafter.propose((), (), (), Context(tokens, length), None, None)[0]


def test_the_root_is_the_newest_token_and_a_negative_guess_ends_the_chain():
  draft = drafted(counts_down, [5, 1], [0], [4, 4, 3])
  assert draft.valid.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
  assert draft.tokens.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [3, 2, 1, 0]]
  assert draft.parent.tolist() == [[0, 0, 1, 2]] * 3 and draft.depth.tolist() == [[0, 1, 2, 3]] * 3


def test_one_function_is_one_drafter():
  assert specjax.drafters.stateless("repeat", 3, repeat) is specjax.drafters.stateless(
    "repeat", 3, repeat
  )


@pytest.mark.parametrize("rule", ["target_only", "recursive"])
@pytest.mark.parametrize("guess", [repeat, counts_down])
def test_it_is_lossless(guess, rule):
  drafter = specjax.drafters.stateless(guess.__name__, 3, guess)
  method = pair(table_model(V), drafter, VERIFIERS[rule]())
  for seed in range(2):
    case = Case(np.asarray(random_table(seed, V)["logits"]), prompt=(0, 2), temperature=0.8)
    emitted = emitted_distribution(case, method)
    assert total_variation(emitted, target_distribution(case)) < 1e-6
