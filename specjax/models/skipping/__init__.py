"""Which layers of a causal model read a token, one file each."""

from collections.abc import Callable

from specjax.models.skipping.base import Skipping
from specjax.models.skipping.duo import duo
from specjax.models.skipping.first import first
from specjax.models.skipping.skip_decode import skip_decode

__all__ = ["SKIPPINGS", "Skipping"]

SKIPPINGS: dict[str, Callable[..., Skipping]] = {
  "skip_decode": skip_decode,
  "first": first,
  "duo": duo,
}
