"""Heads whose matrices have 8 or 4 bits in memory, where products of those are quicker."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.base import Params
from specjax.kernels import skinny
from specjax.models import groups, panels
from specjax.models.int8 import quantise
from specjax.models.weights import Matrix, count_parameters, has_own_form

_LEAST = 2**14  # numbers of a matrix that is worth it
LARGE = 2**24  # numbers of a head that no cache of a CPU holds as floats


def narrow(params: Params, weights: str, activations: str) -> Params:
  """A head's params with matrices [O, K] in few bits, for a target of such `weights` and
  `activations`, see `names.load`.

  Beside a target of few bits, a head of floats would take as long as the target: all its matrices
  have 8 bits, and where the target's rows are rounded, so are the head's. That is another head,
  which guesses alike; a verifier's text is the same with any. A large head on a CPU is read from
  memory for every guess: there it has 4 bits and rounded rows beside floats, too.
  """
  floats = weights in ("float", "bfloat16")
  from_memory = skinny.available() and count_parameters(params) >= LARGE
  rounds = from_memory or activations == "int8"

  def each(x: Any) -> Matrix:
    large = not has_own_form(x) and x.ndim == 2 and x.size >= _LEAST
    if not large or not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    if not skinny.available() or x.dtype != jnp.float32 or x.shape[1] % groups.GROUP:
      return x if floats else quantise(x, x.dtype)
    w = groups.quantise(x, x.dtype) if from_memory else groups.of_rows(quantise(x, jnp.float16))
    return panels.packed(dataclasses.replace(w, rounds=True)) if rounds else w

  if floats and not from_memory:
    return params
  return jax.tree.map(each, params, is_leaf=has_own_form)
