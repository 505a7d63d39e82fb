"""Stacks of matrices in MXFP4: 4 bits of a float, 32 inputs with a power of 2, as GPT-OSS has them.

OCP Microscaling Formats 1.0, section 5.3: e2m1 numbers, two a byte, the lower half first, and
scales 2^(byte - 127). Twice an e2m1 number is a whole one, so that 5 bits hold it exactly.

Letters: X experts, O outputs, K inputs, N = K / 32.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specjax.checkpoints.few_bits import Few, Numbers, groups_of, of_numbers
from specjax.checkpoints.harmless import Harmless, known_keys
from specjax.checkpoints.stored import Stored

_KEYS: Harmless = {"quant_method": ..., "modules_to_not_convert": ..., "dequantize": ...}
_ZERO = 12  # of the doubled numbers, from -12 to 12
_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8) + _ZERO


def _numbers(blocks: Stored, scales: Stored) -> Callable[[], Numbers]:
  X, O, N, _ = blocks.shape

  def read() -> Numbers:
    own = np.empty((X, O, 32 * N), np.uint8)
    for x in range(X):
      (data,) = blocks.read((slice(x, x + 1),))
      own[x] = _DOUBLED[np.stack([data & 15, data >> 4], -1)].reshape(O, -1)
    halves = np.ldexp(np.float32(1), scales.read().astype(np.int32) - 128)
    return Numbers(own, 5, np.full((1, 1, 1), _ZERO, np.int16), halves, groups_of(32 * N, 32))

  return read


def find(stored: Mapping[str, Stored], said: Mapping[str, Any], where: str) -> dict[str, Few]:
  """The stacks of a checkpoint, which lie [X, K, O] in files of floats."""
  known_keys(said, where, (), _KEYS)
  found = {}
  for name, blocks in stored.items():
    base = name.removesuffix("_blocks")
    scales = stored.get(f"{base}_scales")
    if base == name or len(blocks.shape) != 4:
      continue
    if scales is None or scales.shape != blocks.shape[:3] or blocks.shape[3] != 16:
      raise ValueError(f"tensors {name} and {base}_scales are no blocks of 16 bytes with a scale.")
    X, O, N, _ = blocks.shape
    files = name, f"{base}_scales"
    found[base] = of_numbers((X, 32 * N, O), files, _numbers(blocks, scales), turned=True)
  return found
