"""Products of a few rows with a large matrix, in C++ for CPUs."""

from specjax.kernels.skinny.api import (
  available,
  group_product,
  product,
  rounded_product,
  serves,
  serves_few_bits,
)

__all__ = [
  "available", "group_product", "product", "rounded_product", "serves", "serves_few_bits",
]  # fmt: skip
