"""The decoder of a model that is causal over blocks: its defaults, its names, what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, MASK, train_words
from specjax.decoding import diffusion_decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.drafters.models.denoiser import denoiser as drafter
from specjax.models.config import Config
from specjax.models.transformer import init, target
from specjax.names.load import Model

TOKENIZER = train_words(["copy : Ann Bob Cy Dan = ."])
TOKENIZER.inner.add_special_tokens([END, MASK])
CONFIG = Config(
  vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=1, head_dim=16,
  mlp_width=24, max_length=64, causal=False, block_length=6,
)  # fmt: skip
PROMPTS = ["copy : Ann Bob =", "copy : Cy ="]


@pytest.fixture(scope="module")
def model() -> Model:
  params = jax.jit(functools.partial(init, CONFIG))(jax.random.key(0))
  params = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)
  return Model("tiny", CONFIG, params, TOKENIZER, (TOKENIZER.id(END),), (), TEMPLATES["plain"],
               TOKENIZER.id(MASK))  # fmt: skip


@pytest.mark.slow
def test_its_blocks_and_its_cache_are_the_defaults(model):
  decoder = DiffusionDecoder(model, "threshold-0.3", stopping="whole", batch=2)
  assert (decoder.name, decoder.loop.method.cache.name) == ("threshold-0.3/whole", "committed")
  assert decoder.loop.method.blocks.window == CONFIG.block_length
  plain = DiffusionDecoder(model, "threshold-0.3/none", stopping="whole", batch=2)
  assert plain.name == "threshold-0.3/none/whole"
  for one, other in zip(decoder(PROMPTS, [20, 13]), plain(PROMPTS, [20, 13]), strict=True):
    assert one.filling.canvas == other.filling.canvas and one.filling.when == other.filling.when
    assert 1 < one.passes == other.passes


@pytest.mark.slow
@pytest.mark.parametrize(
  ("stop", "guesses"), [("whole", None), ("after_end", None), ("after_end", 3)]
)
def test_a_canvas_that_grows_changes_nothing(model, monkeypatch, stop, guesses):
  """Neither texts nor rounds, though most of what is asked for is not there at first."""
  model = dataclasses.replace(model, config=dataclasses.replace(CONFIG, max_length=256))
  found = {}
  for first in (12, 10**6):
    monkeypatch.setattr(diffusion_decoder, "FIRST", first)
    decoder = DiffusionDecoder(model, "threshold-0.3", stopping=stop, guesses=guesses, batch=3)
    results = decoder([*PROMPTS, "copy : <|mask|> Ann ="], [150, 3, 40])
    found[first] = [(r.tokens, r.passes, r.filling.when) for r in results]
    assert (len(decoder._warm) > 2) == (first == 12)
  assert found[12] == found[10**6]


def test_a_policy_that_looks_ahead_does_not(model):
  decoder = DiffusionDecoder(model, "explore")
  assert (decoder.loop.method.blocks.window, decoder.loop.method.blocks.length) == (6, 6)


@pytest.mark.parametrize(
  ("name", "problem"),
  [
    ("threshold/dual", r"`cache` must be none or committed for a denoiser that is.*got 'dual'\."),
    (
      "threshold/fixed-4",
      "`blocks` must be fixed, of a length that divides 6, with no.*got 'fixed' with a "
      r"window of 4\.",
    ),
    (
      "threshold/fixed-3,ahead=3",
      "`blocks` must be fixed, of a length that divides 6, with no.*got 'fixed' with a "
      r"window of 6\.",
    ),
  ],
)
def test_what_does_not_go_with_its_blocks_is_refused(model, name, problem):
  with pytest.raises(ValueError, match=problem):
    DiffusionDecoder(model, name)


def test_it_drafts_for_a_target_without_a_canvas_of_its_own(model):
  causal = target(dataclasses.replace(CONFIG, causal=True, block_length=None))
  assert drafter(model.denoiser, causal).depth == 8
  with pytest.raises(
    ValueError, match=(r"`canvas` must be None for a denoiser with blocks of 6.*got 20\.")
  ):
    drafter(model.denoiser, causal, canvas=20)


@pytest.mark.full
@pytest.mark.parametrize("shift", [False, True])
def test_a_long_prefix_is_read_in_blocks(shift):
  """The attention over more than 512 rows is another program."""
  config = dataclasses.replace(
    CONFIG, heads=2, kv_heads=2, layers=2, block_length=8, max_length=999
  )
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(functools.partial(init, config), jax.random.key(0))
  params = jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 4 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip
  mask = TOKENIZER.id(MASK)
  model = Model("long", config, params, TOKENIZER, (), (), None, mask, shift)
  prompts = [rng.integers(3, config.vocab_size, n).tolist() for n in (603, 517)]
  got, wanted = (
    DiffusionDecoder(model, f"threshold-0.3/{cache}", batch=2)(prompts, 24)
    for cache in ("committed", "none")
  )
  for one, other in zip(got, wanted, strict=True):
    assert one.tokens == other.tokens and one.passes == other.passes
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=5e-5)
