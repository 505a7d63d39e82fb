"""The decoder of masked diffusion models: its parts by name, as pairs and as objects."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints import parts
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, MASK, train_words
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion import blocks, caches, stopping
from specjax.diffusion.base import Policy
from specjax.diffusion.credit import Credit, credit
from specjax.diffusion.draws import anew
from specjax.diffusion.policies import POLICIES, Filter, Leap, Redundancy, Threshold
from specjax.diffusion.policies.threshold import local_leap, threshold
from specjax.diffusion.suppression import end_suppressed
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.names.load import Model

TOKENIZER = train_words(["copy : Ann Bob Cy Dan = ."])
TOKENIZER.inner.add_special_tokens([END, MASK])
CONFIG = Config(
  vocab_size=TOKENIZER.vocab_size, width=16, layers=2, heads=2, kv_heads=1, head_dim=16,
  mlp_width=24, max_length=64, causal=False,
)  # fmt: skip
W = 6


@pytest.fixture(scope="module")
def model() -> Model:
  z = jnp.zeros((1, 2), jnp.int32)
  params = Transformer(CONFIG).init(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  params = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)
  return Model("tiny", CONFIG, params, TOKENIZER, (TOKENIZER.id(END),), (), TEMPLATES["plain"],
               TOKENIZER.id(MASK))  # fmt: skip


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> str:
  """The name of a policy whose filter passes what is likely."""
  path = tmp_path_factory.mktemp("filter")
  params = Filter(jnp.eye(W), jnp.zeros(W), jnp.eye(W), jnp.zeros(W), jnp.float32(0.55))
  parts.save(path, params, base="tiny")
  return f"learned[{path}]"


@pytest.mark.parametrize(
  ("name", "canonical", "numbers"),
  [
    ("threshold", "threshold", [0.9]),
    ("threshold-0.50", "threshold-0.5", [0.5]),
    ("confidence-3", "confidence-3", [3, 0.0]),
    ("entropy-1,heat=0.2", "entropy,heat=0.2", [1, 0.2]),
    ("local_leap-0.8,near=0.75", "local_leap-0.8", [0.8, 0.75, 4]),
    ("factor+r2", "factor+r2", [1.0, 0.8, 0.8, 0.8, 3]),
    ("factor-2+r2-0.8,run=0.5", "factor-2.0+r2,run=0.5", [2.0, 0.8, 0.5, 0.8, 3]),
    ("confidence+steps-5", "confidence+steps-5", [1, 0, 5]),
    ("random-2+steps-5+r2", "random-2+steps-5+r2", [2, 5, 0.8, 0.8, 0.8, 3]),
    ("entropy+timesteps-8,eps=0.01", "entropy+timesteps-8,eps=0.01", [1, 0, 8, 0.01]),
    ("origin-8", "origin-8", [8, 1e-3]),
    ("klass-0.6,moved=0.015,rounds=2", "klass-0.6,moved=0.015", [0.6, 0.015, 2]),
  ],
)
def test_a_name_sets_a_knob_per_row(model, name, canonical, numbers):
  decoder = DiffusionDecoder(model, name, batch=2)
  assert decoder.name == canonical
  leaves = jax.tree.leaves(decoder._denoising.weights(2).policy)
  assert all(x.shape == (2,) for x in leaves)
  np.testing.assert_allclose([x[0] for x in leaves], numbers, rtol=1e-6)


@pytest.mark.parametrize(
  ("name", "window"),
  [
    ("threshold", 32), ("explore", 64), ("klass", 64), ("klass/fixed-8", 16),
    ("klass/fixed-8,ahead=0", 8), ("klass+r2/fixed-8", 16), ("klass+timesteps/fixed-8", 16),
    ("threshold+steps/fixed-8", 8),
  ],
)  # fmt: skip
def test_policies_that_have_a_use_for_it_look_a_block_ahead(model, name, window):
  assert DiffusionDecoder(model, name).loop.window == window


def test_numbers_keep_their_kind(model):
  params = DiffusionDecoder(model, "local_leap")._denoising.weights(1).policy
  assert isinstance(params, Leap) and params.radius.dtype == jnp.int32
  params = DiffusionDecoder(model, "local_leap+r2")._denoising.weights(1).policy
  assert isinstance(params, Redundancy) and isinstance(params.base, Leap)


@pytest.mark.parametrize(
  ("name", "problem"),
  [
    (
      "thresold",
      r"`policy` must be a name that `specjax list` shows, got 'thresold' \(did you mean "
      r"threshold\?\)\.",
    ),
    ("threshold-0.9-0.8", "threshold takes least=0.9"),
    ("confidence-1.5", r"`slots` must be a whole number, got 1\.5\."),
    ("threshold-x", "`policy` must be NAME, NAME-NUMBER .*, got 'threshold-x'"),
    ("threshold:0.9", "`policy` must be NAME, NAME-NUMBER .*, got 'threshold:0.9'"),
    (
      "threshold+r3",
      r"`policy` must be one of r2, end_last, steps, timesteps, renoise, edit, settled, got 'r3'\.",
    ),
    (
      "learned",
      r"'tiny-filter' is not in .*: train one with `python -m specjax.train.filter`",
    ),
    ("threshold[here]", "threshold takes nothing in brackets"),
    ("threshold/dual/prefix", "policy/prefix: `cache` must be given once, and dual is one"),
    ("threshold/anew/kept", "policy/kept: `draws` must be given once, and anew is one"),
    ("threshold/anew-2", "draws='anew-2': anew takes no number"),
    ("threshold/tempered-2", "confidence='tempered-2': tempered takes no number"),
    ("threshold+end_last[no]", r"end_last\[no\]: tiny has no token 'no'"),
    ("threshold/end_suppressed-1", "end_suppressed takes no number"),
    (
      "threshold/medusa",
      "policy/medusa: after policy/ may follow fixed, adaptive, streaming, none, dual,",
    ),
  ],
)
def test_other_names_are_refused(model, name, problem):
  with pytest.raises(ValueError, match=problem):
    DiffusionDecoder(model, name)


@pytest.mark.slow
def test_a_batch_is_its_rows(model):
  prompts = ["copy : Ann Bob =", "copy : Cy =", "copy : Dan Bob Ann ="]
  options = {"blocks": W, "temperature": 0.8, "stopping": "whole"}
  together = DiffusionDecoder(model, "threshold-0.3", batch=3, **options)(prompts, 9)
  alone = DiffusionDecoder(model, "threshold-0.3", **options)
  for i, (prompt, row) in enumerate(zip(prompts, together, strict=True)):
    one = alone([prompt], 9, first=i)[0]
    canvas, when = row.filling.canvas, row.filling.when
    assert (one.filling.canvas, one.filling.when, one.passes) == (canvas, when, row.passes)
    given = len(model.encode(prompt))
    assert canvas[:given] == model.encode(prompt) and when[:given] == [-1] * given
    assert row.filling.filled == 9 and model.mask not in canvas
    assert len(row.log_probs) == len(row.tokens)


def test_every_prompt_may_have_a_budget_of_its_own(model):
  prompts = ["copy : Ann =", "copy : Ann ="]
  short, long = DiffusionDecoder(model, "confidence", blocks=W, stopping="whole", batch=2)(
    prompts, [3, 9]
  )
  assert (short.filling.filled, long.filling.filled) == (3, 9)


@pytest.mark.slow
def test_canvases_are_as_long_as_their_batch_needs(model):
  decoder = DiffusionDecoder(model, "confidence", blocks=W, stopping="whole")
  prompts, budgets = ["copy : Ann =", "copy : Ann Bob ="], [3, 40]
  both = decoder(prompts, budgets)
  assert decoder._warm == {(32 + W, True), (64 + W, True)}
  (short,) = DiffusionDecoder(model, "confidence", blocks=W, stopping="whole")(prompts[:1], 3)
  assert short.filling.canvas == both[0].filling.canvas and short.passes == 3


def test_filters_that_leave_one_token_are_greedy(model):
  plain = DiffusionDecoder(model, "confidence", blocks=W)(["copy : Ann Bob ="], 9)
  for filters in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.9999}):
    drawn = DiffusionDecoder(model, "confidence", blocks=W, temperature=1.0, **filters)
    assert drawn(["copy : Ann Bob ="], 9)[0].filling.canvas == plain[0].filling.canvas


def test_holes_are_filled(model):
  ids = model.encode("copy : Ann Bob =")
  holed = [*ids[:2], model.mask, ids[3], model.mask]
  (result,) = DiffusionDecoder(model, "confidence", blocks=W)([holed], 0)
  assert result.filling.filled == result.passes == 2 and len(result.tokens) == 5
  assert [result.tokens[i] for i in (0, 1, 3)] == [ids[i] for i in (0, 1, 3)]
  with pytest.raises(
    ValueError, match=(r"`max_new_tokens` must be at least 1 for a prompt without holes, got 0\.")
  ):
    DiffusionDecoder(model, blocks=W)([ids], 0)


def test_a_filter_decides_the_window(model, learned):
  decoder = DiffusionDecoder(model, learned)
  assert decoder.loop.window == W and decoder.name == learned
  assert float(decoder._denoising.weights(1).policy.least[0]) == pytest.approx(0.55)
  bar = DiffusionDecoder(model, learned.replace("learned", "learned-0.7"))
  assert float(bar._denoising.weights(1).policy.least[0]) == pytest.approx(0.7)
  with pytest.raises(ValueError, match=r"`blocks` must be the filter's window, 6, got 'fixed-8'\."):
    DiffusionDecoder(model, learned, blocks=8)


OBJECTS = {
  "policy": (threshold(), "threshold"),
  "pair": ((threshold(), Threshold(jnp.array([0.4]))), "threshold-0.4"),
  "cache": (caches.prefix, "prefix"),
  "blocks": (blocks.fixed(W), f"fixed-{W}"),
  "blocks as a number": (W, f"fixed-{W}"),
  "stopping": (stopping.whole(), "whole"),
  "transform": ((credit(), Credit(*(jnp.array([x]) for x in (0.9, 0.8, 0.2)))), "credit-0.9"),
  "draws": (anew(), "anew"),
  "confidence": ("tempered", "tempered"),
  "guidance": (0.5, "guidance-0.5"),
  "guesses": (3, "guesses-3"),
}


@pytest.mark.parametrize("part", OBJECTS)
def test_a_part_and_its_name_are_the_same(model, part):
  """The compiled method is one object, and so are its parameters."""
  thing, name = OBJECTS[part]
  if part in ("policy", "pair"):
    given, named = DiffusionDecoder(model, thing), DiffusionDecoder(model, name)
  else:
    given = DiffusionDecoder(model, "threshold", **{part.split()[0]: thing})
    named = DiffusionDecoder(model, f"threshold/{name}")
  assert given.loop == named.loop
  both = (d._denoising.weights(1)._replace(denoiser=()) for d in (given, named))
  jax.tree.map(np.testing.assert_array_equal, *both)


def test_ends_are_the_models_or_those_that_are_named(model):
  for text, ids in (("", model.stop), ("[Ann]", (TOKENIZER.id("Ann"),))):
    last = DiffusionDecoder(model, f"threshold+end_last{text}/dual", batch=2)
    assert last.name == f"threshold+end_last{text}/dual"
    assert last._denoising.weights(2).policy.tokens.tolist() == [list(ids)] * 2
    never = DiffusionDecoder(model, f"threshold/end_suppressed{text}", batch=2)
    assert never.name == f"threshold/end_suppressed{text}"
    assert never._denoising.weights(2).transforms[0].tokens.tolist() == [list(ids)] * 2
  endless = dataclasses.replace(model, stop=())
  with pytest.raises(
    ValueError, match=("end_suppressed: tiny has no end marker; name the text of a token, as in")
  ):
    DiffusionDecoder(endless, "threshold/end_suppressed")


def test_a_stop_id_of_its_own_ends_a_text(model):
  plain = DiffusionDecoder(model, "confidence", blocks=W)(["copy : Ann Bob ="], 12)[0]
  token = plain.tokens[len(plain.tokens) // 2]
  ended = DiffusionDecoder(model, "confidence", blocks=W, stop=[token])(["copy : Ann Bob ="], 12)[0]
  assert ended.tokens[-1] == token and token not in ended.tokens[:-1]
  assert ended.tokens == plain.tokens[: plain.tokens.index(token) + 1]
  with pytest.raises(ValueError, match=r"`stop\[0\]` must be between 0 and 10, got -1\."):
    DiffusionDecoder(model, stop=[-1])


def test_an_adaptive_block_ends_at_the_delimiter_it_is_told(model):
  decoder = DiffusionDecoder(model, f"threshold/adaptive-{W},least=0.2[.]")
  delimiters = decoder._denoising.weights(1).blocks
  assert delimiters.tokens.tolist() == [TOKENIZER.id(".")]
  assert float(delimiters.least[0]) == pytest.approx(0.2) and decoder.loop.window == W
  with pytest.raises(ValueError, match="has no token for the delimiter"):
    DiffusionDecoder(model, "threshold/adaptive")


@pytest.mark.slow
def test_guesses_change_no_token(model):
  prompts = ["copy : Ann Bob =", "copy : Cy ="]
  plain = DiffusionDecoder(model, "confidence", blocks=W, batch=2)(prompts, 12)
  guessed = DiffusionDecoder(model, "confidence/guesses-4", blocks=W, batch=2)(prompts, 12)
  assert [x.filling.canvas for x in plain] == [x.filling.canvas for x in guessed]
  assert sum(x.passes for x in guessed) < sum(x.passes for x in plain)


@pytest.mark.slow
def test_a_sweep_has_a_setting_per_prompt(model):
  decoder = DiffusionDecoder(model, "threshold", blocks=W, batch=4)
  bars = Threshold(jnp.array([0.0, 0.3, 0.6, 1.1], jnp.float32))
  swept = decoder(["copy : Ann Bob ="] * 4, 12, params=bars)
  assert swept[0].passes == 2 and swept[3].passes == 12  # two blocks, and a slot per pass


def test_canvases_are_streamed_as_they_fill(model):
  decoder = DiffusionDecoder(model, "confidence", blocks=W, stopping="whole")
  (whole,) = decoder(["copy : Ann ="], 5)
  seen = [canvas for (canvas,) in decoder.stream(["copy : Ann ="], 5, rounds=2)]
  assert [canvas.count(model.mask) for canvas in seen] == [3, 1, 0]
  assert seen[-1] == whole.filling.canvas
  with pytest.raises(ValueError, match=r"`rounds` must be between 1 and 2147483647, got 0\."):
    next(decoder.stream(["copy : Ann ="], 5, rounds=0))


@pytest.mark.slow
def test_several_rounds_of_a_pass_stream_too(model):
  decoder = DiffusionDecoder(model, "confidence/guesses-3", blocks=W, stopping="whole")
  (whole,) = decoder(["copy : Ann ="], 5)
  seen = [canvas for (canvas,) in decoder.stream(["copy : Ann ="], 5)]
  assert seen[-1] == whole.filling.canvas and len(seen) <= whole.passes < 5


def test_local_leap_as_an_object_has_its_published_knobs(model):
  params = DiffusionDecoder(model, local_leap())._denoising.weights(1).policy
  assert [float(x[0]) for x in params] == pytest.approx([0.9, 0.75, 4])


@pytest.mark.parametrize(
  ("options", "problem"),
  [
    ({"blocks": 0}, r"`size` must be between 1 and 2147483647 \(slots of a block\), got 0\."),
    (
      {"cache": "double"},
      r"`cache` must be one of none, dual, vicinity, prefix, free.*got 'double'\.",
    ),
    ({"cache": 3}, "cache='none-3': none takes no number"),
    (
      {"stopping": "whole/dual"},
      r"`stopping` must be one part, without \+ and /, got 'whole/dual'\.",
    ),
    ({"guidance": "much"}, r"`guidance` must be one of guidance, got 'much'\."),
    ({"guesses": 2, "cache": "sliding"}, "passes depend on each other"),
    (
      {"policy": "threshold/similar/guesses-4"},
      "`cache` must be none, dual, prefix, free, committed or.*got 'similar', whose passes "
      r"depend on each other\.",
    ),
    (
      {"policy": "threshold/vicinity/guesses-4"},
      "`cache` must be none, dual, prefix, free, committed or.*got 'vicinity', whose passes "
      r"depend on each other\.",
    ),
    ({"policy": "threshold-1.5"}, r"`least` must be between 0 and 1, got 1\.5\."),
    ({"policy": "hierarchy-0.9,low=1.1"}, r"`low` must be between 0 and 1, got 1\.1\."),
    ({"policy": "threshold-1e-45"}, r"`least` must be 0, or at least 1\.2e-38, got 1e-45\."),
    ({"policy": "confidence-0"}, r"`slots` must be between 1 and 2147483647, got 0\."),
    ({"policy": "threshold+steps-0"}, r"`steps` must be between 1 and 2147483647, got 0\."),
    ({"policy": "threshold/sure_end-1.5"}, r"`least` must be between 0 and 1, got 1\.5\."),
    (
      {"transform": "credit-0.7,decay=1.5"},
      r"`decay` must be between 0 and 1, got 1\.5\.",
    ),
    (
      {"blocks": "adaptive-8,least=0.5,size=0[.]"},
      r"`size` must be between 1 and 2147483647, got 0\.",
    ),
    ({"guidance": 1e9}, r"`guidance` must be between 0 and 1e\+06, got 1000000000\.0\."),
    ({"guidance": 1.0, "guesses": 2}, "1 with guidance"),
    ({"guidance": -1.0}, r"`guidance` must be between 0 and 1e\+06, got -1\.0\."),
    (
      {"policy": "threshold/dual", "cache": "free"},
      r"`cache` must be given in one of the two places, got 'free' in the other\.",
    ),
    (
      {"policy": None},
      r"`policy` must be a name, a Policy, or a pair of one and its weights, got None\.",
    ),
    ({"batch": 0}, r"`batch` must be between 1 and 65536, got 0\."),
    ({"top_p": 0}, r"`top_p` must be above 0 and at most 1 \(1 keeps all\), got 0\."),
    ({"draws": "often"}, r"`draws` must be one of kept, anew, got 'often'\."),
    ({"confidence": "cool"}, r"`confidence` must be one of tempered, got 'cool'\."),
    (
      {"transform": end_suppressed()},
      "`transform` must be its name, or a pair of it and its.*got 'end_suppressed', of "
      "whose parameters some have no def",
    ),
  ],
)
def test_what_does_not_go_together_is_refused(model, options, problem):
  with pytest.raises(ValueError, match=problem):
    DiffusionDecoder(model, **options)


def rightmost() -> Policy:
  """One open slot per round, from the right."""

  def select(params, memory, prediction):
    return jnp.zeros_like(prediction.open), prediction.position.astype(jnp.float32), memory

  return Policy("rightmost", lambda B, W, V: (), select)


def test_a_policy_of_ones_own_is_a_function_and_a_row(model, monkeypatch):
  monkeypatch.setitem(POLICIES, "rightmost", rightmost)
  for given in ("rightmost", rightmost()):
    (result,) = DiffusionDecoder(model, given)([[5, 6]], 6)
    assert [when for when in result.filling.when if when >= 0] == [5, 4, 3, 2, 1, 0]
    assert result.method == "rightmost"
