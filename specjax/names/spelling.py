"""What was meant by a name that does not exist; without jax, for the command line."""

import difflib
from collections.abc import Iterable


def nearest(given: str, names: Iterable[str]) -> str:
  """Asks whether a name was meant that is almost the one given; "" where there is none."""
  near = difflib.get_close_matches(given, names, 1, 0.7)
  return f" (did you mean {near[0]}?)" if near else ""
