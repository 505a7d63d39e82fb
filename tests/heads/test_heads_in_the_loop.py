"""Every head through the compiled loop: the tokens of plain decoding, whatever its weights say.

Eight rows of unlike length, budget and sampling are decoded together and one of them alone.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_every_head import MODEL, TARGET, TREES, V, head, target_params

from specjax import drafters, speculate
from specjax.decoding.method import method as pair
from specjax.heads import HEADS, drafting
from specjax.models import transformer
from specjax.models.transformer import target
from specjax.sampling import Noise, Settings, request_keys
from specjax.verifiers import target_only

T, BUDGET, B = 12, 20, 8
PROMPTS = [np.random.default_rng(b).integers(0, 6, 1 + (5 * b) % T).tolist() for b in range(B)]
TEMPERATURE = [0.0, 0.8, 0.0, 1.2, 0.0, 0.8, 0.5, 0.0]
TOP_P = [1.0, 1.0, 1.0, 0.9, 1.0, 0.8, 1.0, 1.0]
BUDGETS = [BUDGET, BUDGET, 7, BUDGET, 1, 13, BUDGET, BUDGET]


def inputs(rows: list[int]):
  tokens = np.zeros((len(rows), T), np.int32)
  for i, b in enumerate(rows):
    tokens[i, : len(PROMPTS[b])] = PROMPTS[b]
  length = np.array([len(PROMPTS[b]) for b in rows], np.int32)
  f = lambda x: jnp.asarray([x[b] for b in rows], jnp.float32)  # noqa: E731
  settings = Settings(f(TEMPERATURE), jnp.zeros(len(rows), jnp.int32), f(TOP_P), f([0.0] * B))
  limit = length + np.array([BUDGETS[b] for b in rows], np.int32)
  request = speculate.DecodeRequest(
    settings, request_keys(3, rows), jnp.asarray(limit), jnp.asarray([5, -1], jnp.int32)
  )
  return jnp.asarray(tokens), jnp.asarray(length), request


@functools.cache
def drafter_of(name: str, tree: str, reduced: bool = False):
  return drafting.drafter(head(name, reduced)[0], TREES[tree])


@functools.cache
def method_of(drafter):
  return pair(TARGET, drafter, target_only())


def decode(drafter, params, rows: list[int]):
  """(new tokens of each row, passes of each row)."""
  method, weights = method_of(drafter), speculate.Weights(target_params(), params)
  tokens, length, request = inputs(rows)
  capacity = speculate.capacity_for(T, BUDGET, drafter.depth)
  state = speculate.compiled_start(method, weights, tokens, length, request, capacity)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(1000))
  text, end = np.asarray(state.context.tokens), np.asarray(state.context.length)
  new = [text[i, len(PROMPTS[b]) : end[i]].tolist() for i, b in enumerate(rows)]
  return new, np.asarray(state.stats.passes)


@functools.cache
def plain():
  return decode(drafters.none(), (), list(range(B)))[0]


@pytest.mark.slow
@pytest.mark.full(but=["eagle"])
@pytest.mark.parametrize("name", HEADS)
def test_tokens_are_those_of_plain_decoding_together_and_alone(name):
  drafter, params = drafter_of(name, "static"), head(name)[1]
  assert decode(drafter, params, list(range(B)))[0] == plain()
  assert decode(drafter, params, [3])[0] == [plain()[3]]
  assert len({len(x) for x in plain()}) > 3  # rows end at different times, some at a stop token


@pytest.mark.slow
@pytest.mark.full(but=["eagle3"])
@pytest.mark.parametrize("name", HEADS)
def test_dynamic_trees_give_the_same_tokens(name):
  drafter, params = drafter_of(name, "dynamic", reduced=True), head(name, reduced=True)[1]
  assert decode(drafter, params, list(range(B)))[0] == plain()


@pytest.mark.parametrize("name", HEADS)
def test_state_is_stable_and_a_round_keeps_its_types(name):
  method, params = method_of(drafter_of(name, "static")), head(name)[1]
  weights = speculate.Weights(target_params(), params)
  tokens, length, request = inputs(list(range(B)))
  start = functools.partial(speculate.start, method, capacity=64)
  state = jax.eval_shape(start, weights, tokens, length, request)
  round_ = functools.partial(speculate.decode_round, method, source=Noise)

  def signature(tree):
    leaves = [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]
    return jax.tree.structure(tree), leaves

  assert signature(jax.eval_shape(round_, weights, request, state)) == signature(state)
  assert method.drafter.nodes == len(TREES["static"]) + 1 and MODEL.vocab_size == V


@pytest.mark.slow
@pytest.mark.full(but=["ppd", "masked_slots"])
@pytest.mark.parametrize("name", HEADS)
def test_nan_in_a_head_changes_no_token(name):
  """A head whose weights went bad drafts garbage, and garbage is only slow."""
  params = head(name)[1]
  bad = params | {"params": jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params["params"])}
  assert decode(drafter_of(name, "static"), bad, list(range(B)))[0] == plain()


@pytest.mark.slow
def test_many_prompts_are_one_trace():
  """A head is compiled once per shape, not per prompt."""
  params, drafter, traces = head("medusa")[1], drafter_of("medusa", "static"), []

  def propose(*arguments, **named):
    traces.append(1)
    return drafter.propose(*arguments, **named)

  counted = drafter._replace(propose=propose)
  for b in range(B):
    decode(counted, params, [b])
  assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.full(but=["eagle", "hidden_transfer"])
@pytest.mark.parametrize("name", HEADS)
def test_the_loop_does_not_copy_a_cache(name):
  """Neither the target's nor the head's own: temporary memory stays below one array of either."""
  model = dataclasses.replace(MODEL, head_dim=64)  # wide, so that scores are small beside the cache
  build, config = HEADS[name]
  made = build(target(model), config())
  drafter = drafting.drafter(made, ((0,), (1,), (0, 0)))
  key = jax.eval_shape(lambda: jax.random.key(0))
  network = jax.eval_shape(functools.partial(transformer.init, model), key)
  weights = speculate.Weights(network, jax.eval_shape(made.init, key, network))
  method = pair(target(model), drafter, target_only())
  tokens, length, request = inputs([0, 1])
  start = functools.partial(speculate.start, method, capacity=8192)
  state = jax.eval_shape(start, weights, tokens, length, request)
  advance = speculate.compiled_advance.lower(method, weights, request, state, jnp.int32(1))
  array = state.cache.kv.k[0].size * 4
  assert advance.compile().memory_analysis().temp_size_in_bytes < array
