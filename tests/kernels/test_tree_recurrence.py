"""The kernel of recurrent rules, simulated, against their recurrences node by node in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels import tree_recurrence
from specjax.kernels.tree_recurrence import pallas_gpu
from specjax.models import gated_delta, state_space

TREE = [0, 0, 0, 1, 1, 2, 3, 3, 4, 6, 6, 7, 9, 9, 12, 12]  # the parents of 16 nodes, 6 deep
B, K, H = 2, 2, 4
RULES = {"gated delta": gated_delta, "state space": state_space}


def drawn(rule, N, C, F, seed=0):
  """(memory, q, k of length 1, v, gates' logarithms or strong ones, rates; float64)."""
  rng = np.random.default_rng(seed)
  memory, q, k = (rng.normal(size=x) for x in ((B, H, C, F), (B, K, N, C), (B, K, N, C)))
  k /= np.linalg.norm(k, axis=-1, keepdims=True)
  v, rate = rng.normal(size=(B, H, N, F)), rng.uniform(size=(B, H, N))
  gate = -rng.exponential(size=(B, H, N)) * rng.choice([0, 0.1, 1, 100], (B, H, N))
  return memory, q, k, v, gate, rate if rule == "gated delta" else None


def tree_of(N):
  """The parents of N nodes: some of the tree, or a chain behind it."""
  return np.array([*TREE, *range(len(TREE) - 1, 63)][:N])


def mask_of(parent):
  mask = np.eye(len(parent), dtype=bool)
  for i, p in enumerate(parent):
    mask[i] |= mask[p] if i else False
  return np.broadcast_to(mask, (B, *mask.shape))


def by_nodes(parent, goes_on, memory, q, k, v, gate, rate):
  """What nodes read and their updates; each node has a memory of its own."""
  read, update = np.zeros_like(v), v.copy()
  for b, h in np.ndindex(B, H):
    behind, head = {}, h * K // H
    for i, p in enumerate(parent):
      before = behind[p] if i else memory[b, h] * goes_on[b]
      before = before * np.exp(gate[b, h, i])
      key = k[b, head, i]
      if rate is not None:
        update[b, h, i] = rate[b, h, i] * (v[b, h, i] - before.T @ key)
      behind[i] = before + np.outer(key, update[b, h, i])
      read[b, h, i] = behind[i].T @ q[b, head, i]
  return read, update


@jax.jit
def simulated(given, mask, goes_on):
  return pallas_gpu.evaluate(*given, mask, goes_on, interpret=True)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
  ("N", "C", "F"), [(16, 32, 16), (1, 64, 16), (5, 32, 128), (30, 16, 16)], ids=str
)
def test_the_kernel_is_the_recurrence(N, C, F, rule):
  """Some texts begin with the nodes; nodes fill no tile; the memory is read in parts."""
  parent, goes_on, given = tree_of(N), np.array([True, False]), drawn(rule, N, C, F)
  want = by_nodes(parent, goes_on, *given)
  floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), given)
  on = jnp.broadcast_to(jnp.asarray(goes_on, jnp.float32)[:, None], (B, N))
  got = simulated(floats, jnp.asarray(mask_of(parent), jnp.float32), on)
  for x, y in zip(got, want, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_networks_call_it_and_its_slopes_are_the_definitions(rule, monkeypatch):
  N = len(TREE)
  given = [jnp.asarray(x, jnp.float32) for x in drawn(rule, N, 16, 16) if x is not None]
  mask = jnp.asarray(mask_of(TREE))

  def asked():
    def loss(*given):
      read, nodes = RULES[rule].evaluate(*given, mask)
      return (read**2).sum() + (nodes.update**2).sum(), read

    return jax.jit(jax.grad(loss, range(len(given)), has_aux=True))(*given)

  want = asked()
  monkeypatch.setattr(tree_recurrence, "refusal", lambda *_: None)
  kernel, calls = pallas_gpu.evaluate, []

  def counted(*arguments):
    calls.append(arguments)
    return kernel(*arguments, interpret=True)

  monkeypatch.setattr(pallas_gpu, "evaluate", counted)
  got = asked()
  assert len(calls) == 1
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("N", [1, 16, 32])
def test_every_number_of_nodes_lowers_for_cuda(N, rule):
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), drawn(rule, N, 128, 64)
  )
  mask, on = (jax.ShapeDtypeStruct(x, jnp.float32) for x in ((B, N, N), (B, N)))
  lowered = jax.jit(pallas_gpu.evaluate).trace(*shapes, mask, on)
  assert "triton" in lowered.lower(lowering_platforms=("cuda",)).as_text()


def test_what_the_kernel_does_not_serve(monkeypatch):
  class Device:
    device_kind = "NVIDIA H100 80GB HBM3"

  def reason(N=16, C=128, F=128):
    return tree_recurrence.refusal(
      jax.ShapeDtypeStruct((B, H, C, F), jnp.float32),
      jax.ShapeDtypeStruct((B, K, N, C), jnp.float32),
    )

  assert reason() == "the device is cpu, not an H100 or H200"
  monkeypatch.setattr("specjax.kernels.tree_recurrence.api.device", Device)
  assert reason() is None
  assert reason(C=96) == "a memory has 96 x 128 numbers, not powers of 2 from 16 on"
  assert reason(F=8) == "a memory has 128 x 8 numbers, not powers of 2 from 16 on"
  assert reason(N=33) == "there are 33 nodes, more than 32"
  auto = (jax.sharding.AxisType.Auto,) * 2
  with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), auto)):
    assert reason() == "2 key heads cannot be spread over 4 devices"
