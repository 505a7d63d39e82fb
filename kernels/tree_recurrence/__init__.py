"""Rules of recurrent layers over trees, in one kernel for GPUs."""

from specjax.kernels.tree_recurrence.api import Definition, evaluate, refusal

__all__ = ["Definition", "evaluate", "refusal"]
