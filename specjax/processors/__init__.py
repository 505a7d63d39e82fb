"""Processors change the target's logits by the text so far, or say where a text ends."""

from collections.abc import Callable

from specjax.base import Processor
from specjax.processors.automaton import Automaton, constraint, stop_text
from specjax.processors.penalties import Penalties, penalties

__all__ = ["PROCESSORS", "Automaton", "Penalties", "constraint", "penalties", "stop_text"]

PROCESSORS: dict[str, Callable[..., Processor]] = {
  "penalties": penalties, "constraint": constraint, "stop_text": stop_text,
}  # fmt: skip
