"""A denoiser under a causal guide, against a plain loop over a table, and by name."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints import hf
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, train_bpe
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Denoiser
from specjax.diffusion.policies import GUIDED, Guide
from specjax.models import transformer
from specjax.models.config import Config
from specjax.names.load import Model, load
from specjax.sampling import request_keys
from specjax.testing import random_table, table_model
from specjax.train.recipe.from_causal import as_denoiser
from tests.diffusion.published_loops import MASK, TABLE, table

B, L = 24, 36
GUIDE = table_model(MASK)  # it lacks the mask
LIKELY = random_table(5, MASK)
LOGITS = np.asarray(LIKELY["logits"], np.float64)
LIKELIEST = (1, 0.0, 0.0, 1)  # top, share, least, corrected
RULES = (
  LIKELIEST, (3, 0.0, 0.0, 1), (2, 0.5, 0.0, 1), (0, 0.0, 0.2, 1), (1, 0.0, 0.0, 0),
  (0, 0.0, 0.2, 0), (0, 0.0, 0.0, 0),
)  # fmt: skip
OF_ROWS = [RULES[b % len(RULES)] for b in range(B)]


def canvases(seed: int, holes: float = 0.0) -> Canvas:
  """Prompts of 0 to 6 tokens and texts of several lengths, in which some tokens may be given."""
  rng = np.random.default_rng(seed)
  begin, end = rng.integers(0, 7, (B, 1)), rng.integers(8, 21, (B, 1))
  column = np.arange(L)[None]
  masked = (column >= begin) & (column < end) & (rng.random((B, L)) >= holes)
  tokens = rng.integers(MASK, size=(B, L)).astype(np.int32)
  return Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(end[:, 0], jnp.int32))


def decode(canvas: Canvas, rules, size: int, denoiser: Denoiser = TABLE, params=None, guide=GUIDE):
  """The state in the end; `rules` has a row of parameters for every row of the canvas."""
  method = denoise.DenoiseMethod(
    denoiser, caches.none(denoiser, size), GUIDED["guided"](guide, MASK), blocks.fixed(size),
    stopping.whole(),
  )  # fmt: skip
  top, share, least, corrected = (jnp.asarray(x) for x in zip(*rules, strict=True))
  parameters = Guide(LIKELY, top, share.astype(jnp.float32), least.astype(jnp.float32), corrected)
  own = jax.tree.map(jnp.float32, table(0)) if params is None else params
  weights = denoise.Weights(own, parameters)
  request = denoise.DenoiseRequest(request_keys(0, np.arange(len(rules))), jnp.zeros(len(rules)))
  state = denoise.compiled_start(method, weights, canvas)
  state = jax.device_get(denoise.compiled_advance(method, weights, request, state, jnp.int32(99)))
  assert state.done.all()
  return state


def guess(tokens: np.ndarray, end: int) -> np.ndarray:
  """i[end]: what the denoiser of `table` says of every slot."""
  t = table(0)
  logits = (t["bias"][:end] + t["mix"][:end, :end] @ t["embed"][tokens[:end]]) @ t["head"]
  logits[:, MASK] = -np.inf
  return logits.argmax(-1)


def after(text, i: int) -> np.ndarray:
  """f64[U]: the guide's distribution of slot i > 0."""
  e = np.exp(LOGITS[text[i - 2] if i > 1 else MASK, text[i - 1]])
  return e / e.sum()


def by_hand(tokens, masked, end: int, rule, size: int):
  """(tokens, slots of every pass) of one row."""
  top, share, least, corrected = rule
  tokens, left, passes = np.where(masked, MASK, tokens), set(np.flatnonzero(masked[:end])), []
  while left:
    lo = min(left)
    while block := sorted(i for i in left if i < lo + size):
      said, done = guess(tokens, end), {}
      text = [said[i] if i in left else tokens[i] for i in range(end)]
      for i in block:
        p = after(text, i) if i else None
        best = i and np.argsort(-p, kind="stable").tolist()
        if i == 0 or (
          best.index(text[i]) < (top or MASK) and p[text[i]] >= max(share * p.max(), least)
        ):
          done[i] = text[i]
          continue
        if corrected:
          done[i] = best[0]
        break
      done = done or {block[0]: text[block[0]]}
      tokens[list(done)] = list(done.values())
      left -= set(done)
      passes.append(set(done))
  return tokens, passes


