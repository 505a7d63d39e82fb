"""A masked diffusion model as the drafter of a chain."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, speculate
from specjax.base import Context
from specjax.decoding.method import method as pair
from specjax.diffusion.base import Denoiser
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.denoiser import denoiser as network
from specjax.sampling import Settings, request_keys
from specjax.testing import random_table, table_model
from specjax.verifiers import target_only

V, MASK, DEPTH, T, BUDGET = 8, 7, 3, 6, 12
TARGET = table_model(V)
# The target never says the mask.
TABLE = {"logits": random_table(0, V)["logits"].at[..., MASK].set(-20.0)}
SMALL = Config(
  vocab_size=V, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=8, causal=False
)
LENGTH = np.array([6, 1, 3], np.int32)
TOKENS = np.random.default_rng(1).integers(MASK, size=(len(LENGTH), T)).astype(np.int32)


@functools.cache
def small_params():
  rng = np.random.default_rng(0)
  init = functools.partial(transformer.init, SMALL)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)


def decode(drafter, params, rows, temperature=0.0, budget=BUDGET):
  """(new tokens of each row, Stats)."""
  method = pair(TARGET, drafter, target_only())
  weights, B = speculate.Weights(TABLE, params), len(rows)
  settings = Settings(jnp.full(B, temperature), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B))
  request = speculate.DecodeRequest(
    settings, request_keys(0, rows), jnp.asarray(LENGTH[rows] + budget), jnp.array([-1])
  )
  capacity = speculate.capacity_for(T, BUDGET, DEPTH)
  state = speculate.compiled_start(method, weights, TOKENS[rows], LENGTH[rows], request, capacity)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(1000))
  text, length = np.asarray(state.context.tokens), np.asarray(state.context.length)
  new = [text[i, n : length[i]].tolist() for i, n in enumerate(LENGTH[rows])]
  return new, jax.device_get(state.stats)


@pytest.mark.slow
@pytest.mark.full(but=["None-rows0-0.8", "4-rows0-0.0"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rows", [[0, 1, 2], [1]])
@pytest.mark.parametrize("block", [None, 4])
def test_the_text_is_the_targets(block, rows, temperature):
  model = network(dataclasses.replace(SMALL, block_length=block), MASK)
  drafter = drafters.denoiser(model, TARGET, DEPTH + 1)
  got, stats = decode(drafter, small_params(), rows, temperature)
  wanted, _ = decode(drafters.none(), (), rows, temperature)
  assert got == wanted
  assert (stats.accepted[:, 0] > 0).all()  # it is wrong at times


def table_denoiser(depth: int) -> Denoiser:
  """Says what the table, its params, says greedily; so it reads the last two tokens of the text."""

  def evaluate(params, tokens, position, seen, earlier):
    row, first = jnp.arange(len(tokens)), jnp.argmax((tokens == MASK) & seen, 1)
    before = jnp.where(first > 1, tokens[row, first - 2], V)
    own, states = tokens[row, first - 1], jnp.zeros((*tokens.shape, V))
    for step in range(depth):
      before, own = own, jnp.argmax(params["logits"][before, own], -1).astype(jnp.int32)
      states = states.at[row, first + step].set(jax.nn.one_hot(own, V))
    return states, ()

  return Denoiser(V, MASK, False, evaluate, lambda params, states: states)


@pytest.mark.full(but=["5"])
@pytest.mark.parametrize("context", [None, DEPTH + 2])
def test_a_denoiser_that_is_right_is_followed_to_the_end(context):
  drafter = drafters.denoiser(table_denoiser(DEPTH), TARGET, DEPTH + 1, context)
  got, stats = decode(drafter, TABLE, [0, 1, 2])
  assert got == decode(drafters.none(), (), [0, 1, 2])[0]
  np.testing.assert_array_equal(stats.passes, BUDGET // (DEPTH + 1))
  np.testing.assert_array_equal(stats.accepted[:, DEPTH], stats.passes)


def test_a_canvas_that_is_too_short_misses_what_it_needs():
  """One token of the text is not enough to continue a table of two."""
  drafter = drafters.denoiser(table_denoiser(DEPTH), TARGET, DEPTH + 1, DEPTH + 1)
  got, stats = decode(drafter, TABLE, [0, 1, 2])
  assert got == decode(drafters.none(), (), [0, 1, 2])[0]
  assert stats.passes.sum() > 3 * BUDGET // (DEPTH + 1)


@pytest.mark.full(but=["6-True"])
@pytest.mark.parametrize("context, shift", [(None, False), (6, True)])
def test_it_reads_the_text_and_its_masks_and_nothing_else(context, shift):
  model, params, S = network(SMALL, MASK, shift), small_params(), 20
  drafter = drafters.denoiser(model, TARGET, DEPTH + 1, context)
  text = np.random.default_rng(2).integers(MASK, size=(3, S)).astype(np.int32)
  length = np.array([1, 6, 12], np.int32)
  draft, _ = jax.jit(lambda *x: drafter.propose(params, (), (), Context(*x), None, None))(
    text, length
  )

  @jax.jit
  def distributions(canvas, position):
    states, _ = model.evaluate(params, canvas, position, jnp.ones(canvas.shape, bool))
    return model.head(params, states)

  for b, n in enumerate(length):
    # Where the text stands matters to nobody: here its slots keep their own numbers.
    canvas = np.concatenate([text[b, :n], np.full(DEPTH, MASK, np.int32)])
    position = np.arange(len(canvas), dtype=np.int32)
    canvas, position = (x[-(context or S) :][None] for x in (canvas, position))
    end = canvas.shape[1] - int(shift)
    log_probs = np.asarray(distributions(canvas, position))[0, end - DEPTH : end, :MASK]
    np.testing.assert_array_equal(draft.tokens[b], [text[b, n - 1], *log_probs.argmax(-1)])


# Of three rows: texts that stay, that grow by a round's tokens, and by more, as prompts do.
LENGTHS = [[1, 6, 12], [1, 7, 16], [3, 10, 16], [30, 11, 20], [31, 15, 41], [31, 19, 42]]


@pytest.mark.full(but=["True"])
@pytest.mark.parametrize("shift", [False, True])
def test_of_blocks_only_what_is_new_is_read(shift):
  block, S, sizes, params = 4, 48, list[int](), small_params()
  model = network(dataclasses.replace(SMALL, block_length=block), MASK, shift)
  text = np.random.default_rng(2).integers(MASK, size=(3, S)).astype(np.int32)

  def evaluate(params, tokens, *others):
    sizes.append(tokens.shape[1])
    return model.evaluate(params, tokens, *others)

  drafter = drafters.denoiser(model._replace(evaluate=evaluate), TARGET, DEPTH + 1)
  state = drafter.init(params, (), Context(text, np.ones(3, np.int32)), None, S)
  propose = jax.jit(lambda *x: drafter.propose(params, (), x[0], Context(*x[1:]), None, None))
  position = jnp.broadcast_to(jnp.arange(S), (3, S))

  @jax.jit
  def distributions(length):
    canvas = jnp.where(position < length[:, None], text, MASK)
    states, _ = model.evaluate(params, canvas, position, position < length[:, None] + DEPTH)
    return model.head(params, states)[..., :MASK]

  for length in np.array(LENGTHS, np.int32):
    draft, state = propose(state, text, length)
    best = np.asarray(distributions(length)).argmax(-1)
    for b, n in enumerate(length):
      said = best[b, n - shift : n - shift + DEPTH]
      np.testing.assert_array_equal(draft.tokens[b], [text[b, n - 1], *said])
    np.testing.assert_array_equal(state.length, (length - shift) // block * block)
  assert set(sizes) == {1, block + shift + 2 * DEPTH}  # 1 is how the cache's shapes are found


def test_other_lengths_and_budgets_are_one_trace():
  exact = table_denoiser(DEPTH)
  counted = chex.assert_max_traces(exact.evaluate, n=1)
  drafter = drafters.denoiser(exact._replace(evaluate=counted), TARGET, DEPTH + 1)
  for budget, rows in ((BUDGET, [0]), (5, [1]), (1, [2])):
    decode(drafter, TABLE, rows, budget=budget)


def test_what_does_not_fit_is_refused():
  model = network(SMALL, MASK)
  with pytest.raises(
    ValueError, match=(r"the denoiser must have the target's vocabulary of 9, got one of 8\.")
  ):
    drafters.denoiser(model, table_model(V + 1), DEPTH + 1)
  with pytest.raises(
    ValueError, match=(r"`nodes` must be at least 2, so that a denoiser drafts a.*got 1 and None\.")
  ):
    drafters.denoiser(model, TARGET, 1)
  with pytest.raises(ValueError, match="`canvas` have more slots than that, got 4 and 3"):
    drafters.denoiser(model, TARGET, DEPTH + 1, DEPTH)
