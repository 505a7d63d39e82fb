"""Block sizes: what is allowed, and what is a good guess. Kernels take what they are given."""

import dataclasses

LANES = 128


@dataclasses.dataclass(frozen=True)
class Blocks:
  """How the prefix is cut.

  Attributes:
    prefix: cached rows per block, a multiple of 128 that divides the capacity, or all of it.
  """

  prefix: int

  def check(self, capacity: int) -> None:
    """ValueError where the kernel cannot cut a cache of `capacity` rows so."""
    whole = self.prefix == capacity
    if not whole and (self.prefix % LANES or capacity % self.prefix):
      raise ValueError(
        f"prefix={self.prefix}: accepted is the capacity {capacity}, or a multiple of {LANES} that "
        "divides it."
      )


def tpu_blocks(capacity: int, width: int, itemsize: int) -> Blocks | None:
  """Large blocks, so that a step's fixed cost is small beside its bytes; None if none fits.

  Two buffers of keys and of values stay below 8 MB, half of what a kernel may use on the smallest
  chips.

  Args:
    capacity: S.
    width: C.
    itemsize: bytes of a cached number.
  """
  for prefix in (1024, 512, 256, 128):
    if capacity % prefix == 0 and 4 * prefix * width * itemsize <= 8 << 20:
      return Blocks(prefix)
  return Blocks(capacity) if capacity <= 1024 else None


def xla_block(capacity: int) -> int:
  """Cached rows per step of the XLA path."""
  return min(capacity, 256)
