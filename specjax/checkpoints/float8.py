"""Matrices of FP8 (e4m3) and their scales: one for all, one a row, or one for each block.

NAME.weight [O, K] has bytes, and NAME.weight_scale_inv or NAME.weight_scale what they are
multiplied with, whatever the first is called (DeepSeek-AI 2024, arXiv 2412.19437, section 3.3).
Such floats are no whole numbers with a scale, so that they are widened.

Letters: O outputs, K inputs.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax.checkpoints.few_bits import Few, by_rows, table
from specjax.checkpoints.harmless import Harmless, known_keys
from specjax.checkpoints.stored import Stored

_SCALES = (".weight_scale_inv", ".weight_scale")
# Activations stay floats, so that their scales say nothing.
OF_ACTIVATIONS = (".input_scale", ".activation_scale", ".input_zero_point", ".output_scale")
_KEYS: Harmless = {
  "quant_method": ..., "activation_scheme": ("dynamic", "static"), "fmt": ("e4m3",),
  "scale_fmt": ..., "modules_to_not_convert": ..., "ignored_layers": ..., "dequantize": ...,
  "modules_to_convert": ...,
}  # fmt: skip


def of_each(tensor: str, count: int, pieces: int, size: int) -> np.ndarray:
  """i[count]: which of so many scales an output or input has; `size` is that of a block."""
  size = count if pieces == 1 else 1 if pieces == count else size
  if -(-count // size) != pieces:
    raise ValueError(
      f"tensor {tensor} has {pieces} scales for {count} numbers in blocks of {size}."
    )
  return np.arange(count) // size


def matrix(name: str, stored: Mapping[str, Stored], blocks: tuple[int, int]) -> Few:
  """The values of a tensor of bytes; ValueError where it has no scale, or no scale of its shape."""
  base, weight = name.removesuffix(".weight"), stored[name]
  of_scale = next((base + end for end in _SCALES if base + end in stored), None)
  if of_scale is None or len(weight.shape) != 2:
    raise ValueError(f"the checkpoint lacks tensor {base}{_SCALES[0]}, which {name} needs.")
  scale, (O, K) = stored[of_scale], weight.shape
  grid = (1,) * (2 - len(scale.shape)) + scale.shape
  row, column = (of_each(of_scale, *each) for each in zip((O, K), grid[-2:], blocks, strict=True))

  def values(dtype: Any) -> np.ndarray:
    worth, own = table(jnp.dtype(jnp.float8_e4m3fn)), weight.read().view(np.uint8)
    factor = scale.read().astype(np.float32).reshape(grid)
    return by_rows((O, K), dtype, lambda rows: worth[own[rows]] * factor[row[rows]][:, column])

  others = tuple(base + end for end in OF_ACTIVATIONS)
  return Few((O, K), (name, of_scale, *others), values, None)


def find(stored: Mapping[str, Stored], said: Mapping[str, Any], where: str) -> dict[str, Few]:
  """The matrices of a checkpoint; ValueError for a key that is not read."""
  known_keys(said, where, ("weight_block_size",), _KEYS)
  blocks = checks.fields_of(said, {"weight_block_size": tuple[int, ...]}, where).get(
    "weight_block_size", (1, 1)
  )
  if len(blocks) != 2 or min(blocks) < 1:
    checks.refuse(f"{where}: weight_block_size", list(blocks), "two numbers above 0")
  return {name: matrix(name, stored, blocks) for name, x in stored.items() if x.dtype == "F8_E4M3"}
