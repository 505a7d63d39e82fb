"""A head whose weights are spread over devices says what it says on one, and exchanges little."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_sharding import CONFIG, random_params, two_by

from specjax import speculate
from specjax.decoding.method import method as pair
from specjax.heads import HEADS, drafting
from specjax.models import sharding
from specjax.models.transformer import target
from specjax.sampling import Settings, request_keys
from specjax.trees import Dynamic
from specjax.verifiers import target_only

TARGET = target(CONFIG)
PROMPT = jnp.array([[1, 2, 3, 1, 2], [7, 8, 7, 0, 0]], jnp.int32), jnp.array([5, 3], jnp.int32)
LENGTH = 20


def loop(name, params, own=None):
  """(method, weights, request, state) of a head with random weights, which stay as they are."""
  make, config = HEADS[name]
  head = make(TARGET, config())
  if own is None:
    own = head.init(jax.random.key(2), params)
  guess = drafting.drafter(head, Dynamic(8, 3, 2))
  method = pair(TARGET, guess, target_only())
  one, none = jnp.ones(2), jnp.zeros(2, jnp.int32)
  request = speculate.DecodeRequest(
    Settings(one, none, one, 0 * one), request_keys(0, jnp.arange(2)), none + LENGTH, none[:1] - 1
  )
  weights = speculate.Weights(params, own)
  state = speculate.compiled_start(method, weights, *PROMPT, request, LENGTH + 5)
  return method, weights, request, state


def text(*parts):
  return speculate.compiled_advance(*parts, jnp.int32(40)).context.tokens[:, :LENGTH]


@pytest.mark.slow
@pytest.mark.full(but=["eagle3"])
@pytest.mark.parametrize("name", HEADS)
def test_tokens_do_not_depend_on_the_mesh(name):
  params, devices = random_params(), two_by(2)
  parts = loop(name, params)
  own, alone = parts[1].drafter, text(*parts)
  with jax.set_mesh(devices):
    spread = text(*loop(name, sharding.place(params, devices), sharding.place_head(own)))
  np.testing.assert_array_equal(spread, np.array(alone))


@pytest.mark.parametrize(
  ("name", "spread"),
  [
    ("eagle3", {"fc", "q", "k", "v", "out", "gate", "up", "down", "lm_head"}),
    ("medusa", {"lm_head"}),
    ("jakiro", {"fc", "q", "k", "v", "out"}),  # its experts are a layer of its own
    ("masked_slots", set()),
  ],
)
def test_what_is_spread(name, spread):
  make, config = HEADS[name]
  own = make(TARGET, config()).init(jax.random.key(2), random_params())
  assert sharding.place_head(own) is own
  with jax.set_mesh(two_by(2)):
    placed = jax.tree_util.tree_leaves_with_path(sharding.place_head(own))
  assert {path[-1].key for path, x in placed if not x.sharding.is_fully_replicated} == spread


@pytest.mark.slow
def test_a_draft_exchanges_what_its_layer_must():
  devices = two_by(2)
  with jax.set_mesh(devices):
    params = sharding.place(random_params(), devices)
    own = sharding.place_head(loop("eagle3", params)[1].drafter)
    parts = loop("eagle3", params, own)
    compiled = speculate.compiled_advance.lower(*parts, jnp.int32(40)).compile()
  kinds = collections.Counter(
    re.findall(r" (all-gather|all-to-all|collective-permute)\(", compiled.as_text())
  )
  # 3 depths gather their logits; the joint states go through fc; the target's nodes are dealt out.
  assert kinds["collective-permute"] == 0 and kinds["all-gather"] <= 4, kinds
  assert kinds["all-to-all"] <= 6, kinds
