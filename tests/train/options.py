"""Options of a trainer with others in place, and as words of a command line."""

import dataclasses

from specjax.heads import HEADS

INNER = ("training", "network")


def changed(config, **changes):
  """The options with some changed; those of `training` and `network` are named like the rest."""
  for name in INNER:
    inner = getattr(config, name, None)
    own = {k: changes.pop(k) for k in tuple(changes) if inner is not None and hasattr(inner, k)}
    changes |= {name: dataclasses.replace(inner, **own)} if own else {}
  return dataclasses.replace(config, **changes)


def words(config) -> list[str]:
  """The options as they are typed; those of a head come last, after its name."""
  said, head = [], []
  for field in dataclasses.fields(config):
    value, name = getattr(config, field.name), field.name.replace("_", "-")
    if field.name == "head":
      head = [next(n for n, (_, kind) in HEADS.items() if kind is type(value)), *words(value)]
    elif field.name in INNER:
      said += words(value)
    elif isinstance(value, bool):
      said.append(f"--{name}" if value else f"--no-{name}")
    elif value is not None and value != ():
      said += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
  return said + head
