"""Processors change the target's logits by the text so far, or say where a text ends."""

from collections.abc import Callable

from specjax.base import Processor
from specjax.processors.automaton import Automaton, constraint, stop_text
from specjax.processors.grammar import grammar
from specjax.processors.momentum import Momentum, momentum
from specjax.processors.penalties import Penalties, penalties

__all__ = [
  "PROCESSORS", "Automaton", "Momentum", "Penalties", "constraint", "grammar", "momentum",
  "penalties", "stop_text",
]  # fmt: skip

PROCESSORS: dict[str, Callable[..., Processor]] = {
  "penalties": penalties, "momentum": momentum, "constraint": constraint, "json_schema": grammar,
  "grammar": grammar, "stop_text": stop_text,
}  # fmt: skip
