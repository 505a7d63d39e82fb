"""The zoo's model cut to its first layer: its tokenizer and its heads, in quick programs.

Its texts make no sense. Tests that share it, and the shapes of their batches, share programs.
"""

import dataclasses
import functools

from specjax.names.load import Model, load

LAYERS = 1


class Cut(Model):
  @functools.cached_property
  def identity(self):
    """That of the whole model, so that its heads are accepted."""
    return load().identity


@functools.cache
def cut() -> Model:
  whole = load()
  config = dataclasses.replace(whole.config, layers=LAYERS)
  dropped = {f"layer_{i}" for i in range(LAYERS, whole.config.layers)}
  inner = {name: x for name, x in whole.params["params"].items() if name not in dropped}
  fields = {x.name: getattr(whole, x.name) for x in dataclasses.fields(whole)}
  return Cut(**{**fields, "config": config, "params": {**whole.params, "params": inner}})
