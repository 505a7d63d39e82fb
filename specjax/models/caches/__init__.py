"""Compressed and selective caches of a causal model, one file each."""

from collections.abc import Callable

from specjax.models.caches.actqkv import actqkv
from specjax.models.caches.base import CacheKind, Prefix, Queries
from specjax.models.caches.gear import gear
from specjax.models.caches.int8 import int8
from specjax.models.caches.keyformer import keyformer
from specjax.models.caches.minference import minference
from specjax.models.caches.mustafar import mustafar
from specjax.models.caches.sinks import sinks
from specjax.models.caches.token_select import token_select

__all__ = ["CACHES", "CacheKind", "Prefix", "Queries"]

CACHES: dict[str, Callable[..., CacheKind]] = {
  "int8": int8, "gear": gear, "mustafar": mustafar, "keyformer": keyformer, "sinks": sinks,
  "token_select": token_select, "actqkv": actqkv, "minference": minference,
}  # fmt: skip
