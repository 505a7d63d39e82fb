"""Token trees are shapes that any head or draft model fills; each has a file of its own.

A new tree is a file with a class, see `trees.base.Tree`, and a row of TREES in `files.py`.
"""

from specjax.trees.base import Guesser, Sampling, Step, Tree
from specjax.trees.beam import Beam
from specjax.trees.drawn import IID, Mixed, WithoutReplacement
from specjax.trees.dynamic import Dynamic
from specjax.trees.files import TREES, build, has_paths, load, save
from specjax.trees.frontier import DySpec, StochasticBeam
from specjax.trees.graph import Graph
from specjax.trees.static import Static

__all__ = [
  "IID", "TREES", "Beam", "DySpec", "Dynamic", "Graph", "Guesser", "Mixed", "Sampling", "Static",
  "Step", "StochasticBeam", "Tree", "WithoutReplacement", "build", "has_paths", "load", "save",
]  # fmt: skip
