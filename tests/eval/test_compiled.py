"""Loops and steps of large models through the compilers of TPUs and GPUs that are not here."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from specjax.eval import compiled
from specjax.kernels import topology
from specjax.models import experts, sharding

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks" / "compile"


def report(script: str, chips: str, out: pathlib.Path, *options: str) -> dict:
  """The first cell that the script writes for a topology."""
  reason = topology.absent(chips)
  if reason is not None:
    pytest.skip(reason)
  ran = subprocess.run(
    [sys.executable, FOLDER / script, "--topologies", chips, "--out", str(out), *options],
    env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
  )  # fmt: skip
  assert ran.returncode == 0, ran.stderr
  [cells] = (x for x in json.loads((out / "summary.json").read_text()).values()
             if isinstance(x, list))  # fmt: skip
  return cells[0]


def one_layer(chips: str, out: pathlib.Path, *options: str) -> dict:
  """What is found for one layer of an 8B target, batch 2 and 8 nodes."""
  small = "--layers", "1", "--batch", "2", "--drafted", "7"
  return report("sharded_loop.py", chips, out, *small, *options)


@pytest.mark.full
def test_a_tpu_layer_has_its_kernel_and_two_sums_and_copies_no_cache(tmp_path):
  row = one_layer("v5e:4x4", tmp_path)
  assert row["kernels"] == 1
  assert row["cache_copies"] == 0
  assert "collective-permute" not in row["collectives"]
  of_large_arrays = 2 + 1  # of the layer, of the embedding
  of_small_ones = 10
  assert row["collectives"]["all-reduce"] <= of_large_arrays + of_small_ones


@pytest.mark.full
@pytest.mark.parametrize(("drafted", "kernels"), [(7, 0), (15, 1)])
def test_a_gpu_layer_has_its_kernel_for_full_tiles_and_copies_no_cache(drafted, kernels, tmp_path):
  row = one_layer("h100:1", tmp_path, "--drafted", str(drafted))
  assert (row["kernels"], row["cache_copies"]) == (kernels, 0)
  assert row["temp_bytes"] < 1.5 * row["cache_bytes"]  # the logits of 16 nodes, mostly


@pytest.mark.full
def test_gpus_exchange_no_distributions(tmp_path):
  """That of 8 nodes in 2 rows would be 8 MB."""
  row = one_layer("h100:4", tmp_path)
  assert "all-gather" not in row["collectives"]
  assert row["talk_bytes"] < 4 * 2 * 8 * 128256


@pytest.mark.full
def test_one_chip_reads_weights_of_8_bits(tmp_path):
  """No product writes a matrix in bfloat16 to memory first: the LM head alone would be 1 GB."""
  row = one_layer("v5e:1", tmp_path, "--weights", "int8")
  weights = 2 * 128256 * 4096 + 4096 * (6144 + 4096 + 3 * 14336)
  assert weights < row["argument_bytes"] - row["cache_bytes"] < 1.01 * weights
  assert row["temp_bytes"] < 0.2e9


@pytest.mark.full
def test_the_step_of_a_training_spreads_the_target_and_the_heads_moments(tmp_path):
  options = "--sizes small --batch 4 --length 64 --points 16 --draft-vocab 256 --layers 2"
  one, two, four = (
    report("training_step.py", f"h100:{chips}", tmp_path / name, "--data", data, *options.split())
    for name, chips, data in (("one", 1, "1"), ("two", 4, "2"), ("four", 4, "4"))
  )  # fmt: skip
  assert one["collectives"] == {}
  assert all(cell["collectives"]["all-reduce"] > 0 for cell in (two, four))
  for cell in two, four:
    assert cell["argument_bytes"] < one["argument_bytes"] / 1.5
    # Weights are gathered once and gradients summed; no activation goes from device to device.
    assert cell["collectives"].keys() <= {"all-reduce", "all-gather", "reduce-scatter"}
    assert cell["collectives"]["all-gather"] < 10


@pytest.mark.full
@pytest.mark.parametrize(
  ("model", "cache", "chips"),
  [
    ("llada-8b", "dual", "h100:1"),
    ("sdar-8b", "committed", "h100:1"),
    ("llada-8b", "dual", "v5e:1"),
  ],
)
def test_a_denoisers_loop_copies_no_cache(tmp_path, model, cache, chips):
  options = "--layers", "1", "--batch", "2", "--canvas", "96", "--model", model, "--caches", cache
  cell = report("denoising_loop.py", chips, tmp_path, *options)
  assert cell["cache_bytes"] > 0
  assert cell["cache_copies"] == 0


@pytest.mark.full
@pytest.mark.parametrize("lies", [True, False])
def test_a_tpu_keeps_experts_once_where_their_weights_lie_as_it_reads_them(lies):
  reason = topology.absent("v5p:1")
  if reason is not None:
    pytest.skip(reason)
  X, E, F, R, k = 16, 2816, 704, 256, 8  # DiffusionGemma's, of one chip of eight
  mesh = topology.mesh("v5p:1")
  whole = NamedSharding(mesh, PartitionSpec())
  weights = {"expert_gate_up": (X, 2 * F, E), "expert_down": (X, E, F)}
  places = {n: sharding.of_weight(n, x, mesh) if lies else whole for n, x in weights.items()}

  def shape(*sizes: int, dtype=jnp.bfloat16, place=whole):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=place)

  def loop(x, chosen, gate_up, down, rounds):
    def turn(_, x):
      return experts.grouped(x, chosen, gate_up, down, experts.geglu).astype(x.dtype)

    return jax.lax.fori_loop(0, rounds, turn, x)

  chosen = experts.Chosen(shape(R, k, dtype=jnp.int32), shape(R, k, dtype=jnp.float32))
  own = [shape(*x, place=places[name]) for name, x in weights.items()]
  with jax.set_mesh(mesh):
    lowered = jax.jit(loop).lower(shape(R, E), chosen, *own, shape(dtype=jnp.int32))
  assert compiled.copies(compiled.found(lowered)[1], f"{X},{2 * F},{E}") == (0 if lies else 1)


@pytest.mark.parametrize(
  ("line", "count"),
  [
    ("%copy.1 = bf16[2,8,64,128]{3,1,2,0:T(8,128)(2,1)} copy(%param.1)", 1),
    ("%copy.1 = bf16[2,8,64,128]{3,2,1,0:T(8,128)(2,1)S(1)} copy(%param.1)", 0),
    ('%x = bf16[2,8,64,128]{3,2,1,0} custom-call(%a, %b), custom_call_target="Join"', 1),
    ("%x = (s8[2,8,64,128]{3,2,1,0}, s8[2,8,64,128]{3,2,1,0}, u32[]) copy-start(%a)", 1),
    ("%x = (s8[2,8,64,128]{3,2,1,0}, s8[2,8,64,128]{3,2,1,0S(1)}, u32[]) copy-start(%a)", 0),
    ("%x = bf16[2,8,64,128]{3,2,1,0} fusion(%a), kind=kLoop", 0),
    ("%x = bf16[2,8,65,128]{3,2,1,0} copy(%a)", 0),
  ],
)
def test_what_counts_as_a_copy(line, count):
  assert compiled.copies(f"  {line}\n", "2,8,64,128") == count


PROGRAM = """HloModule jit_f, entry_computation_layout={(f32[16,128]{1,0})->f32[16,128]{1,0}}

