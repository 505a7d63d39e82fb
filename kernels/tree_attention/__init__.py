"""Attention of tree nodes over a cached prefix and each other."""

from specjax.kernels.tree_attention.api import tree_attention

__all__ = ["tree_attention"]
