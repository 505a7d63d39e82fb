"""The table says which tree has which name."""

from specjax.trees.beam import Beam
from specjax.trees.drawn import IID, Mixed, WithoutReplacement
from specjax.trees.dynamic import Dynamic
from specjax.trees.dyspec import DySpec
from specjax.trees.graph import Graph
from specjax.trees.static import Static
from specjax.trees.stochastic_beam import StochasticBeam

# Each is a frozen dataclass that is a `trees.base.Tree`; its fields are whole numbers, numbers, or
# the rank paths `choices`, and are what a name or a file says of it.
TREES: dict[str, type] = {
  "static": Static,
  "dynamic": Dynamic,
  "beam": Beam,
  "graph": Graph,
  "iid": IID,
  "without_replacement": WithoutReplacement,
  "mixed": Mixed,
  "stochastic_beam": StochasticBeam,
  "dyspec": DySpec,
}
