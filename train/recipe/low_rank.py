"""What is trained of a finished model: all of its weights, or low-rank updates of them alone.

A loss need not know which: it takes what is trained and what is frozen.
"""

import jax
from jax.typing import DTypeLike

from specjax.base import Params
from specjax.models import lora
from specjax.sampling import new_key


def begin(params: Params, rank: int, seed: int) -> tuple[Params, Params]:
  """(what is trained, what is frozen): with rank 0 all weights, and nothing."""
  if rank == 0:
    return params, {}
  return lora.start(new_key(seed), params, rank), params


def weights(trained: Params, frozen: Params, dtype: DTypeLike) -> Params:
  """The weights in a loss in the dtype of its arithmetic, with updates beside the products.

  Frozen weights have that dtype already, see `cast`: they are rounded once, and not in every step.
  """
  trained = cast(trained, dtype)
  return lora.gate(frozen, trained, 0) if frozen else trained


def cast(params: Params, dtype: DTypeLike) -> Params:
  """Weights in another dtype."""
  return jax.tree.map(lambda x: x.astype(dtype), params)


def merged(trained: Params, frozen: Params) -> Params:
  """The weights that are saved."""
  return lora.merge(frozen, trained) if frozen else trained
