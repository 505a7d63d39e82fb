"""Attention of tree nodes over a cached prefix and each other."""

from specjax.kernels.tree_attention.api import reads_blocks, tree_attention
from specjax.kernels.tree_attention.quantised import Quantised, dequantise, quantise

__all__ = ["Quantised", "dequantise", "quantise", "reads_blocks", "tree_attention"]