%fused (param_0: f32[16,128]) -> f32[16,128] {
  %param_0 = f32[16,128]{1,0} parameter(0)
  ROOT %negate.9 = f32[16,128]{1,0} negate(%param_0)
}

%sliced (param_1: f32[16,128]) -> f32[4,128] {
  %param_1 = f32[16,128]{1,0} parameter(0)
  %slice.1 = f32[4,128]{1,0} slice(%param_1), slice={[0:4], [0:128]}
  ROOT %negate.8 = f32[4,128]{1,0} negate(%slice.1)
}

%body (arg: (s32[], f32[16,128])) -> (s32[], f32[16,128]) {
  %arg = (s32[], f32[16,128]{1,0:T(8,128)}) parameter(0)
  %x = f32[16,128]{1,0:T(8,128)} get-tuple-element(%arg), index=1
  %y = f32[16,128]{1,0:T(8,128)} negate(%x)
  ROOT %next = (s32[], f32[16,128]{1,0:T(8,128)}) tuple(%i, %y)
}

ENTRY %main (p: f32[16,128]) -> f32[16,128] {
  %p = f32[16,128]{1,0:T(8,128)} parameter(0)
OPERATIONS
}
"""


@pytest.mark.parametrize(
  ("operations", "arrays"),  # of 16 x 128 numbers of 32 bits that are read or written
  [
    ("ROOT %a = f32[16,128]{1,0} fusion(%p), kind=kLoop, calls=%fused", 2),
    ("ROOT %a = f32[4,128]{1,0} fusion(%p), kind=kLoop, calls=%sliced", 0.5),
    ("ROOT %a = f32[16,128]{1,0} multiply(%p, %p)", 2),
    ("%a = bf16[16,128]{1,0} convert(%p)\n  ROOT %b = f32[16,128]{1,0} convert(%a)", 3),
    ("ROOT %a = f32[16,128]{1,0:T(8,128)S(1)} negate(%p)", 1),
    ("%a = f32[2048]{0} bitcast(%p)\n  ROOT %b = f32[2048]{0} negate(%a), control={%p}", 2),
    ("%a = (f32[16,128]{1,0:T(8,128)S(1)}, f32[16,128]{1,0}, u32[]) copy-start(%p)\n"
     "  ROOT %b = f32[16,128]{1,0:T(8,128)S(1)} copy-done(%a)", 1),
    ("%a = ((f32[16,128]{1,0:T(8,128)}), f32[16,128]{1,0}, s32[]) async-start(%p), calls=%fused\n"
     "  ROOT %b = f32[16,128]{1,0:T(8,128)} async-done(%a)", 2),
    ('%a = (f32[16,128]{1,0}, s8[4194304]{0}) custom-call(%p), custom_call_target="product"', 2),
    ("%a = (f32[16,128]{1,0}, f32[16,128]{1,0}) fusion(%p), kind=kLoop, calls=%fused", 3),
    ('%a = (s32[], f32[16,128]{1,0}) while(%p), condition=%c, body=%body, backend_config='
     '{"known_trip_count":{"n":"5"}}', 10),
    ("%a = (s32[], f32[16,128]{1,0}) while(%p), condition=%c, body=%body", 2),
    ("ROOT %a = (s32[], f32[16,128]{1,0}) call(%p), to_apply=%body", 2),
  ],
)  # fmt: skip
def test_what_a_program_reads_and_writes(operations, arrays):
  text = PROGRAM.replace("OPERATIONS", f"  {operations}")
  assert compiled.accessed(text) == arrays * 16 * 128 * 4


COLLECTIVES = """HloModule jit_f, is_scheduled=true

