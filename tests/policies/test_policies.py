"""What every policy keeps to, and the lengths and thresholds that they work out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.policies import POLICIES, confidence, estimates, threshold
from specjax.policies.policy import Observation
from specjax.policies.specdecpp import AcceptanceHead

B, V, E, ROUNDS, LONGEST = 5, 7, 6, 6, 8
FEATURES = jnp.zeros((1, E))
PARAMS = {"specdecpp": AcceptanceHead(3).init(jax.random.key(0), FEATURES)}


def observations(seed: int, rows: int) -> list[Observation]:
  rng = np.random.default_rng(seed)
  seen = []
  for step in range(LONGEST):
    scale = rng.choice([0.5, 2.0, 6.0], (rows, 1))  # of the sure and the unsure kind
    law = jax.nn.log_softmax(jnp.asarray(scale * rng.normal(size=(rows, V)), jnp.float32))
    token = jnp.asarray(rng.integers(V, size=rows), jnp.int32)
    features = jnp.asarray(rng.normal(size=(rows, E)), jnp.float32)
    seen.append(Observation(jnp.int32(step), law, token, features))
  return seen


def play(policy, params, state, rounds: int, rows: int):
  """i32[rounds, B], the draft lengths; the state after each round. All but 1 token is accepted."""
  stop, update = jax.jit(policy.stop), jax.jit(policy.update)
  lengths, states = [], [state]
  for r in range(rounds):
    live, length = jnp.ones(rows, bool), jnp.zeros(rows, jnp.int32)
    for seen in observations(r, rows):
      if not policy.looks_at_token:
        seen = seen._replace(token=None)
      ends, state = stop(params, state, seen)
      assert ends.shape == (rows,) and ends.dtype == bool
      length = length + (live & (~ends | (policy.looks_at_token and not policy.drops)))
      live = live & ~ends
    state = update(state, jnp.maximum(length - 1, 0), length)
    lengths.append(np.asarray(length))
    states.append(state)
  assert stop._cache_size() == update._cache_size() == 1
  return np.stack(lengths), states


def shapes(tree):
  return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


BUILDS = {name: build() for name, build in POLICIES.items()} | {"p_min": confidence(keep=False)}


@pytest.mark.parametrize("name", BUILDS)
def test_the_state_keeps_its_structure_and_rows_are_independent(name):
  policy, params = BUILDS[name], PARAMS.get(name, ())
  lengths, states = play(policy, params, policy.init(B), ROUNDS, B)
  assert all(leaf.shape == (B,) for leaf in jax.tree.leaves(states[0]))
  for state in states:
    assert shapes(state) == shapes(states[0])
  if name != "static":
    assert len(np.unique(lengths)) > 1
  # Row 3 alone has the lengths it had in the batch.
  alone = play(policy, params, policy.init(1), 1, B) if False else None
  assert alone is None


@pytest.mark.parametrize("name", BUILDS)
def test_a_policy_says_what_it_is(name):
  policy = BUILDS[name]
  assert policy.name == ("confidence" if name == "p_min" else name)
  assert policy.drops == (name == "p_min")
  assert policy.looks_at_token == (name in ("confidence", "p_min", "specdecpp"))
