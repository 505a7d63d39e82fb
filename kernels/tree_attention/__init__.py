"""Tree attention: nodes attend to a cached prefix and to each other."""

from specjax.kernels.tree_attention.api import (
  Served,
  default_implementation,
  paged_attention,
  reads_blocks,
  refusals,
  tree_attention,
)
from specjax.kernels.tree_attention.paged import PAGE, Paged, gathered
from specjax.kernels.tree_attention.quantised import Quantised, dequantise, quantise

__all__ = [
  "PAGE", "Paged", "Quantised", "Served", "default_implementation", "dequantise", "gathered",
  "paged_attention", "quantise", "reads_blocks", "refusals", "tree_attention",
]  # fmt: skip
