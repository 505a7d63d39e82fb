"""Searches, samples and pairs of models: ways to write a text beside the one loop."""

from collections.abc import Callable

from specjax.search.adadec import adadec
from specjax.search.beam_search import beam_search
from specjax.search.best_of import best_of
from specjax.search.by_bytes import by_bytes
from specjax.search.cntp import cntp
from specjax.search.constrained import constrained
from specjax.search.navigation import navigated
from specjax.search.pearl_decoder import PearlDecoder
from specjax.search.superposed import superposed
from specjax.search.switching import switching

__all__ = [
  "SEARCHES", "PearlDecoder", "adadec", "beam_search", "best_of", "by_bytes", "cntp",
  "constrained", "navigated", "superposed", "switching",
]  # fmt: skip

SEARCHES: dict[str, Callable] = {
  "best_of": best_of, "beam_search": beam_search, "adadec": adadec, "cntp": cntp,
  "constrained": constrained, "by_bytes": by_bytes, "navigated": navigated,
  "superposed": superposed, "switching": switching, "PearlDecoder": PearlDecoder,
}  # fmt: skip
