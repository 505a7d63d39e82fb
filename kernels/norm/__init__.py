"""Rows scaled to a root mean square of 1, in C++ for CPUs."""

from specjax.kernels.norm.api import serves, unit

__all__ = ["serves", "unit"]
