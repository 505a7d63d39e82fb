"""Attention of tree nodes over a cached prefix and each other."""

from specjax.kernels.tree_attention.api import (
  Served,
  default_implementation,
  reads_blocks,
  refusals,
  tree_attention,
)
from specjax.kernels.tree_attention.quantised import Quantised, dequantise, quantise

__all__ = [
  "Quantised",
  "Served",
  "default_implementation",
  "dequantise",
  "quantise",
  "reads_blocks",
  "refusals",
  "tree_attention",
]
