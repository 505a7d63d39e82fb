"""Products of a few rows with a large matrix, in C++ for CPUs."""

from specjax.kernels.skinny.api import product, serves

__all__ = ["product", "serves"]
