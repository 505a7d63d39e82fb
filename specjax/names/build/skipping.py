"""Models whose layers skip some tokens, from names."""

from specjax.base import Params
from specjax.checkpoints import duo, routers
from specjax.checkpoints.files import read_config
from specjax.checkpoints.trained_for import Identity, checked
from specjax.models.config import Config
from specjax.models.skipping import SKIPPINGS, Skipping
from specjax.names import grammar

# Those with weights: (what reads them from a directory, what trains them).
TRAINED = {"first": (routers.load, "train.skipping"), "duo": (duo.load, "train.duo")}


def skipping(
  name: str, config: Config, params: Params, model: Identity | None = None
) -> tuple[Skipping, Params]:
  """(what the name says for a model, the weights that go with it).

  Args:
    model: whose weights these are, which the file of trained ones is asked about.

  Raises:
    ValueError: an unknown name or number, a model of another family, or one whose weights do not
      fit those that the name gives in brackets.
  """
  if not isinstance(config, Config):
    raise ValueError(
      f"`skipping` must be None for a model that is not of the Llama family, got {name!r}."
    )
  part = grammar.parse_one("skipping", name)
  builder = grammar.look_up("skipping", part, SKIPPINGS)
  canonical, numbers = grammar.bind("skipping", part, grammar.parameters(builder))
  if part.name in TRAINED:
    read, trainer = TRAINED[part.name]
    path = grammar.text_of(part, "trained routers", "DIRECTORY", f", see specjax.{trainer}")
    models = {} if model is None else {"target": model}
    with checked(canonical, read_config(path, "part with routers"), **models):
      params = read(path, config, params)
  return builder(config.layers, **numbers)._replace(name=canonical), params
