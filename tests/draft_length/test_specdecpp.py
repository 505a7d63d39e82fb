"""The acceptance head, what it learns from, and when it stops a draft."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.draft_length.base import Observation
from specjax.draft_length.specdecpp import AcceptanceHead, labels, loss, specdecpp

P, E, V = 40, 8, 5
HEAD = AcceptanceHead(3)
INITIAL = jax.jit(HEAD.init)(jax.random.key(0), jnp.zeros((1, E)))


def params_of(seed: int):
  """Weights none of which is zero, as the biases are at first."""
  params = INITIAL
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, jnp.float32), params)


def head_in_numpy(params, features) -> np.ndarray:
  """Log-probabilities f64[P, 2]."""
  w = {k: np.asarray(v, np.float64) for k, v in params["params"].items()}
  z = np.asarray(features, np.float64)
  for i in range(3):
    y = z @ w[f"block_{i}"].T + w[f"bias_{i}"]
    z = z + y / (1 + np.exp(-y))
  y = z @ w["out"].T + w["out_bias"]
  return y - np.log(np.exp(y).sum(-1, keepdims=True))


def examples(seed: int):
  rng = np.random.default_rng(seed)
  features = jnp.asarray(rng.normal(size=(P, E)), jnp.float32)
  weight = jnp.asarray(rng.random(P) < 0.85, jnp.float32)
  return features, jnp.asarray(rng.random(P), jnp.float32), weight


def test_every_block_has_weights_of_its_own():
  params = INITIAL["params"]
  blocks = [params[f"block_{i}"] for i in range(3)]
  assert len(params) == 8 and all(block.shape == (E, E) for block in blocks)
  for i, j in ((0, 1), (0, 2), (1, 2)):
    assert jnp.abs(blocks[i] - blocks[j]).max() > 0.1
  # And reads them: moving one block alone is not moving another.
  x = examples(0)[0]
  moved = [
    HEAD.apply({"params": params | {f"block_{i}": params[f"block_{i}"] + 1.0}}, x) for i in range(3)
  ]
  assert min(float(jnp.abs(moved[i] - moved[j]).max()) for i, j in ((0, 1), (1, 2), (0, 2))) > 0.1


def test_the_head_reads_half_precision_in_full():
  params, (features, _, _) = params_of(0), examples(0)
  half = features.astype(jnp.bfloat16)
  got = jax.nn.log_softmax(HEAD.apply(params, half))
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, head_in_numpy(params, half.astype(jnp.float32)), atol=1e-4)


@pytest.mark.parametrize("refusal", [6.0, 1.0, 0.25])
def test_the_loss_equals_a_plain_loop(refusal):
  params, (features, label, weight) = params_of(1), examples(1)
  log_p = head_in_numpy(params, features)
  above = below = 0.0
  for i in range(P):
    if weight[i]:
      y = float(label[i])
      above -= y * log_p[i, 1] + refusal * (1 - y) * log_p[i, 0]
      below += y + refusal * (1 - y)
  got = jax.jit(loss, static_argnums=1)(params, HEAD, features, label, weight, refusal)
  np.testing.assert_allclose(got, above / below, rtol=1e-5)
  if refusal == 6:
    np.testing.assert_allclose(loss(params, HEAD, features, label, weight), got, rtol=1e-5)


def test_rows_without_weight_teach_nothing():
  params, (features, label, weight) = params_of(1), examples(1)
  changed = jnp.where(weight[:, None] > 0, features, 3.0)
  want = loss(params, HEAD, features, label, weight)
  np.testing.assert_allclose(loss(params, HEAD, changed, 1 - weight + weight * label, weight), want)
  assert loss(params, HEAD, features, label, jnp.zeros(P)) == 0


def test_the_gradient_reaches_every_weight():
  params, batch = params_of(2), examples(2)
  gradient = jax.jit(jax.grad(loss), static_argnums=1)
  for path, g in jax.tree.leaves_with_path(gradient(params, HEAD, *batch)):
    assert jnp.isfinite(g).all() and (jnp.abs(g) > 1e-7).mean() > 0.9, path


def test_the_head_learns_what_is_accepted():
  params, (features, _, weight) = params_of(3), examples(3)
  label = jax.nn.sigmoid(2 * features[:, 0])

  def step(params, _):
    value, grad = jax.value_and_grad(loss)(params, HEAD, features, label, weight, 1.0)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grad), value

  _, values = jax.jit(lambda params: jax.lax.scan(step, params, length=1000))(params)
  entropy = -(label * jnp.log(label) + (1 - label) * jnp.log(1 - label))
  least = float((weight * entropy).sum() / weight.sum())
  assert least - 1e-5 < values[-1] < least + 0.02 < values[0]


def test_the_labels_are_the_acceptance_of_the_token():
  p = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]] * 4 + [[1.0, 0.0, 0.0, 0.0]]))
  q = jnp.log(jnp.array([[0.2, 0.4, 0.1, 0.3]] * 5))
  got = labels(p, q, jnp.array([0, 1, 2, 3, 1]))
  np.testing.assert_allclose(got, [1, 0.75, 1, 1 / 6, 0], rtol=1e-6)


def lengths_in_numpy(predicted, risk: float, shortest: int, longest: int) -> list[int]:
  """Draft lengths; predicted[j] f[B] is read from the hidden state of draft token j, 1-based."""
  lengths = []
  for row in range(predicted.shape[1]):
    survival = 1.0
    for drafted in range(1, longest + 1):
      if drafted > 1:  # the token before this one is the newest whose state is known
        survival *= predicted[drafted - 1, row]
      if drafted >= longest or (drafted >= shortest and 1 - survival > risk):
        break
    lengths.append(drafted)
  return lengths


@pytest.mark.parametrize(
  ("risk", "shortest", "longest"), [(0.3, 2, 20), (0.7, 1, 6), (0.6, 4, 9), (0.9, 1, 9)]
)
def test_it_stops_when_a_refusal_is_likelier_than_the_risk(risk, shortest, longest):
  B = 64
  params = params_of(4)
  policy = specdecpp(risk=risk, shortest=shortest, longest=longest)
  states = np.random.default_rng(5).normal(size=(24, B, E)).astype(np.float32)
  weights = params["params"]  # mostly sure, but not too much, so that lengths differ
  weights |= {"out": weights["out"] * 0.2, "out_bias": jnp.array([0.0, 2.0])}
  predicted = np.exp(np.stack([head_in_numpy(params, x) for x in states])[..., 1])
  stop, log_probs = jax.jit(policy.stop), jnp.zeros((B, V))
  state = policy.init(B)
  for _ in range(2):  # the second round begins as the first one did
    live, length = np.ones(B, bool), np.zeros(B, np.int32)
    for step in range(24):
      ends, state = stop(params, state, Observation(np.int32(step), log_probs, None, states[step]))
      length = length + live
      live = live & ~np.asarray(ends)
    assert length.tolist() == lengths_in_numpy(predicted, risk, shortest, longest)
    assert len(set(length.tolist())) > 1
    state = policy.update(state, length - 1, length)
