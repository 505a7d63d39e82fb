"""DiffusionGemma's network and its canvases, beside what transformers wrote of them."""

import functools
import json
import pathlib
import shutil
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax import DiffusionDecoder
from specjax.checkpoints import families, hf
from specjax.decoding import diffusion_decoder
from specjax.diffusion import blocks, denoise, draws, stopping
from specjax.diffusion.base import Canvas, Earlier
from specjax.diffusion.caches.encoded import encoded
from specjax.diffusion.cooling import Cooling, cooling
from specjax.diffusion.policies import ADDED, POLICIES
from specjax.diffusion.policies.best import EntropyBound
from specjax.diffusion.policies.renoise import Renoised, Settled
from specjax.models.denoiser import denoiser
from specjax.names.load import Model
from specjax.sampling import request_keys

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))
import make_canvas_fixture as fixture  # noqa: E402

B, W = len(fixture.PROMPTS), fixture.CANVAS
EXPECTED = np.load(fixture.OUT / "expected.npz")


def directory_of(directory: pathlib.Path) -> pathlib.Path:
  shutil.copy(fixture.OUT / "config.json", directory)
  raw = json.loads((fixture.OUT / "config.json").read_text())
  family = families.by_type(raw, "config.json")
  shapes: dict[str, tuple[int, ...]] = {}
  for parts in family.layout(family.from_json(raw)).values():
    shapes |= {part.name: part.shape for part in parts}
  save_file({k: fixture.weight(k, v) for k, v in shapes.items()}, directory / "model.safetensors")
  return directory


@functools.cache
def loaded() -> hf.Checkpoint:
  with tempfile.TemporaryDirectory() as directory:
    return hf.load(directory_of(pathlib.Path(directory)))


@jax.jit
def logits_of(params, prompts, canvases, probs):
  network = denoiser(loaded().config, None)
  (n, P), N = prompts.shape, canvases.shape[1]
  place = jnp.broadcast_to(jnp.arange(P + N), (n, P + N))
  seen = jnp.ones((n, P + N), bool)
  kv = network.encode(params, prompts, place[:, :P], seen[:, :P])
  soft = network.soften(params, probs, jnp.zeros(n, jnp.int32))
  states, _ = network.evaluate(
    params, canvases, place[:, P:], seen[:, P:], Earlier(kv, seen[:, :P]), soft
  )
  return network.head(params, states)


@pytest.mark.parametrize("name", ["first", "later"])
def test_logits_are_those_of_transformers(name):
  prompts, canvases = (jnp.asarray(x, jnp.int32) for x in fixture.texts())
  probs = jnp.zeros((2, W, fixture.VOCAB))  # of a first pass nothing was said before
  if name == "later":
    probs = jax.nn.softmax(jnp.asarray(fixture.said(4)))
  got = logits_of(loaded().params, prompts, canvases, probs)
  np.testing.assert_allclose(got, EXPECTED[name], atol=1e-4)


def run(monkeypatch, fault=""):
  """(the states after every round, the stop ids): all rows together, with the fixture's draws."""
  config, params = loaded().config, loaded().params
  first, gumbel = (jnp.asarray(x) for x in fixture.noise())
  row = jnp.arange(B)[:, None]

  def noise(_, key, round_, position):
    return first[row, round_[:, None] + 1 + int(fault == "noise"), position]

  def draw(_, key, round_, position, log_probs):
    best = jnp.argmax(log_probs + gumbel[row, round_[:, None], position], -1)
    return best.astype(jnp.int32)

  monkeypatch.setattr(denoise, "noise", noise)
  monkeypatch.setattr(denoise, "draw", draw)
  network = denoiser(config, None)
  policy = ADDED["settled"](ADDED["renoise"](POLICIES["entropy_bound"]()))
  method = denoise.DenoiseMethod(
    network, encoded(network, W), policy, blocks.fixed(W), stopping.after_end(),
    (cooling(),), draws.anew()._replace(name=f"given {fault}"),  # a trace of its own
  )  # fmt: skip
  rows = functools.partial(jnp.full, B)
  steps = rows(fixture.STEPS, jnp.int32)
  base = Renoised(EntropyBound(rows(fixture.BOUND)), steps)
  first_temperature = 0.8 + 0.04 * (fault == "temperature")
  weights = denoise.Weights(
    params, Settled(base, rows(1, jnp.int32), rows(fixture.SURE)),
    stopping=jnp.array([fixture.END, -1], jnp.int32),
    transforms=(Cooling(rows(first_temperature), rows(0.4), steps),),
  )  # fmt: skip
  length = np.array([len(p) for p in fixture.PROMPTS])
  tokens = np.array(first[:, 0])
  for b, prompt in enumerate(fixture.PROMPTS):
    tokens[b, : len(prompt)] = prompt
  end = length + 3 * W
  column = np.arange(fixture.LENGTH)
  masked = (column >= length[:, None]) & (column < end[:, None])
  canvas = Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(end, jnp.int32))
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), rows(1.0))
  state = jax.jit(denoise.start, static_argnums=0)(method, weights, canvas)
  advance = jax.jit(denoise.advance, static_argnums=0)
  states, before = [jax.device_get(state)], state.canvas.soft
  while not states[-1].done.all():
    state = advance(method, weights, request, state, jnp.int32(1))
    if fault == "soft":  # it reads what it said in the pass before the last
      state, before = state._replace(canvas=state.canvas._replace(soft=before)), state.canvas.soft
    states.append(jax.device_get(state))
  return states


