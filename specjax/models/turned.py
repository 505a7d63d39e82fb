"""Weights that lie in memory as [in, out], for passes over few rows on CPU.

XLA's products of 2 to 24 rows are faster so: over 2 CPU cores a pass of 134M parameters in float32
takes 24.8 ms in place of 28.5 for 8 rows, and 30.5 in place of 37.0 for 16. One row is slower, and
many rows are all one, so plain decoding keeps [out, in].
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.base import Params
from specjax.kernels.platform import platform
from specjax.models.lora import Gated

FEW = range(2, 25)
"""The numbers of rows for which turned weights pay."""
_MATRICES = ("qkv", "out", "gate_up", "down")  # of a transformer's layer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turned:
  """A matrix [out, in].

  Attributes:
    columns: [in, out].
  """

  columns: Array

  def __getitem__(self, outputs: slice) -> "Turned":
    """Some of the outputs."""
    return Turned(self.columns[:, outputs])


def weight(module: nn.Module, name: str, init: Callable, shape: tuple[int, ...]) -> Any:
  """A parameter [out, in] of a module; Flax would refuse the shape of one that is turned."""
  held: Any = module.get_variable("params", name)
  return held if isinstance(held, Turned | Gated) else module.param(name, init, shape)


def product(x: Array, w: Turned) -> Array:
  """x [..., in] times w [out, in] -> [..., out]."""
  flat = x.reshape(-1, x.shape[-1])
  if len(flat) in FEW:
    # With its rows last, x goes to Eigen's product, which is faster here than YNNPACK's.
    y = lax.dot_general(lax.optimization_barrier(flat.T), w.columns, (((0,), (0,)), ((), ())))
  else:
    y = flat @ w.columns
  return y.reshape(*x.shape[:-1], -1)


def turn(params: Params) -> Params:
  """A transformer's weights with the matrices of its layers turned, a copy as large as these.

  Only float32 on one CPU is turned; other weights are returned as they are.
  """

  def of(name: str, x: Any) -> Any:
    if isinstance(x, Mapping):
      return {key: of(key, part) for key, part in x.items()}
    if name not in _MATRICES or not isinstance(x, Array) or x.dtype != jnp.float32:
      return x
    if len(x.sharding.device_set) > 1:
      return x
    # On the same device, and bound to it only where x is: else whatever is computed from it is.
    return Turned(jax.device_put(np.asarray(x).T.copy(), x.sharding if x.committed else None))

  return of("", params) if platform() == "cpu" else params
