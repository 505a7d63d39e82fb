"""The zoo's trained heads: no token changes, and what they carry is what the text says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.base import Context
from specjax.heads.prefix import TextMemory
from specjax.names import catalogue

QUESTIONS = (
  "Tom has 3 bags of 12 apples and eats 5. How many are left?",
  "A train goes 60 miles in an hour. How far does it go in 4 hours?",
  "Ann reads 20 pages a day for 2 weeks. How many pages is that?",
  "A pen costs $2. How much are 7 pens?",
)
HEADS = catalogue.heads("gsm8k-7m")
BUDGET = 40
LONG = 80  # more than nine rounds give


@pytest.fixture(scope="module")
def model():
  return specjax.load()


@pytest.fixture(scope="module")
def plain(model):
  """Temperature -> tokens of eight requests, plainly decoded one by one."""
  prompts = [model.chat(q) for q in QUESTIONS * 2]
  return prompts, {
    t: [r.tokens for r in specjax.Decoder(model, temperature=t)(prompts, BUDGET)]
    for t in (0.0, 0.8)
  }


@pytest.mark.full
@pytest.mark.parametrize("name", ["prompt_lookup", "medusa", "hidden_transfer", "eagle3"])
def test_four_devices_change_no_token(model, plain, mesh, name):
  prompts, tokens = plain
  with jax.set_mesh(mesh):
    decode = specjax.Decoder(model.on(mesh), name, temperature=0.8, batch=8)
    results = decode(prompts, BUDGET)
  assert [r.tokens for r in results] == tokens[0.8]


@pytest.mark.slow
@pytest.mark.full(but=["eagle3-0.8-8"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", HEADS)
def test_trained_heads_change_no_token(model, plain, name, temperature, batch):
  prompts, tokens = plain
  verifier = "target_only" if temperature else "greedy"
  decode = specjax.Decoder(model, name, verifier, temperature=temperature, batch=batch)
  results = decode(prompts, BUDGET)
  assert [r.tokens for r in results] == tokens[temperature]
  assert sum(r.emitted for r in results) > 1.5 * sum(r.passes for r in results)


@pytest.mark.full
@pytest.mark.parametrize("name", HEADS)
def test_what_is_carried_is_that_of_the_text_from_scratch(model, name):
  decode = specjax.Decoder(model, name, batch=4)
  drafter, weights = decode.method.drafter, decode.weights
  if drafter.evaluate is not None:
    pytest.skip("it carries guesses of the pass before, which no text has from scratch")
  request, state, _ = decode._start([model.chat(q) for q in QUESTIONS], [LONG, 9, LONG, 30], 0)
  capacity = state.context.tokens.shape[1]

  @jax.jit
  def from_scratch(tokens, length):
    _, features = model.target.prefill(
      weights.target, tokens, length, capacity, hidden_layers=drafter.hidden_layers
    )
    context = Context(jnp.pad(tokens, ((0, 0), (0, 1))), length)
    return drafter.init(weights.drafter, weights.target, context, features, capacity)

  for _ in range(3):
    state = decode.advance(request, state, 3)
    got, want = jax.device_get(
      (state.drafter, from_scratch(state.context.tokens, state.context.length))
    )
    if isinstance(got, TextMemory):
      rows = np.arange(got.cache.kv.k[0].shape[2]) < (np.asarray(state.context.length)[:, None] - 1)
      seen = rows[:, None, :, None]
      got, want = (
        (x.cache.length, x.last, [np.where(seen, a, 0) for a in jax.tree.leaves(x.cache.kv)])
        for x in (got, want)
      )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-3), got, want)
  assert state.done.any() and not state.done.all()
