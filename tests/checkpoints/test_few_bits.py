"""Directories in the formats of others: each against its definition in float64, and against torch's
programs where these are installed."""

import json
import subprocess
import sys

import formats_page
import gguf_writer
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from few_bits_writer import FORMATS, mxfp4
from flax.traverse_util import flatten_dict
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file

import specjax
from specjax.checkpoints import families, few_bits, gguf_layout, hf, quantised, stored
from specjax.models import groups
from specjax.models.groups import Groups
from specjax.models.linear import linear
from specjax.models.sharding import apart
from specjax.models.transformer import target
from specjax.models.weights import dense

QWEN = {
  "model_type": "qwen3", "vocab_size": 96, "hidden_size": 192, "intermediate_size": 320,
  "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = QWEN | {
  "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "num_local_experts": 4,
  "num_experts_per_tok": 2, "layer_types": ["full_attention"], "head_dim": 16,
}  # fmt: skip
MXFP4 = "mxfp4"
ALL = [*FORMATS, MXFP4]


def parts_of(raw):
  """The tensors of a model: name and shape on disk, by our path."""
  family = families.by_type(raw, "config.json")
  return family.layout(family.from_json(raw))


def write(directory, name, change=None, tensors=lambda x: x):
  """A model in a format, and its values in float64 by the names of floats."""
  raw, rng = (GPT_OSS if name == MXFP4 else QWEN), np.random.default_rng(len(name))
  said = {"quant_method": "mxfp4"} if name == MXFP4 else FORMATS[name].config
  every, exact = {}, {}
  for path, parts in parts_of(raw).items():
    for part in parts:
      base = part.name.removesuffix(".weight")
      if part.turned:
        X, K, O = part.shape
        packed, exact[part.name] = mxfp4(rng, base, X, O, K)
      elif name != MXFP4 and len(part.shape) == 2 and path[0].startswith("layer_"):
        packed, exact[part.name] = FORMATS[name].pack(rng, base, *part.shape)
      else:
        packed = {part.name: rng.normal(0.5, 0.1, part.shape).astype(np.float32)}
        exact[part.name] = packed[part.name].astype(np.float64)
      every |= packed
  said = said | (change or {})
  (directory / "config.json").write_text(json.dumps(raw | {"quantization_config": said}))
  save_file(tensors(every), directory / "model.safetensors")
  return exact


def whole(leaves, path):
  """A parameter, or its parts one after the other; values in float64."""
  paths = [path] if path in leaves else [(*path[:-1], x) for x in apart(path[-1])]
  return np.concatenate([np.asarray(dense(leaves[x]), np.float64) for x in paths])


def compared(directory, name, weights="float"):
  """The largest difference from float64, in parts of a matrix's largest value."""
  exact, worst = write(directory, name), 0.0
  params = hf.load(directory, weights=weights).params
  leaves = flatten_dict(params["params"], is_leaf=lambda _, x: isinstance(x, Groups))
  for path, parts in parts_of(GPT_OSS if name == MXFP4 else QWEN).items():
    want = np.concatenate([part.ours(exact[part.name]) for part in parts])
    got = whole(leaves, path)
    worst = max(worst, np.abs(got - want).max() / np.abs(want).max())
  return worst


def read(directory, tensors, said):
  """`few_bits.Few` by name."""
  save_file(tensors, directory / "x.safetensors")
  found = stored.of_safetensors(directory / "x.safetensors")
  return quantised.METHODS[said["quant_method"]](found, said, "config.json")


def is_held(name):
  return name == MXFP4 or FORMATS[name].held


@pytest.mark.parametrize("name", ALL)
def test_values_are_those_of_the_definition(name, tmp_path):
  assert compared(tmp_path, name) <= (0 if is_held(name) else 2.0**-23)


@pytest.mark.parametrize("name", [x for x in ALL if is_held(x)])
def test_native_holds_the_same_values(name, tmp_path):
  assert compared(tmp_path, name, "native") == 0
  found = hf.load(tmp_path, weights="native").params["params"]["layer_0"]
  if name == MXFP4:
    assert isinstance(found["experts"]["expert_down"], Groups)
    assert not isinstance(found["out"], Groups)  # which the file has in floats
  else:
    assert all(isinstance(found[x], Groups) for x in ("out", "down"))


@pytest.mark.parametrize("name", [x for x in FORMATS if not is_held(x)])
def test_native_is_refused_where_it_holds_nothing(name, tmp_path):
  write(tmp_path, name)
  words = rf"^`weights` must be float.* for {tmp_path}, of which native can hold no matrix, got 'n"
  with pytest.raises(ValueError, match=words):
    specjax.load(str(tmp_path), weights="native")


