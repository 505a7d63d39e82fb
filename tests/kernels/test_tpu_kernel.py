"""The TPU kernel without a TPU: simulated with its memories and cores, and lowered for it."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from attention_cases import (
  BLOCK,
  KINDS,
  SHAPES,
  assert_close,
  case,
  in_pages,
  run,
  seen_by,
  truth,
)
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from specjax.kernels.tree_attention import aot, api, pallas_tpu, quantise, tree_attention


def simulated(seed):
  """Two cores that take the grid's parallel axes in an order of `seed`; fresh memory is NaN."""
  return pltpu.InterpretParams(detect_races=True, random_seed=seed, num_cores_or_threads=2)


@pytest.mark.slow
@pytest.mark.full(but=["0"])
@pytest.mark.parametrize("seed", range(3))
def test_cores_do_not_race_and_dead_blocks_do_not_matter(seed, capfd):
  arguments = case(seed, 2, 2, 2, 3, 384, 64, (129, 0))
  got = run("pallas_tpu", arguments, interpret=simulated(seed))
  assert_close(got, truth(*arguments), 2e-6)
  assert "RACE DETECTED" not in capfd.readouterr().out


def test_a_race_would_be_seen(capfd):
  def add(x, out):
    out[...] = x[...]

  racing = pl.pallas_call(
    add, grid=(2,), out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
    in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
    out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    interpret=simulated(0),
  )  # fmt: skip
  said = ""
  try:
    jax.block_until_ready(racing(jnp.ones((16, 128))))
  except jax.errors.JaxRuntimeError as error:  # from jax 0.12 on
    said = str(error)
    pltpu.reset_tpu_interpret_mode_state()
  assert "RACE DETECTED" in said + capfd.readouterr().out


