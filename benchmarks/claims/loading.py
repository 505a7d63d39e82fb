r"""Is a model ever in memory twice while it is read?

    JAX_PLATFORMS=cpu python benchmarks/claims/loading.py

A Llama of about `gigabytes` in bfloat16 is written in parts, to a Hugging Face directory and to a
GGUF file, and each is read by a process of its own: in bfloat16, and widened to float32. What the
operating system says the process took at most, from before the reading on, is divided by the bytes
of the weights that it then holds. Linux only.
"""

import dataclasses
import json
import math
import multiprocessing
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import gguf as package
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from specjax import checks, command_line
from specjax.checkpoints import families, gguf, gguf_layout, hf
from specjax.eval import memory, report, table
from specjax.models.config import Config as ModelConfig

MODEL = ModelConfig(
  vocab_size=64000, width=2048, layers=8, heads=16, kv_heads=4, head_dim=128, mlp_width=5632
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  gigabytes: float = 1.0  # of the weights in bfloat16, about
  part: int = 300  # MB of a part of the file
  out: str = "results/loading"  # directory of the report


def tensors(config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
  """Names and random values in bfloat16."""
  bits = np.random.default_rng(0).integers(0x3000, 0x3F00, 2**22, np.uint16)
  for parts in families.FAMILIES["llama"].layout(config).values():
    for part in parts:
      values = np.resize(bits, math.prod(part.shape)).reshape(part.shape)
      yield part.name, values.view(ml_dtypes.bfloat16)


def write_directory(config: ModelConfig, most: int, directory: pathlib.Path) -> pathlib.Path:
  """In parts of at most so many bytes, but for one tensor."""
  directory.mkdir()
  raw = families.to_json(config)
  (directory / "config.json").write_text(json.dumps(raw))
  parts: list[dict[str, np.ndarray]] = [{}]
  for name, x in tensors(config):
    if parts[-1] and sum(each.nbytes for each in parts[-1].values()) + x.nbytes > most:
      parts.append({})
    parts[-1][name] = x
  files = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
  for file, part in zip(files, parts, strict=True):
    save_file(part, directory / file)
  where = {name: file for file, part in zip(files, parts, strict=True) for name in part}
  index = {"metadata": {}, "weight_map": where}
  (directory / "model.safetensors.index.json").write_text(json.dumps(index))
  return directory


def write_gguf(config: ModelConfig, most: int, file: pathlib.Path) -> pathlib.Path:
  """The first of its parts."""
  writer = package.GGUFWriter(file, "llama", split_max_size=most)
  writer.add_block_count(config.layers)
  writer.add_embedding_length(config.width)
  writer.add_feed_forward_length(config.mlp_width)
  writer.add_head_count(config.heads)
  writer.add_head_count_kv(config.kv_heads)
  writer.add_context_length(config.max_length)
  writer.add_layer_norm_rms_eps(config.norm_epsilon)
  writer.add_vocab_size(config.vocab_size)
  theirs = gguf_layout.names("llama", config.layers)
  for name, x in tensors(config):
    if x.ndim == 1:
      writer.add_tensor(theirs(name), x.astype(np.float32))
    else:
      kind = package.GGMLQuantizationType.BF16
      writer.add_tensor(theirs(name), x.view(np.uint8), raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return min(file.parent.glob("*.gguf"))


def read(path: pathlib.Path, dtype: str) -> tuple[int, int]:
  """(bytes of the weights, bytes that reading them took at most)."""
  load = gguf.load if path.suffix == ".gguf" else hf.load
  jnp.zeros(3).block_until_ready()
  pathlib.Path("/proc/self/clear_refs").write_text("5")
  before = memory.resident("VmRSS")
  params = jax.block_until_ready(load(path, jnp.dtype(dtype)).params)
  return memory.size_of(params), memory.resident("VmHWM") - before


def main(config: Config) -> None:
  report.check(config, "part")
  checks.number("gigabytes", config.gigabytes, above=0)
  layers = max(1, round(MODEL.layers * config.gigabytes))
  directory = report.directory(config.out)
  cells: list[dict[str, Any]] = []
  rows = []
  for tied in (True, False):
    model = dataclasses.replace(MODEL, layers=layers, tied=tied)
    with tempfile.TemporaryDirectory(dir=directory) as place:
      whole = pathlib.Path(place)
      made = (write_directory(model, config.part * 10**6, whole / "directory"),
              write_gguf(model, config.part * 10**6, whole / "m.gguf"))  # fmt: skip
      for path in made:
        for dtype in ("bfloat16", "float32"):
          with multiprocessing.get_context("spawn").Pool(1) as pool:
            held, taken = pool.apply(read, (path, dtype))
          form = "GGUF" if path.suffix == ".gguf" else "safetensors"
          cells.append({"form": form, "tied": tied, "dtype": dtype, "held": held, "taken": taken})
  for cell in cells:
    rows.append({
      "file": cell["form"], "LM head": "tied" if cell["tied"] else "its own",
      "weights in memory": cell["dtype"], "MB": f"{cell['held'] / 1e6:,.0f}",
      "at most, over these": f"{cell['taken'] / cell['held']:.3f}",
    })  # fmt: skip
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