def test_what_float16_does_not_hold_is_widened(tmp_path):
  """One matrix whose scales are too small, beside others that are held."""
  name = "model.layers.0.self_attn.v_proj.scales"
  exact = write(tmp_path, "awq", tensors=lambda x: x | {name: x[name].astype(np.float32) * 1e-4})
  part = hf.load(tmp_path, weights="native").params["params"]["layer_0"]
  assert isinstance(part["q"], Groups) and not isinstance(part["v"], Groups)
  want = exact[name.replace("scales", "weight")] * 1e-4
  np.testing.assert_allclose(part["v"], want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_values_are_rounded_once(dtype, tmp_path):
  exact = write(tmp_path, "awq")
  down = hf.load(tmp_path, dtype).params["params"]["layer_0"]["down"]
  want = exact["model.layers.0.mlp.down_proj.weight"].astype(np.float32).astype(dtype)
  np.testing.assert_array_equal(down, want)


def test_floats_say_what_memory_they_take(tmp_path, capsys):
  write(tmp_path, "awq")
  hf.load(tmp_path, jnp.bfloat16)
  said = capsys.readouterr().err
  assert f"{tmp_path} has weights of awq, 0.00 GB, which take 0.00 GB of memory in bfloat16" in said


@pytest.mark.parametrize("name", ["awq", "gptq, 8 bits", "compressed-tensors, words of int4"])
@pytest.mark.parametrize("rounds", [False, True])
def test_products_are_those_of_the_values(name, rounds, tmp_path):
  """In C++ on a CPU, where zeros are steps of the scale."""
  O, K = 48, 192
  packed, _ = FORMATS[name].pack(np.random.default_rng(1), "x", O, K)
  few = read(tmp_path, packed, FORMATS[name].config)["x.weight"]
  w = few_bits.groups(few.numbers(), jnp.float32)
  x = jax.random.normal(jax.random.key(0), (5, K))
  got = jax.jit(linear)(x, groups.with_rounding(w) if rounds else w)
  exact = groups.rounded(x) if rounds else x
  want = np.asarray(exact, np.float64) @ np.asarray(dense(w), np.float64).T
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_experts_in_few_bits_are_those_of_their_values(tmp_path):
  write(tmp_path, MXFP4)
  plain, held = hf.load(tmp_path), hf.load(tmp_path, weights="native")
  tokens = jnp.arange(8, dtype=jnp.int32)[None]
  prefill = jax.jit(lambda params: target(plain.config).prefill(params, tokens, jnp.full(1, 8), 16))
  for a, b in zip(*(jax.tree.leaves(prefill(x.params)) for x in (plain, held)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ("name", "change", "words"),
  [
    ("awq", {"bits": 3}, r"quantization_config: `bits` must be between 4 and 4, got 3\."),
    ("awq", {"version": "gemv"}, r"`version` must be \"gemm\" or \"GEMM\", .*got 'gemv'\."),
    ("awq", {"own": 1}, r"`own` must be left out, as it is not read .*got 1\."),
    ("awq", {"group_size": 32}, r"down_proj\.scales has 5 groups, and 320 inputs in groups of 32"),
    ("gptq, 4 bits", {"bits": 3}, r"`bits` must be 4 or 8, got 3\."),
    ("gptq, 4 bits", {"checkpoint_format": "marlin"}, "must be one of gptq, gptq_v2, got 'marlin'"),
    ("fp8, blocks", {"weight_block_size": [64, 128]}, "has 2 scales for 192 .*of 64"),
    ("fp8, blocks", {"weight_block_size": [128]}, "must be two numbers above 0, got "),
    ("fp8, blocks", {"fmt": "e5m2"}, r"`fmt` must be \"e4m3\", .*got 'e5m2'\."),
    ("compressed-tensors, words of int4", {"format": "nvfp4-pack-quantized"},
     r"`format` must be one of pack-quantized, .*got 'nvfp4-pack-quantized'\."),
    ("compressed-tensors, words of int4", {"config_groups": {"a": {"weights": {"num_bits": 2}}}},
     r"config_groups: a: `num_bits` must be 4 or 8, .*got 2\."),
    ("compressed-tensors, words of int4", {"kv_cache_scheme": {"num_bits": 8}},
     r"`kv_cache_scheme` must be left out, "),
    ("compressed-tensors, words of int4", {"sparsity_config": {"format": "sparse-24-bitmask"}},
     "`sparsity_config` must be an object whose format is dense, got "),
    (MXFP4, {"group": 16}, r"`group` must be left out, "),
  ],
)  # fmt: skip
def test_what_a_format_refuses(name, change, words, tmp_path):
  write(tmp_path, name, change)
  with pytest.raises(ValueError, match=words):
    hf.load(tmp_path)


V = "model.layers.0.self_attn.v_proj."


@pytest.mark.parametrize(
  ("name", "tensor", "words"),
  [
    ("awq", "qzeros", r"lacks tensor .*v_proj\.qzeros, which .*v_proj\.qweight needs"),
    ("gptq, 4 bits", "scales", r"lacks tensor .*v_proj\.scales, which .*v_proj\.qweight needs"),
    ("fp8, blocks", "weight_scale_inv", r"lacks tensor .*v_proj\.weight_scale_inv, which .*weight"),
    (
      "compressed-tensors, words of int4",
      "weight_shape",
      "lacks .*weight_scale or .*shape",
    ),
    (
      "compressed-tensors, int8, a scale a row",
      "weight_scale",
      r"lacks .*v_proj\.weight_sc",
    ),
  ],
)
def test_an_absent_part_is_named(name, tensor, words, tmp_path):
  write(tmp_path, name, tensors=lambda x: {k: v for k, v in x.items() if k != V + tensor})
  with pytest.raises(ValueError, match=words):
    hf.load(tmp_path)


def test_biases_of_0_that_no_layer_has_are_left_out(tmp_path):
  bias = "model.layers.0.mlp.down_proj.bias"
  write(tmp_path, "gptq, 4 bits", tensors=lambda x: x | {bias: np.zeros(192, np.float16)})
  hf.load(tmp_path)
  write(tmp_path, "gptq, 4 bits", tensors=lambda x: x | {bias: np.ones(192, np.float16)})
  with pytest.raises(ValueError, match=r"has tensor .*down_proj\.bias, for which config\.json"):
    hf.load(tmp_path)


def test_groups_beyond_the_scales_are_named(tmp_path):
  name = "gptq, 4 bits, any order"
  write(tmp_path, name, tensors=lambda x: x | {V + "g_idx": x[V + "g_idx"] + 1})
  with pytest.raises(ValueError, match=r"of tensor .*v_proj\.g_idx must be 192 below 3, got"):
    hf.load(tmp_path)


def test_a_mesh_reads_the_same_values(tmp_path, mesh):
  from specjax.models import sharding

  write(tmp_path, "gptq, 4 bits, zeros")
  plain = hf.load(tmp_path).params
  spread = hf.load(tmp_path, mesh=mesh).params
  jax.tree.map(np.testing.assert_array_equal, spread, sharding.split(plain))


def in_torch(x):
  """A tensor of torch, which numpy's types of 8 and 16 bits are unknown to."""
  import torch

  others = {"bfloat16": ("i2", torch.bfloat16), "float8_e4m3fn": ("u1", torch.float8_e4m3fn)}
  plain, dtype = others.get(x.dtype.name, (None, None))
  return torch.tensor(x) if plain is None else torch.tensor(x.view(plain)).view(dtype)


def of_transformers(x, said):
  import torch
  from transformers.integrations.finegrained_fp8 import Fp8Dequantize

  weight, scale = x["x.weight"], x["x.weight_scale_inv"]
  return Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)


def of_compressed_tensors(x, said):
  from compressed_tensors import compressors
  from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

  weights = QuantizationArgs(**said["config_groups"]["group_0"]["weights"])
  kinds = {
    "pack-quantized": compressors.PackedQuantizationCompressor,
    "int-quantized": compressors.IntQuantizationCompressor,
    "float-quantized": compressors.FloatQuantizationCompressor,
  }
  state = {k.removeprefix("x."): v for k, v in x.items()}
  state["weight_scale"] = state["weight_scale"].float()  # the result's dtype
  scheme = QuantizationScheme(targets=["Linear"], weights=weights)
  return kinds[said["format"]].decompress(state, scheme)["weight"]


def of_auto_awq(x, said):
  from awq.utils.packing_utils import dequantize_gemm

  of = [x[f"x.{end}"] for end in ("qweight", "qzeros", "scales")]
  return dequantize_gemm(of[0], of[1], of[2].float(), 4, said["group_size"]).T


def of_gpt_oss(x, said):
  import torch
  from transformers.integrations.mxfp4 import convert_moe_packed_tensors

  return convert_moe_packed_tensors(x["x_blocks"], x["x_scales"], dtype=torch.float32)


THEIRS = {
  "fp8": ("transformers", of_transformers), "awq": ("awq", of_auto_awq),
  "compressed-tensors": ("compressed_tensors", of_compressed_tensors),
  "mxfp4": ("transformers", of_gpt_oss),
}  # fmt: skip


@pytest.mark.parametrize("name", [x for x in ALL if formats_page.program_of(x)])
def test_values_are_those_of_the_published_programs(name, tmp_path):
  pytest.importorskip("torch")
  said = {"quant_method": "mxfp4"} if name == MXFP4 else FORMATS[name].config
  module, program = THEIRS[said["quant_method"]]
  pytest.importorskip(module)
  rng = np.random.default_rng(2)
  pack = FORMATS[name].pack if name != MXFP4 else lambda *to: mxfp4(*to[:2], 3, *to[2:])
  tensors, _ = pack(rng, "x", 256, 384)
  ours = read(tmp_path, tensors, said)["x" if name == MXFP4 else "x.weight"].read(jnp.float32)
  theirs = program({k: in_torch(x) for k, x in tensors.items()}, said)
  np.testing.assert_array_equal(ours, theirs.numpy())


PEAK = """
import pathlib, sys, jax, jax.numpy as jnp
from specjax.checkpoints import gguf, hf
from specjax.eval.memory import size_of

load = gguf.load if sys.argv[1].endswith(".gguf") else hf.load

def resident(key):
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return 1024 * next(int(x.split()[1]) for x in lines if x.startswith(key))

jnp.zeros(3).block_until_ready()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
params = jax.block_until_ready(load(sys.argv[1], jnp.bfloat16).params)
print((resident("VmHWM") - before) / size_of(params))
"""


def write_gguf(file, raw, every):
  """Matrices in bfloat16, norms in float32."""
  theirs = gguf_layout.names("qwen3", raw["num_hidden_layers"])
  tensors = {
    theirs(name): x.view(np.uint8) if x.ndim > 1 else x.astype(np.float32)
    for name, x in every.items()
  }
  sizes = {ours: raw[key] for key, ours in gguf_writer.KEYS.items()}
  sizes |= {"attention.layer_norm_rms_epsilon": raw["rms_norm_eps"]}
  return gguf_writer.write(
    file, "qwen3", sizes, tensors, lambda name, w: Kind.BF16 if w.ndim > 1 else Kind.F32
  )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process took at most")
@pytest.mark.parametrize("name", ["bf16", "fp8, blocks", "gguf, bf16"])
def test_a_model_is_never_in_memory_twice(name, tmp_path):
  """At most 1.2 times the weights' own bytes, over 160 MB of them in bfloat16."""
  raw = QWEN | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8}
  if in_gguf := name.startswith("gguf"):  # where large matrices would take most
    raw |= {"vocab_size": 30000, "num_hidden_layers": 2}
  every = {}
  for part in (part for parts in parts_of(raw).values() for part in parts):
    if name[:3] == "fp8" and len(part.shape) == 2 and ".layers." in part.name:
      every[part.name] = np.zeros(part.shape, ml_dtypes.float8_e4m3fn)
      grid = [-(-n // 128) for n in part.shape]
      every[f"{part.name}_scale_inv"] = np.ones(grid, np.float32)
    else:
      every[part.name] = np.zeros(part.shape, ml_dtypes.bfloat16)
  said = {"quantization_config": FORMATS[name].config} if name[:3] == "fp8" else {}
  path = write_gguf(tmp_path / "m.gguf", raw, every) if in_gguf else tmp_path
  if not in_gguf:
    (tmp_path / "config.json").write_text(json.dumps(raw | said))
    save_file(every, tmp_path / "model.safetensors")
  found = subprocess.run(
    [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
  )
  assert float(found.stdout) <= 1.2


def test_the_page_of_formats_is_that_of_the_code(tmp_path):
  """`python tests/checkpoints/formats_page.py` writes it."""
  written = formats_page.rows(formats_page.PAGE.read_text())
  assert list(written) == [title for title, _ in formats_page.TITLES.values()]
  assert list(formats_page.TITLES) == ALL
  for name, (title, held) in formats_page.TITLES.items():
    said, beside, most = written[title]
    assert (said, beside) == (held, formats_page.beside(name)), name
    assert (held != formats_page.REFUSED) == is_held(name), name
    (directory := tmp_path / title.split()[0]).mkdir(exist_ok=True)
    assert compared(directory, name) <= 2 * most, name


@pytest.mark.parametrize("name", [x for x in FORMATS if is_held(x)])
def test_the_bits_of_a_weight_are_those_of_the_page(name, tmp_path):
  packed, exact = FORMATS[name].pack(np.random.default_rng(1), "x", 64, 128)
  few = read(tmp_path, packed, FORMATS[name].config)["x.weight"]
  leaves = jax.tree.leaves(few_bits.groups(few.numbers(), jnp.float32))
  said = float(formats_page.TITLES[name][1].split()[0])
  assert 8 * sum(x.nbytes for x in leaves) / exact.size == said