@pytest.mark.parametrize(("holes", "size"), [(0.0, 5), (0.3, 4)])
def test_every_rule_is_that_of_a_plain_loop(holes, size):
  """Rows of a batch have rules of their own."""
  canvas = canvases(1, holes)
  state = decode(canvas, OF_ROWS, size)
  tokens, masked, end = jax.device_get(canvas)[:3]
  for b, rule in enumerate(OF_ROWS):
    want, passes = by_hand(tokens[b], masked[b], end[b], rule, size)
    got = [set(np.flatnonzero(state.when[b] == k).tolist()) for k in range(state.passes[b])]
    assert got == passes, (b, rule)
    np.testing.assert_array_equal(state.canvas.tokens[b, : end[b]], want[: end[b]])
  several = [(np.unique(w[w >= 0], return_counts=True)[1] > 1).any() for w in state.when]
  assert np.mean(several) > 0.3 and state.passes.max() > 8


def greedy(tokens, masked, end: int) -> list[int]:
  text = tokens[:end].tolist()
  for i in np.flatnonzero(masked[:end]):
    text[i] = int(after(text, i).argmax())
  return text


@pytest.mark.parametrize("size", [3, 16])
def test_approving_the_likeliest_token_alone_writes_the_guides_greedy_text(size):
  canvas = canvases(2)
  canvas = canvas._replace(masked=canvas.masked.at[:, 0].set(False))
  rules, (tokens, masked, end) = [LIKELIEST] * B, jax.device_get(canvas)[:3]
  wrong = {k: jnp.float32(x + (k == "bias")) for k, x in table(1).items()}
  states = [decode(canvas, rules, size), decode(canvas, rules, size, params=wrong)]
  for b in range(B):
    for state in states:
      assert state.canvas.tokens[b, : end[b]].tolist() == greedy(tokens[b], masked[b], end[b])
  one, other = (state.passes for state in states)
  slots = (masked & (np.arange(L) < end[:, None])).sum(1)
  assert (one != other).any() and (one <= slots).all() and (one < slots).sum() > B // 2


def told(params, tokens, position, seen, earlier=None):
  return jax.nn.one_hot(jnp.take_along_axis(params, position, 1), MASK + 1), ()


