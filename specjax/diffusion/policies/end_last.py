"""End markers are committed when nothing else is left."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.diffusion.base import Policy, Prediction, commits


class EndLast(NamedTuple):
  """Params of `end_last`.

  Attributes:
    base: params of the policy that chooses among the others.
    tokens: i32[B, M], the end markers.
  """

  base: Params
  tokens: Array


@functools.cache
def end_last(base: Policy) -> Policy:
  """LOSSY: slots that would end the text wait for the block's others.

  The option confidence_eos_eot_inf of LLaDA-Instruct (Nie et al. 2025, arXiv 2502.09992, appendix
  B.4). Its program gives end markers a confidence of 0, so that a round commits some where fewer
  other slots are left than it commits; here such a round commits fewer.

  With `threshold` 91.8 % are right in 3.7 passes.

  Measured: 16.0 passes, 92.5 % right (denoising_lists)
  """

  def select(params: EndLast, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    ends = (prediction.token[..., None] == params.tokens[:, None]).any(-1)
    wait = ends & (prediction.open & ~ends).any(1, keepdims=True)
    others = prediction._replace(open=prediction.open & ~wait, masked=prediction.masked & ~wait)
    wanted, score, memory = base.select(params.base, memory, others)
    return commits(wanted) & ~wait, jnp.where(wait, -jnp.inf, score), memory

  return base._replace(name=f"{base.name}+end_last", select=select, parameters=EndLast, blind=False)
