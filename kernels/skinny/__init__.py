"""Products of a few rows with a large matrix, in C++ for CPUs."""

from specjax.kernels.skinny.api import group_product, product, serves, serves_groups

__all__ = ["group_product", "product", "serves", "serves_groups"]