def test_a_denoiser_that_says_what_the_guide_says_fills_a_block_in_a_pass():
  canvas, size = canvases(3), 4
  canvas = canvas._replace(masked=canvas.masked.at[:, 0].set(False))
  tokens, masked, end = jax.device_get(canvas)[:3]
  right = np.zeros((B, L), np.int32)
  for b in range(B):
    right[b, : end[b]] = greedy(tokens[b], masked[b], end[b])
  knows = Denoiser(MASK + 1, MASK, False, told, lambda params, states: states)
  slots = (masked & (np.arange(L) < end[:, None])).sum(1)
  for corrected in (0, 1):
    state = decode(canvas, [(1, 0.0, 0.0, corrected)] * B, size, knows, jnp.asarray(right))
    np.testing.assert_array_equal(state.passes, -(-slots // size))


@pytest.mark.slow
def test_a_row_does_not_see_its_neighbours_and_all_share_a_trace():
  once = chex.assert_max_traces(GUIDE.prefill, n=2)  # B rows, and one
  counted = dataclasses.replace(GUIDE, prefill=once)
  canvas = canvases(4, 0.2)
  together = decode(canvas, OF_ROWS, 5, guide=counted)
  for b in (0, 5, 13):
    alone = decode(
      jax.tree.map(lambda x, b=b: x[b : b + 1], canvas), [OF_ROWS[b]], 5, guide=counted
    )
    np.testing.assert_array_equal(alone.canvas.tokens[0], together.canvas.tokens[b])
    np.testing.assert_array_equal(alone.when[0], together.when[b])
  decode(canvases(6), OF_ROWS[::-1], 5, guide=counted)


WORDS = train_bpe(["Ann Bob Cy Dan Eve Flo Gil Hal = ."], 260)
WORDS.inner.add_special_tokens([END])
SMALL = Config(
  vocab_size=WORDS.vocab_size, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp_width=24,
  max_length=128,
)  # fmt: skip
PROMPTS = ["Ann Bob =", "Cy", "Dan Eve Flo Gil Hal Ann Ann ."]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """A causal model, and denoisers that began as it and have one token more, the mask."""
  path = tmp_path_factory.mktemp("guided")
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(functools.partial(transformer.init, SMALL), jax.random.key(0))
  params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)
  template = TEMPLATES["plain"]
  hf.save(path / "guide", SMALL, params, WORDS, template=template, dtype=jnp.float32)
  for name, block in (("denoiser", None), ("blocks", 4)):
    model = as_denoiser(load(str(path / "guide")))
    config = dataclasses.replace(model.config, block_length=block)
    hf.save(path / name, config, model.params, model.tokenizer, template=template,
            mask=model.mask, shift=True, dtype=jnp.float32)  # fmt: skip
  return path


def never_ending(path) -> Model:
  return dataclasses.replace(load(str(path)), stop=())


@pytest.mark.slow
@pytest.mark.full(but=["/guesses-2", "/dual"])
@pytest.mark.parametrize("decoration", ["", "/fixed-4", "/dual", "/guesses-2"])
def test_by_name_the_text_is_the_guides(home, decoration):
  wanted = [r.tokens for r in Decoder(never_ending(home / "guide"), batch=2)(PROMPTS, 10)]
  model = never_ending(home / "denoiser")
  decoder = DiffusionDecoder(model, f"guided[{home}/guide]{decoration}", batch=2)
  results = decoder(PROMPTS, 10)
  assert [r.tokens for r in results] == wanted and all(r.passes <= 10 for r in results)
  assert decoder.name == f"guided[{home}/guide]{decoration}"
  lossy = DiffusionDecoder(model, f"guided-64[{home}/guide]{decoration}", batch=2)(PROMPTS, 10)
  assert [r.tokens for r in lossy] != wanted
  assert sum(r.passes for r in lossy) < sum(r.passes for r in results)


@pytest.mark.slow
def test_a_model_that_is_causal_over_blocks_may_be_guided(home):
  (wanted,) = Decoder(never_ending(home / "guide"))(PROMPTS[:1], 10)
  model = never_ending(home / "blocks")
  (got,) = DiffusionDecoder(model, f"guided[{home}/guide]")(PROMPTS[:1], 10)
  assert got.tokens == wanted.tokens


@pytest.mark.slow
def test_the_mask_may_be_the_denoisers_alone(home):
  """As a drafter and under a reweighting, too."""
  guide, model = never_ending(home / "guide"), never_ending(home / "denoiser")
  assert model.config.vocab_size == guide.config.vocab_size + 1
  (plain,), (drafted,) = (
    Decoder(guide, name)(PROMPTS[:1], 10) for name in ("none", f"denoiser-4[{home}/denoiser]")
  )
  assert drafted.tokens == plain.tokens and drafted.passes < plain.passes
  (filled,) = DiffusionDecoder(model, f"random/reweighted[{home}/guide]")(PROMPTS[:1], 10)
  assert len(filled.tokens) == filled.passes == 10 and model.mask not in filled.tokens


SETTINGS = [  # (policy, settings, what is accepted)
  ("guided", {"temperature": 0.7}, r"`temperature` must be 0 with guided\[.*got 0\.7\."),
  ("random/reweighted", {"temperature": 0.7},
   r"`temperature` must be 0 or 1 with random/reweighted\[.*got 0\.7\."),
  ("random/reweighted", {"temperature": 1.0, "top_k": 3}, "which draws at 1, without filters"),
  ("threshold/reweighted", {}, "`policy` must be random, left_to_right or origin.*, got 'thr"),
  ("threshold+steps/reweighted", {},
   r"`policy` must be random, left_to_right or origin, alone or.*got 'threshold\+steps'\."),
  ("random+r2/reweighted", {}, "`policy` must be random, left_to_right or origin.*, got 'ran"),
  ("random/dual/reweighted", {},
   "`cache` needs a denoiser that is not reweighted.*got 'dual': a reweighted denoiser "
   "reads whole texts and is"),
  ("random/guidance-1/reweighted", {},
   "`guidance` needs a denoiser that is not reweighted.*got 'guidance': a reweighted "
   "denoiser reads whole texts an"),
  ("random/credit/reweighted", {},
   "`transform` needs a denoiser that is not reweighted.*got 'credit': a reweighted "
   "denoiser reads whole texts and "),
  ("random/tempered/reweighted", {},
   "`confidence` needs a denoiser that is not reweighted.*got 'tempered': a reweighted "
   "denoiser reads whole texts an"),
  ("random/sure_end/reweighted", {},
   "`stopping` needs a denoiser that is not reweighted.*got 'sure_end': a reweighted "
   "denoiser reads whole texts an"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "settings", "problem"), SETTINGS)
def test_what_a_second_model_would_leave_unread_is_refused(home, policy, settings, problem):
  with pytest.raises(ValueError, match=problem):
    DiffusionDecoder(never_ending(home / "denoiser"), f"{policy}[{home}/guide]", **settings)


def test_nothing_is_added_to_what_a_guide_approves(home):
  with pytest.raises(
    ValueError, match=(r"`policy` must have no addition with \+ after guided, which.*got 'guided\[")
  ):
    DiffusionDecoder(never_ending(home / "denoiser"), f"guided[{home}/guide]+r2")
  with pytest.raises(ValueError, match="sees both sides"):
    DiffusionDecoder(never_ending(home / "denoiser"), f"guided[{home}/denoiser]")
