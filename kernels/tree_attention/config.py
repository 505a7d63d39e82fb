"""Block sizes: what is allowed, and what is a good guess. Kernels take what they are given."""

import dataclasses

LANES = 128


@dataclasses.dataclass(frozen=True)
class Blocks:
  """How the prefix is cut.

  Attributes:
    prefix: cached rows per block, a multiple of 128 or the whole capacity.
  """

  prefix: int

  def check(self, capacity: int) -> None:
    """ValueError where the kernel cannot cut a cache of `capacity` rows so."""
    if self.prefix % LANES and self.prefix != capacity:
      raise ValueError(
        f"prefix={self.prefix}: accepted is a multiple of {LANES}, or the capacity {capacity}."
      )


def tpu_blocks(capacity: int, width: int, itemsize: int, rows: int) -> Blocks | None:
  """Large blocks, so that a step's fixed cost is small beside its bytes; None if none fits.

  Two buffers of keys and of values, and the scores and their weights, stay below 8 MB together,
  half of what a kernel may use on the smallest chips.

  Args:
    capacity: S.
    width: C.
    itemsize: bytes of a cached number.
    rows: that share a head's keys.
  """
  for prefix in (1024, 512, 256, 128):
    if prefix * (4 * width * itemsize + 8 * rows) <= 8 << 20:
      return Blocks(min(prefix, capacity))
  return None


def xla_block(capacity: int) -> int:
  """Cached rows per step of the XLA path."""
  return min(capacity, 256)