def differ(states) -> int:
  """How many rows have not transformers' canvas before every pass, and its text after the last."""
  wrong = 0
  for b, prompt in enumerate(fixture.PROMPTS):
    want, passes = EXPECTED[f"canvases_{b}"], int(states[-1].passes[b])
    text = EXPECTED[f"text_{b}"]
    text = text[text >= 0]  # behind the end it is padded
    same = passes == len(want)
    for k in range(min(passes, len(want))):
      at = states[k].lo[b]
      same &= (states[k].canvas.tokens[b, at : at + W] == want[k]).all()
    last = states[-1].canvas
    said = last.tokens[b, len(prompt) : last.end[b]]
    same &= len(said) == len(text) and (said == text).all()
    same &= abs(len(text) / passes - EXPECTED[f"rate_{b}"]) < 1e-6
    wrong += not same
  return wrong


@pytest.mark.slow
def test_canvases_are_those_of_transformers_step_by_step(monkeypatch):
  states = run(monkeypatch)
  assert differ(states) == 0
  assert len(set(states[-1].passes.tolist())) > 2  # rows stop alone


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["noise", "temperature", "soft"])
def test_a_fault_shows(monkeypatch, fault):
  assert differ(run(monkeypatch, fault)) > 0


def test_the_way_back(tmp_path):
  """A saved checkpoint is that which was read, under the names of transformers."""
  found = loaded()
  hf.save(tmp_path, found.config, found.params, stop=(fixture.END,), dtype=jnp.float32)
  again = hf.load(tmp_path)
  assert again.config == found.config and again.mask is None and again.stop == (fixture.END,)
  jax.tree.map(np.testing.assert_array_equal, again.params, found.params)
  names = load_file(tmp_path / "model.safetensors").keys()
  assert {name.split(".")[1] for name in names} == {"encoder", "decoder"}
  raw = json.loads((tmp_path / "config.json").read_text())
  assert raw["model_type"] == "diffusion_gemma" and raw["canvas_length"] == W


NAME = "entropy_bound-0.5+renoise-10+settled,most=1.0/cooling,steps=10/anew"


@pytest.mark.slow
def test_a_batch_is_decoded_by_name_as_each_prompt_alone(monkeypatch):
  found = loaded()
  model = Model(
    "tiny", found.config, found.params, None, (fixture.END,), (), None, dtype=jnp.float32
  )
  together = DiffusionDecoder(model, NAME, batch=3, temperature=1.0)
  assert together.name == NAME
  prompts = fixture.PROMPTS[:3]
  results = together(prompts, [24, 8, 16])
  monkeypatch.setattr(diffusion_decoder, "FIRST", 8)  # a canvas that grows changes nothing
  alone = DiffusionDecoder(model, NAME, batch=1, temperature=1.0)
  for b, result in enumerate(results):
    (same,) = alone(prompts[b : b + 1], [[24, 8, 16][b]], first=b)
    assert same.tokens == result.tokens and same.passes == result.passes
  with pytest.raises(ValueError, match="`cache` must be left out for 'tiny', whose enc"):
    DiffusionDecoder(model, NAME + "/dual")
  with pytest.raises(ValueError, match="`guidance` needs a mask token"):
    DiffusionDecoder(model, NAME + "/guidance-1.5")
  with pytest.raises(ValueError, match="`guesses` must be 1 for a denoiser that reads what its"):
    DiffusionDecoder(model, NAME + "/guesses-2")
