"""Attention round a ring of devices is attention, and a head trains there as on one device."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from specjax.data.packing import pack
from specjax.heads import HEADS
from specjax.models import attention, ring, sharding, transformer
from specjax.models.config import Config
from specjax.train.recipe.draft_positions import Objective, PositionSource

B, H, K, C = 2, 4, 2, 8

# (axes of the mesh, nodes, rows, window, cap, whether there are sinks, rows beside the fresh ones)
CASES = {
  "two": ({"sequence": 2}, 12, 12, None, None, False, None),
  "uneven": ({"sequence": 4}, 13, 13, 5, None, False, None),
  "all axes": ({"data": 2, "model": 2, "sequence": 2}, 9, 17, None, 2.0, True, None),
  "a chain of each": ({"sequence": 4}, 6, 21, 4, 2.0, False, "own"),
  "text and masks": ({"sequence": 2, "data": 2}, 7, 7, None, None, True, "text"),
}


def arguments(N, M, window, sinks, beside, seed=0):
  """(arrays with gradients by name, mask, mask of the other rows), f64."""
  rng = np.random.default_rng(seed)
  shapes = {"q": (B, H, N, C), "k": (B, K, M, C), "v": (B, K, M, C - 2)}
  if sinks:
    shapes["sinks"] = (H,)
  if beside == "own":
    shapes |= {"far_k": (B, K, N, 3, C), "far_v": (B, K, N, 3, C - 2)}
  if beside == "text":
    shapes |= {"far_k": (B, K, 11, C), "far_v": (B, K, 11, C - 2)}
  arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
  node, row = np.arange(N)[:, None] + M - N, np.arange(M)[None]
  mask = (row <= node) & (rng.random((B, N, M)) < 0.7)
  mask &= node - row < (window or M)
  mask |= row == node
  seen = rng.random((B, N, 11)) < 0.5
  seen[:, 1] = False  # a node that sees no other row
  return arrays, mask, seen


def plain(arrays, mask, seen, cap):
  """The definition, in float64."""
  q, k, v = (arrays[name] for name in "qkv")
  repeat = functools.partial(np.repeat, repeats=H // K, axis=1)

  def scores(letters, k):
    s = np.einsum(letters, q, repeat(k)) / C**0.5
    return s if cap is None else cap * np.tanh(s / cap)

  parts = [(np.where(mask[:, None], scores("bhnc,bhmc->bhnm", k), -np.inf), "bhnm,bhmd->bhnd", v)]
  if "far_k" in arrays:
    own = arrays["far_k"].ndim == 5
    s = scores("bhnc,bhnsc->bhns" if own else "bhnc,bhsc->bhns", arrays["far_k"])
    s = s if own else np.where(seen[:, None], s, -np.inf)
    parts.append((s, "bhns,bhnsd->bhnd" if own else "bhns,bhsd->bhnd", arrays["far_v"]))
  total = sum(np.exp(s).sum(-1) for s, *_ in parts)
  total = total + (np.exp(arrays["sinks"])[:, None] if "sinks" in arrays else 0)
  out = sum(np.einsum(letters, np.exp(s), repeat(v)) for s, letters, v in parts)
  return (out / total[..., None]).swapaxes(1, 2).reshape(*out.shape[:1], out.shape[2], -1)


def on_ring(axes, arrays, mask, seen, cap, weight):
  """(what the devices attend to, the gradient of its product with f64 `weight`)."""

  @jax.jit
  def run(arrays):
    def loss(arrays):
      far = None
      if "far_k" in arrays:
        far = arrays["far_k"], arrays["far_v"], jnp.asarray(seen)
      sinks = arrays.get("sinks")
      fresh = (arrays[name] for name in "qkv")
      out = attention.attend(*fresh, jnp.asarray(mask), far, cap, sinks)
      return (out * jnp.asarray(weight, jnp.float32)).sum(), out

    (_, out), grads = jax.value_and_grad(loss, has_aux=True)(arrays)
    return out, grads

  with jax.set_mesh(sharding.mesh(**axes)):
    return run({name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()})


@pytest.mark.slow
@pytest.mark.full(but=["all axes", "a chain of each"])
@pytest.mark.parametrize("case", CASES)
def test_the_definition_and_its_gradient(case, monkeypatch):
  axes, N, M, window, cap, sinks, beside = CASES[case]
  monkeypatch.setattr(ring, "TOGETHER", 2)
  arrays, mask, seen = arguments(N, M, window, sinks, beside)
  want, rng = plain(arrays, mask, seen, cap), np.random.default_rng(1)
  weight = rng.normal(size=want.shape)
  out, grads = on_ring(axes, arrays, mask, seen, cap, weight)
  np.testing.assert_allclose(out, want, atol=2e-6)
  for name, x in arrays.items():
    way, h = rng.normal(size=x.shape), 1e-5
    ahead, behind = (
      (plain(arrays | {name: x + s * h * way}, mask, seen, cap) * weight).sum() for s in (1, -1)
    )
    found = (np.asarray(grads[name], np.float64) * way).sum()
    slope = (ahead - behind) / (2 * h)
    np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["nothing travels", "a block is skipped", "one way only"])
def test_a_wrong_ring_is_seen(fault, monkeypatch):
  passed, columns = ring._passed, ring._columns
  if fault == "nothing travels":
    monkeypatch.setattr(ring, "_passed", lambda halves, n: halves)
  elif fault == "one way only":
    monkeypatch.setattr(ring, "_passed", lambda halves, n: (passed(halves, n)[0], halves[1]))
  else:
    monkeypatch.setattr(
      ring, "_columns", lambda mask, place, t, *rest: columns(mask, place, t, *rest) & (t != 1)
    )
  arrays, mask, seen = arguments(12, 12, None, False, None)
  want = plain(arrays, mask, seen, None)
  out, _ = on_ring({"sequence": 4}, arrays, mask, seen, None, np.ones(want.shape))
  assert abs(np.asarray(out) - want).max() > 0.1


MODEL = Config(
  vocab_size=32, width=16, layers=1, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=1024
)


DEPTH = 2


def source(points=7, length=37, rows=4):
  """Rows of several texts, the last of them ragged."""
  rng = np.random.default_rng(0)
  sizes = [length, 20, 13, length - 4, 9, 11, 12, length - 1][: 2 * rows]
  texts = [(rng.integers(0, 32, n).tolist(), [True] * n) for n in sizes]
  return PositionSource(pack(texts, length), None, DEPTH, points, 0)


def trained(name, **shape):
  """((weights, batch) -> ((loss, metrics), gradient), compiled; weights) of a head and target."""
  build, config = HEADS[name]
  head = build(transformer.target(MODEL), config(**shape))
  objective = Objective(head, None, transformer.Transformer(MODEL))
  random = transformer.init(MODEL, jax.random.key(0))
  params = jax.tree.map(lambda x: x * 5 if x.ndim > 1 else x, random)
  whole = jax.jit(head.init)(jax.random.key(1), params)

  def loss(own, batch):
    return objective.loss(whole | {"params": own}, params, batch, head.loss)

  return jax.jit(jax.value_and_grad(loss, has_aux=True)), whole["params"]


def dealt(batch, devices):
  axes = [axis for axis in ("data", "sequence") if axis in devices.axis_names]
  return jax.device_put(batch, NamedSharding(devices, PartitionSpec(*axes)))


@pytest.mark.slow
@pytest.mark.full(but=["eagle3-*", "dspark-*"])
@pytest.mark.parametrize(
  ("name", "axes"),
  [
    ("eagle3", {"data": 2, "sequence": 2}),
    ("dspark", {"sequence": 4}),
    ("dflash", {"sequence": 2}),
    ("peagle", {"model": 2, "sequence": 2}),
    ("eagle", {"sequence": 4}),
    ("griffin", {"sequence": 2}),
    ("hydra", {"sequence": 2}),
    ("ppd", {"sequence": 4}),
  ],
  ids=lambda x: x if isinstance(x, str) else "".join(f"{k[0]}{n}" for k, n in x.items()),
)
def test_loss_and_gradient_are_those_of_one_device(name, axes):
  windowed = {"window": 6} if hasattr(HEADS[name][1](), "window") else {}
  run, own = trained(name, depth=DEPTH, **windowed)
  (alone, told), grads = run(own, source().sample(np.arange(4), 0))
  devices = sharding.mesh(**axes)
  with jax.set_mesh(devices):
    batch = source().sample(np.arange(4), 0)
    assert batch.examples.tokens.shape == (4, 40) and batch.examples.at.shape == (4, 8)
    (loss, said), others = run(own, dealt(batch, devices))
  np.testing.assert_allclose(loss, alone, rtol=1e-5)
  assert said.keys() == told.keys()
  for path, x in jax.tree_util.tree_leaves_with_path(grads):
    y = functools.reduce(lambda tree, step: tree[step.key], path, others)
    np.testing.assert_allclose(y, x, atol=2e-5 * max(1.0, float(abs(x).max())), err_msg=str(path))


@pytest.mark.slow
def test_the_largest_array_of_a_device_shrinks_with_the_axis():
  largest, besides = [], []
  for n in (1, 4):
    run, own = trained("eagle3", depth=DEPTH, window=64)
    devices = sharding.mesh(sequence=n)
    with jax.set_mesh(devices):
      batch = source(points=64, length=1024, rows=1).sample(np.arange(1), 0)
      program = run.lower(own, dealt(batch, devices)).compile()
    sizes = re.findall(r"(?:f32|s32|pred)\[([\d,]+)\]", program.as_text())
    largest.append(max(np.prod([int(x) for x in size.split(",")]) for size in sizes))
    besides.append(program.memory_analysis().temp_size_in_bytes)
  assert largest[1] <= largest[0] / 3, largest
  assert besides[1] <= besides[0] / 3, besides