@pytest.mark.full(but=["(2, 1, 7*", "(3, 1, 4*-bf16"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_lowers_for_tpu(shape, dtype):
  def attention(*arguments):
    return pallas_tpu.tree_attention(*arguments, 1.0, block=BLOCK)

  arguments = jax.eval_shape(lambda: tuple(map(jnp.asarray, case(0, *shape, dtype=dtype))))
  lowered = jax.jit(attention).trace(*arguments).lower(lowering_platforms=("tpu",))
  assert "tpu_custom_call" in lowered.as_text()


@pytest.mark.parametrize("kind", ["plain", "all"])
def test_pages_are_the_truth(kind):
  """Blocks of six pages, of which the last has one."""
  arguments = case(12, 3, 2, 2, 6, 832, 64, (0, 500, 790))
  seen = seen_by(arguments, **KINDS.get(kind, {}))
  paged = in_pages(arguments, 7)
  assert_close(run("pallas_tpu", paged, block=384, **seen), truth(*arguments, **seen), 2e-6)


def test_pages_behind_a_text_are_not_fetched():
  """Blocks of two pages; a name that is fetched again costs nothing."""
  table = jnp.array([[7, 8, 9, 5, 6], [3, 0, 0, 0, 0]], jnp.int32)
  prefix = jnp.array([190, 10], jnp.int32)
  _, fetch = pallas_tpu.plan(prefix, 128, 3)
  found = pallas_tpu.pages_of(table, prefix, fetch, 2)
  assert found.tolist() == [[7, 8, 9, 8, 9, 8], [3, 0, 3, 0, 3, 0]]


def test_pages_lower_for_tpu():
  paged = in_pages(case(1, 3, 2, 4, 8, 1024, 128, (1, 300, 900), dtype=jnp.bfloat16), 2)
  attention = functools.partial(pallas_tpu.tree_attention, scale=1.0, block=1024)
  lowered = jax.jit(attention).trace(*paged).lower(lowering_platforms=("tpu",)).as_text()
  assert "tpu_custom_call" in lowered and "3x2x1024x128" not in lowered


def test_the_mask_is_small_beside_the_cache():
  shape = aot.CompiledShape(batch=1, nodes=64, capacity=8192)
  arguments = aot.arguments(shape, None)

  def attention(*arguments):
    return pallas_tpu.tree_attention(*arguments, 1.0, block=1024)

  lowered = jax.jit(attention).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
  (call,) = (line for line in lowered.splitlines() if "tpu_custom_call" in line)
  masks = re.findall(r"tensor<([0-9x]+)xi8>", call)
  assert masks == ["1x64x64"] and 64 * 64 <= 16 << 10


def called(B=1, H=32, K=8, N=8, S=4096, C=128, dtype="bfloat16", int8=False, local=False):
  """The arguments of a call, as shapes and dtypes, and what else it has."""

  def array(*axes, dtype=dtype):
    return jax.ShapeDtypeStruct(axes, jnp.dtype(dtype))

  tree, cache = array(B, K, N, C), array(B, K, S, C)
  cache = jax.eval_shape(quantise, cache) if int8 else cache
  mask = array(B, N, N, dtype="bool")
  seen = {"start": array(B, N, dtype="int32"), "sinks": array(H, dtype="float32")} if local else {}
  return (array(B, H, N, C), cache, cache, array(B, dtype="int32"), tree, tree, mask), seen


@pytest.mark.parametrize(
  ("call", "reason"),
  [
    ({}, None),
    ({"S": 2}, None),
    ({"S": 1}, "the cache has 1 row, not 2 or more"),
    ({"S": 1, "int8": True}, "the cache has 1 row, not 2 or more"),
    ({"dtype": "float32", "int8": True}, None),
    ({"dtype": "float16"}, "nodes are float16 and the cache float16, not bfloat16 or float32"),
    ({"dtype": "float16", "int8": True},
     "nodes are float16 and the cache int8, not bfloat16 or float32"),
    ({"C": 64}, None), ({"C": 80}, None), ({"C": 96}, None), ({"C": 192}, None), ({"C": 256}, None),
    ({"C": 72}, "heads are 72 wide, not 64, 80, 96, 128, 192 or 256"),
    ({"N": 512}, None),
    ({"N": 433, "local": True}, None),
    ({"N": 434, "local": True},
     "434 nodes of 4 query heads to a key head do not fit beside a block"),
    ({"N": 513}, "513 nodes of 4 query heads to a key head do not fit beside a block"),
    ({"H": 24, "N": 384, "K": 4}, None),
    ({"H": 64, "N": 312}, None),
    ({"H": 64, "N": 313}, "313 nodes of 8 query heads to a key head do not fit beside a block"),
    ({"H": 24, "N": 512, "K": 4},
     "512 nodes of 6 query heads to a key head do not fit beside a block"),
    ({"H": 64, "K": 1, "N": 64},
     "64 nodes of 64 query heads to a key head do not fit beside a block"),
    ({"H": 8, "N": 1024}, None),
    ({"H": 8, "N": 1025}, "1025 nodes of 1 query heads to a key head do not fit beside a block"),
    ({"C": 256, "dtype": "float32", "H": 64, "N": 224},
     "224 nodes of 8 query heads to a key head do not fit beside a block"),
  ],
  ids=str,
)  # fmt: skip
def test_what_the_compiler_cannot_do_is_refused(call, reason, monkeypatch):
  monkeypatch.setattr(api, "platform", lambda: "tpu")
  arguments, seen = called(**call)
  q, cache, _, prefix, *_ = arguments
  assert api.refusals(q, cache, prefix, **seen)["pallas_tpu"] == reason
  wanted = "xla" if reason else "pallas_tpu"
  assert api.default_implementation(q, cache, prefix, **seen) == wanted
  if reason:
    asked = functools.partial(tree_attention, implementation="pallas_tpu")
    with pytest.raises(ValueError, match=f"'pallas_tpu'.*{reason}"):
      jax.eval_shape(asked, *arguments, **seen)