%multiplied (param_0: f32[8,8]) -> f32[8,8] {
  %param_0 = f32[8,8]{1,0} parameter(0)
  ROOT %dot.1 = f32[8,8]{1,0} dot(%param_0, %param_0), lhs_contracting_dims={1}
}

%body (arg: f32[8,8]) -> f32[8,8] {
  %arg = f32[8,8]{1,0} parameter(0)
  ROOT %product = f32[8,8]{1,0} fusion(%arg), kind=kOutput, calls=%multiplied
}

ENTRY %main (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
OPERATIONS
}
"""


def program(*lines: str) -> str:
  return COLLECTIVES.replace("OPERATIONS", "\n".join(f"  {line}" for line in lines))


BEGUN = "%a = (f32[8,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%p), channel_id=1"
ENDED = "%b = f32[16,8]{1,0} all-gather-done(%a)"


@pytest.mark.parametrize(
  ("between", "count"),
  [
    ("%x = f32[8,8]{1,0} dot(%p, %p)", 1),
    ("%x = f32[8,8]{1,0} fusion(%p), kind=kOutput, calls=%multiplied", 1),
    ("%x = f32[8,8]{1,0} while(%p), condition=%c, body=%body", 1),
    ("%x = f32[8,8]{1,0} conditional(%i, %p, %p), branch_computations={%c, %body}", 1),
    ('%x = f32[8,8]{1,0} custom-call(%p), custom_call_target="__cublas$gemm"', 1),
    ('%x = f32[8,8]{1,0} custom-call(%p), custom_call_target="TopK"', 0),
    ("%x = f32[8,8]{1,0} negate(%p)", 0),
    ("%x = f32[8,8]{1,0} all-reduce(%p), channel_id=2, to_apply=%add", 0),
  ],
)
def test_what_is_under_way_while_a_chip_multiplies(between, count):
  product = "%y = f32[8,8]{1,0} dot(%p, %p)"
  text = program(product, BEGUN, between, ENDED, product)
  assert compiled.overlapped(text) == ({("all-gather", "1")} if count else set())


def test_steps_of_a_collective_may_be_fused_with_products():
  step = "%s = f32[16,8]{1,0} all-gather(%param_0), channel_id=4"
  text = program("%x = f32[8,8]{1,0} fusion(%p), kind=kOutput, calls=%multiplied")
  assert compiled.overlapped(text) == set()
  for place in (f"  {step}\n  ROOT %dot.1", f"  {step}\n  {step}\n  ROOT %dot.1"):
    fused = text.replace("  ROOT %dot.1", place)
    assert compiled.overlapped(fused) == {("all-gather", "4")}
    assert compiled.talk(fused) == {("all-gather", "4"): 4 * 16 * 8}


def test_bytes_of_collectives():
  two = "%c = (f32[8]{0}, bf16[4]{0:S(1)}) all-reduce(%p, %p), channel_id=2, to_apply=%add"
  said = compiled.talk(program(BEGUN, ENDED, two))
  assert said == {("all-gather", "1"): 4 * 16 * 8, ("all-reduce", "2"): 4 * 8 + 2 * 4}


def test_what_is_written():
  """Neither what a fusion holds within, nor what a loop hands on."""
  fused = "%x = f32[8,8]{1,0} fusion(%p), kind=kOutput, calls=%multiplied"
  loop = "%y = f32[8,8]{1,0} while(%x), condition=%c, body=%body"
  both = "%z = (f32[8,8]{1,0}, f32[16,8]{1,0}) custom-call(%y)"
  text = program(fused, loop, both, "%w = bf16[8,8]{1,0} convert(%p)")
  # The fusion here, that of the loop's body, and the call.
  assert [compiled.written(text, "f32", n) for n in (64, 65, 128, 129)] == [3, 1, 1, 0]
  assert compiled.largest(text) == "f32[16,8]"


@pytest.mark.full
@pytest.mark.parametrize("chips", ["v5e:1", "h100:1"])
def test_a_trees_pass_through_a_recurrent_layer_moves_few_bytes(chips, tmp_path):
  report("delta_net.py", chips, tmp_path)
  cells = json.loads((tmp_path / "summary.json").read_text())["parts"]
  rules = [cell for cell in cells if cell["part"].startswith("rule")]
  assert len(rules) == 4  # of two kinds, two batches
  assert all(1 < cell["over"] <= 1.5 for cell in rules)


def cell(layers: int) -> dict:
  """What a program of 7 GB and 2 a layer, of which some is for work, may tell."""
  return {
    "topology": "h100:1", "layers": layers, "argument_bytes": (7 + 2 * layers) * 10**9,
    "temp_bytes": 3 * 10**9 - layers, "cache_copies": 4 * layers, "batch": 8, "seconds": 1.5,
    "collectives": {"all-reduce": 1 + 2 * layers} | ({"all-gather": 1} if layers > 1 else {}),
    "overlapped": {"all-reduce": layers}, "ideal_bytes": (5 + 2 * layers) * 10**9,
  }  # fmt: skip


def test_the_whole_follows_from_two_numbers_of_layers():
  *own, whole = compiled.by_layers(cell, (1, 2), 32)
  assert [(x["layers"], x["of_memory"]) for x in own] == [(1, 0.15), (2, 0.175)]
  wanted = cell(32) | {"temp_bytes": cell(2)["temp_bytes"], "seconds": None, "of_memory": 0.925}
  wanted["over_ideal"] = round((71 + 3) / 69, 3)
  assert whole == wanted | {"collectives": {"all-reduce": 65, "all-gather": 31}}
  [whole] = compiled.by_layers(cell, (), 32)
  assert whole["layers"] == 32 and whole["seconds"] == 1.5
  assert compiled.row(whole)["argument GB"] == "71.00"


@pytest.mark.parametrize("layers", [(2, 1), (1, 1), (0, 1)])
def test_layers_rise(layers):
  with pytest.raises(ValueError, match="`layers` must be rising numbers of at least 1, got "):
    compiled.check_layers(layers)
