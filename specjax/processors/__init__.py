"""Processors say what the text so far does to the target's logits, or when it ends a text."""

from specjax.processors.automaton import Automaton, constraint, stop_text
from specjax.processors.penalties import Penalties, penalties

__all__ = ["Automaton", "Penalties", "constraint", "penalties", "stop_text"]
