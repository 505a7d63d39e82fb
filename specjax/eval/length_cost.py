"""What a draft token costs on this device: the numbers of the draft-length policy `marginal`."""

from specjax.draft_length.marginal import marginal
from specjax.drafters.models.draft_model import draft_model
from specjax.eval import draft_cost, verify_cost
from specjax.names import grammar
from specjax.names.build.drafters import load_small
from specjax.names.grammar import Part
from specjax.names.load import Model

DEPTHS = 1, 5  # the cost of a token is the slope between drafts of these lengths
OPEN = Part("marginal")  # without numbers
COSTS = "draft_cost", "node_cost"


def priced(model: Model, name: str, context: int, batch: int = 1) -> str:
  """The name of a draft model whose policy is `marginal` without numbers, with those measured here.

  Any other name stays as it is. `context` tokens are cached during the measurement.
  """
  parts = grammar.parse("drafter", name) if len(grammar.alternatives(name)) == 1 else ()
  if len(parts) != 1 or parts[0].name != "draft_model" or OPEN not in parts[0].decorations:
    return name
  (part,) = parts
  small = load_small(model, part)
  drafters = [draft_model(small.drafting, depth + 1) for depth in DEPTHS]
  drafts = draft_cost.measure(
    model.target, model.params, drafters, small.params, context, batch=batch
  )
  nodes = (1, *(1 + depth for depth in DEPTHS))
  one, *passes = verify_cost.measure(
    model.target, model.params, context, batch=batch, nodes=nodes
  ).seconds
  step = one * (DEPTHS[1] - DEPTHS[0])
  costs = [round(max((long - short) / step, 0.001), 3) for short, long in (drafts, passes)]
  given = dict(zip(COSTS, costs, strict=True))
  named = grammar.labelled(OPEN.name, grammar.parameters(marginal), given)
  own = [named if x == OPEN else x for x in part.decorations]
  return grammar.show([part._replace(decorations=tuple(own))])
