"""The decoder of a model of any slots given any others: names, texts, what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, MASK, train_words
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.models.config import Config
from specjax.models.transformer import init
from specjax.names.load import Model

TOKENIZER = train_words(["copy : Ann Bob Cy Dan = ."])
TOKENIZER.inner.add_special_tokens([END, MASK])
CONFIG = Config(
  vocab_size=TOKENIZER.vocab_size, width=16, layers=2, heads=2, kv_heads=1, head_dim=16,
  mlp_width=24, max_length=64, causal=False, any_order=True,
)  # fmt: skip
HOLE = f"copy : Ann {MASK} Cy ="
PROMPTS, BUDGETS = ["copy : Ann Bob =", "copy : Cy =", HOLE], [12, 7, 9]


@pytest.fixture(scope="module")
def model() -> Model:
  params = jax.jit(functools.partial(init, CONFIG))(jax.random.key(0))
  params = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)
  return Model("tiny", CONFIG, params, TOKENIZER, (TOKENIZER.id(END),), (), TEMPLATES["plain"],
               TOKENIZER.id(MASK))  # fmt: skip


@functools.cache
def drafting(network):
  return jax.jit(network.draft)


def one_by_one(model, ids: list[int]) -> tuple[list[int], list[float]]:
  """(canvas, log-probabilities) of the likeliest token of each mask in turn, a pass for each."""
  canvas, nats = np.array([ids]), np.zeros(len(ids))
  empty = canvas == model.mask
  rank, draft = np.where(empty, np.cumsum(empty, 1) - 1, -1), drafting(model.any_order)
  for n, slot in enumerate(np.flatnonzero(empty)):
    said = draft(model.params, jnp.asarray(canvas), rank < n, rank)
    said = np.asarray(said)[0, slot]
    canvas[0, slot], nats[slot] = said.argmax(), said.max()
  return canvas[0].tolist(), nats.tolist()


@pytest.mark.slow
def test_guesses_change_no_token_and_save_passes(model):
  names = "assd-1/whole", "assd/whole"
  plain, quick = (DiffusionDecoder(model, name, batch=2) for name in names)
  assert (plain.name, quick.name) == names
  slow, fast = (d(PROMPTS, BUDGETS) for d in (plain, quick))
  saved = 0
  for prompt, budget, a, b in zip(PROMPTS, BUDGETS, slow, fast, strict=True):
    canvas, nats = one_by_one(model, [*model.encode(prompt), *[model.mask] * budget])
    assert a.filling.canvas == b.filling.canvas == canvas
    for r in (a, b):
      np.testing.assert_allclose(r.filling.log_probs, nats, atol=1e-4)
    slots = budget + (prompt == HOLE)
    assert a.passes == slots == a.filling.filled and b.passes <= slots
    saved += slots - b.passes
    rounds = np.array(b.filling.when)[-budget:]
    assert (np.diff(rounds) >= 0).all() and 2 * rounds.max() <= b.passes <= 2 * rounds.max() + 2
  assert saved > 0


@pytest.mark.slow
def test_a_draw_does_not_depend_on_its_neighbours(model):
  hot = {"temperature": 1.0, "seed": 3}
  together = DiffusionDecoder(model, "assd-3", batch=3, **hot)(PROMPTS, BUDGETS)
  alone = DiffusionDecoder(model, "assd-3", **hot)(PROMPTS, BUDGETS)
  assert [r.filling.canvas for r in together] == [r.filling.canvas for r in alone]
  assert len({tuple(r.tokens) for r in together}) == 3


def test_filters_count(model):
  greedy = DiffusionDecoder(model, "assd-3", batch=3)(PROMPTS, BUDGETS)
  one = DiffusionDecoder(model, "assd-3", batch=3, temperature=1.0, top_k=1)(PROMPTS, BUDGETS)
  assert [r.filling.canvas for r in one] == [r.filling.canvas for r in greedy]


def test_what_is_empty_streams_as_the_mask(model):
  decoder = DiffusionDecoder(model, "assd-3")
  *begun, last = [canvas for (canvas,) in decoder.stream([HOLE], 9)]
  assert all(model.mask in canvas for canvas in begun) and model.mask not in last
  assert [last] == [r.filling.canvas for r in decoder([HOLE], 9)]


@pytest.mark.parametrize(
  ("name", "more", "words"),
  [
    (
      "threshold",
      {},
      r"`policy` must be assd for model='tiny', which knows any slots given any others\.",
    ),
    ("assd/dual", {}, "`policy` must be assd alone.*got 'assd"),
    ("assd+r2", {}, "`policy` must be assd alone.*got 'assd.r2"),
    ("assd", {"blocks": 4}, "`policy` must be assd alone.*got 'assd"),
    ("assd-0", {}, r"`guesses` must be between 1 and 4096, got 0\."),
    ("assd-2-2", {}, "assd"),
  ],
)
def test_what_does_not_go_together_is_refused(model, name, more, words):
  with pytest.raises(ValueError, match=words):
    DiffusionDecoder(model, name, **more)


def test_a_denoiser_is_no_model_of_any_subset(model):
  usual = dataclasses.replace(model, config=dataclasses.replace(CONFIG, any_order=False))
  with pytest.raises(ValueError, match="--any-order"):
    DiffusionDecoder(usual, "assd")


@pytest.mark.parametrize("other", [{"causal": True}, {"block_length": 4}])
def test_a_network_is_of_one_kind(other):
  with pytest.raises(ValueError, match=r"`any_order` must be False with .*, got True"):
    dataclasses.replace(CONFIG, **other)
