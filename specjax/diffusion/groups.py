"""Slots of a window in groups, so that few of their logits are in memory at a time.

A canvas of 256 slots has 67 million logits for a vocabulary of 262144, in each row.

Letters: those of `base`; G groups.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

TOGETHER = 2**26  # logits that are in memory at a time, 268 MB


def groups_of(B: int, W: int, V: int) -> int:
  """G, the fewest groups of equally many slots that have no more than `TOGETHER` logits each; W
  where there are none."""
  return next((n for n in range(1, W) if W % n == 0 and B * W // n * V <= TOGETHER), W)


def by_groups(groups: int, run: Callable[..., Any], *slots: Array) -> Any:
  """run(*slots), all with arrays [B, W, ..], for one of G groups after the other."""

  def cut(x: Array) -> Array:
    return jnp.moveaxis(x.reshape(len(x), groups, -1, *x.shape[2:]), 1, 0)

  def joined(x: Array) -> Array:
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(len(x), -1, *x.shape[3:])

  found = jax.lax.map(lambda part: run(*part), jax.tree.map(cut, slots))
  return jax.tree.map(joined, found)
