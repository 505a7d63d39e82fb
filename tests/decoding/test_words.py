"""Policies in words, and the decoder that is told what to do in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data.tokenizer import END, MASK, train_words
from specjax.decoding import words
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.model import Model
from specjax.diffusion.policies import POLICIES, Filter, Leap
from specjax.models.config import Config
from specjax.models.transformer import Transformer

TOKENIZER = train_words(["copy : Ann Bob Cy Dan ="])
TOKENIZER.inner.add_special_tokens([END, MASK])
CONFIG = Config(
  vocab_size=TOKENIZER.vocab_size, width=16, layers=2, heads=2, kv_heads=1, head_dim=16,
  mlp_width=24, max_length=64, causal=False,
)  # fmt: skip
W = 6
FILTER = Filter(jnp.eye(W), jnp.zeros(W), jnp.eye(W), jnp.zeros(W), jnp.float32(0.55))


@pytest.fixture(scope="module")
def model() -> Model:
  z = jnp.zeros((1, 2), jnp.int32)
  params = Transformer(CONFIG).init(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  params = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)
  return Model("tiny", CONFIG, params, TOKENIZER, (TOKENIZER.id(END),), (), "plain",
               TOKENIZER.id(MASK))  # fmt: skip


def test_every_policy_has_words():
  assert set(words.DEFAULTS) == set(POLICIES)


@pytest.mark.parametrize(
  ("said", "name", "numbers"),
  [
    ("threshold", "threshold", [0.9]),
    ("threshold-0.5", "threshold", [0.5]),
    ("confidence-3", "confidence", [3]),
    ("local_leap-0.8-0.6", "local_leap", [0.8, 0.6, 4]),
    ("factor+r2", "r2(factor)", [1.0, 0.8, 0.8, 0.8, 3]),
  ],
)
def test_words_are_read(said, name, numbers):
  policy, params = words.policy(said, 2)
  assert policy.name == name
  leaves = jax.tree.leaves(params)
  assert all(x.shape == (2,) for x in leaves)
  np.testing.assert_allclose([x[0] for x in leaves], numbers)


def test_numbers_keep_their_kind():
  params = words.policy("local_leap", 1)[1]
  assert isinstance(params, Leap) and params.radius.dtype == jnp.int32


@pytest.mark.parametrize(
  ("said", "problem"),
  [
    ("thresold", "accepted is NAME or NAME-NUMBER"),
    ("threshold-0.9-0.8", "takes 1 numbers at most"),
    ("confidence-1.5", "'1.5' is no whole number"),
    ("threshold-x", "'x' is no number"),
    ("threshold+r3", "with \\+r2 after it"),
    ("learned", "needs a filter"),
  ],
)
def test_other_words_are_refused(said, problem):
  with pytest.raises(ValueError, match=problem):
    words.policy(said, 1)


def test_a_batch_is_its_rows(model):
  prompts = ["copy : Ann Bob =", "copy : Cy =", "copy : Dan Bob Ann ="]
  options = {"block": W, "temperature": 0.8, "stopping": "whole"}
  together = DiffusionDecoder(model, "threshold-0.3", batch=3, **options)(prompts, 9)
  alone = DiffusionDecoder(model, "threshold-0.3", **options)
  for i, (prompt, row) in enumerate(zip(prompts, together, strict=True)):
    one = alone([prompt], 9, first=i)[0]
    assert (one.canvas, one.when, one.forwards) == (row.canvas, row.when, row.forwards)
    given = len(model.encode(prompt))
    assert row.canvas[:given] == model.encode(prompt) and row.when[:given] == [-1] * given
    assert row.filled == 9 and model.mask not in row.canvas


def test_holes_are_filled(model):
  ids = model.encode("copy : Ann Bob =")
  holed = [*ids[:2], model.mask, ids[3], model.mask]
  (filled,) = DiffusionDecoder(model, "confidence", block=W)([holed], 0)
  assert filled.filled == 2 and filled.forwards == 2 and len(filled.tokens) == 5
  assert [filled.tokens[i] for i in (0, 1, 3)] == [ids[i] for i in (0, 1, 3)]
  with pytest.raises(ValueError, match="1 or more for a prompt without holes"):
    DiffusionDecoder(model, block=W)([ids], 0)


@pytest.mark.parametrize(
  "options",
  [
    {"cache": "dual"}, {"guesses": 3}, {"credit": True}, {"guidance": 0.5}, {"delimiters": (3,)},
    {"stopping": "end_of_text_prediction"}, {"stopping": "sure_end"},
    {"policy": "learned", "trained": FILTER}, {"policy": "explore"},
  ],
  ids=str,
)  # fmt: skip
def test_every_part_decodes(model, options):
  (filled,) = DiffusionDecoder(model, block=W, **options)(["copy : Ann Bob ="], 8)
  assert model.mask not in filled.tokens and 1 <= filled.forwards <= 8
  assert filled.wasted >= 0 and len(filled.when) == len(filled.canvas)


def test_guesses_change_no_token(model):
  prompts = ["copy : Ann Bob =", "copy : Cy ="]
  plain = DiffusionDecoder(model, "confidence", block=W, batch=2)(prompts, 12)
  guessed = DiffusionDecoder(model, "confidence", block=W, batch=2, guesses=4)(prompts, 12)
  assert [x.canvas for x in plain] == [x.canvas for x in guessed]
  assert sum(x.forwards for x in guessed) <= sum(x.forwards for x in plain)


def test_a_sweep_has_a_setting_per_prompt(model):
  decoder = DiffusionDecoder(model, "threshold", block=W, batch=4)
  bars = jnp.array([0.0, 0.3, 0.6, 1.1], jnp.float32)
  swept = decoder(["copy : Ann Bob ="] * 4, 12, params=bars)
  assert swept[0].forwards == 2 and swept[3].forwards == 12  # two blocks, and a slot per pass


@pytest.mark.parametrize(
  ("options", "problem"),
  [
    ({"block": 0}, "block=0"), ({"cache": "double"}, "cache='double': accepted is none, dual"),
    ({"guesses": 2, "cache": "sliding"}, "passes depend on each other"),
    ({"policy": "learned", "trained": FILTER, "block": 8}, "the filter's 6"),
    ({"guidance": 1.0, "guesses": 2}, "0 with guesses above 1"),
  ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(model, options, problem):
  with pytest.raises(ValueError, match=problem):
    DiffusionDecoder(model, **({"block": W} | options))(["copy : Ann ="], 4)
