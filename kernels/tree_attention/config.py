"""Block sizes of the kernels: those allowed, and the one that is measured or else guessed."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import Array

from specjax.kernels.platform import device
from specjax.kernels.tree_attention import measured
from specjax.kernels.tree_attention.quantised import Cached

GPU_TILE = 64  # rows of a head in one product, wgmma's
GPU_BLOCK = 64  # cached rows of one


class AttentionShape(NamedTuple):
  """The shape of a call, as far as the size of its blocks depends on it."""

  capacity: int  # S
  width: int  # C
  itemsize: int  # bytes of a cached number
  rows: int  # how many rows share a head's keys

  @classmethod
  def of(cls, q: Array, k_cache: Cached) -> "AttentionShape":
    """The shape of a call of `tree_attention`."""
    values = jax.tree.leaves(k_cache)[0]
    K, S, C = values.shape[1:]
    return cls(S, C, values.dtype.itemsize, q.shape[1] // K * q.shape[2])

  def of_class(self, implementation: str) -> str:
    """The class of calls with one measured size. Rows do not count, so all trees add alike."""
    capacity = 1 << (self.capacity - 1).bit_length()
    return f"{implementation}, {capacity} rows of {self.width}, {self.itemsize} bytes each"


def lanes(width: int) -> int:
  """The numbers that a row of `width` takes up in a TPU's memory, a multiple of 128."""
  return -(-width // 128) * 128


def nodes_fit(shape: AttentionShape, nodes: int, columns: int = 0) -> bool:
  """Whether the rows of `nodes` fit on a TPU beside a block of the prefix.

  Two buffers each of queries, outputs, maxima, sums and `columns` (static) of a number for each
  row, and what is carried from block to block, stay below 11 MB together, and the scores of the
  tree below 4 MB, beside columns 3. Calls at these bounds compile for v5e, where a kernel may use
  16 MB; some a little above do not.
  """
  width = lanes(shape.width)
  row = 4 * width * max(shape.itemsize, 2) + (6 + 2 * columns) * 128 * 4 + 4 * width
  scores = (3 if columns else 4) << 20
  return shape.rows * row <= 11 << 20 and 4 * shape.rows * nodes <= scores


def sizes(implementation: str, shape: AttentionShape) -> Sequence[int]:
  """The numbers of cached rows per block that a call may have, the best guess first.

  There are none where no block fits. On TPU blocks are large, so that the fixed time of a step is
  small beside that of its bytes. Two buffers of keys and of values, and the scores and their
  weights, stay below 8 MB together, half of what a kernel may use on the smallest chips. On CPU
  small blocks stay in the caches, and read less past the end of a text.
  """
  allowed: Sequence[int] = (128, 256, 512, 1024, 2048)
  if implementation == "pallas_tpu":
    row = 4 * lanes(shape.width) * shape.itemsize + 8 * shape.rows
    allowed = [size for size in (1024, 512, 256, 128) if size * row <= 8 << 20]
  return list(dict.fromkeys(min(size, shape.capacity) for size in allowed))


def block(implementation: str, shape: AttentionShape) -> int:
  """Cached rows per block: the size measured on such a device, else the best guess."""
  allowed = sizes(implementation, shape)
  of_device = measured.read(measured.path()).get(device().device_kind, {})
  best = of_device.get(shape.of_class(implementation), allowed[0])
  return best if best in allowed else allowed[0]
