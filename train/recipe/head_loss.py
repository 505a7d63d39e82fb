"""The loss of a head as `fit` takes it, and the passes per token by which the head is judged."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax import distributed
from specjax.base import Params
from specjax.heads.base import LossWeights
from specjax.train.recipe import low_rank
from specjax.train.recipe.draft_positions import Batch, Objective
from specjax.train.recipe.means import Loss


def whole(trained: Params, fixed: Params) -> Params:
  """A head's weights: those that are trained, or `fixed["params"]` with their trained updates."""
  return low_rank.added(fixed["params"], trained) if "params" in fixed else trained


def in_use(trained: Params, fixed: Params, dtype: Any) -> Params:
  """A head's weights as it reads them, those that are trained in the dtype of the target."""
  own = jax.tree.map(lambda x: x.astype(dtype), whole(trained, fixed))
  return fixed | {"params": distributed.replicate(own)}


def loss_and_judge(
  objective: Objective, dtype: Any, weights: LossWeights, noise: float
) -> tuple[Loss, Callable[..., Array]]:
  """What `fit` takes: the loss, and the judge, passes per token with a chain of best guesses.

  What is frozen are the target's weights and those of the head that are not trained. With noise
  the batch of the loss is (batch, a key for each row).
  """

  def loss(trained, frozen, batch, _):
    target_params, fixed = frozen
    own, keys = batch if noise else (batch, None)
    used = in_use(trained, fixed, dtype)
    return objective.terms(used, target_params, own, weights, noise, keys)

  def passes(trained, frozen, batch: Batch, _):
    target_params, fixed = frozen
    hits, counts = objective.hits(in_use(trained, fixed, dtype), target_params, batch)
    rates = hits[:, 0].astype(jnp.float32) / jnp.maximum(counts, 1).astype(jnp.float32)
    return 1 / (1 + jnp.cumprod(rates).sum())

  return loss, passes
