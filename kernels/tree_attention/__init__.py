"""Tree attention: nodes attend to a cached prefix and to each other."""

from specjax.kernels.tree_attention.api import (
  Served,
  default_implementation,
  reads_blocks,
  refusals,
  tree_attention,
)
from specjax.kernels.tree_attention.quantised import Quantised, dequantise, quantise

__all__ = [
  "Quantised", "Served", "default_implementation", "dequantise", "quantise", "reads_blocks",
  "refusals", "tree_attention",
]  # fmt: skip
