"""What is trained of a finished model: all of its weights, or low-rank updates of them alone.

A loss need not know which: it takes what is trained and what is frozen.
"""

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
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


def of_head(key: Array, params: Params, rank: int) -> Params:
  """Updates of a head that are 0: {.. matrix: {"down" f32[.., rank, in], "up" f32[.., out, rank]}}.

  They are of all arrays [.., out, in] that have more numbers than their update. A head may read its
  matrices in any way, so that the updates are added to them: `added`.

  Raises:
    ValueError: the rank is so large that there is no such matrix.
  """
  found = {}
  for path, weight in sorted(flatten_dict(params).items()):
    *outer, out, into = (1, 1, *weight.shape)[-max(weight.ndim, 2) :]
    if rank * (out + into) < out * into:
      key, drawn = jax.random.split(key)
      down = jax.random.normal(drawn, (*outer, rank, into)) / into**0.5
      found[path] = {"down": down, "up": jnp.zeros((*outer, out, rank))}
  if not found:
    raise ValueError(f"`lora` must give updates fewer numbers than the head has, got {rank}.")
  return unflatten_dict(found)


def added(params: Params, updates: Params) -> Params:
  """The weights of a head with their updates."""
  whole, own = flatten_dict(params), flatten_dict(updates)
  for path in dict.fromkeys(path[:-1] for path in own):
    whole[path] = whole[path] + own[*path, "up"] @ own[*path, "down"]
  return unflatten_dict(whole)
