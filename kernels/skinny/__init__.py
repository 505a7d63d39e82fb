"""Products of a few rows with a large matrix, in C++ for CPUs."""

from specjax.kernels.skinny.api import (
  group_product,
  product,
  rounded_product,
  serves,
  serves_groups,
  serves_rounded,
)

__all__ = [
  "group_product", "product", "rounded_product", "serves", "serves_groups", "serves_rounded",
]  # fmt: skip
