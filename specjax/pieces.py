"""Layers of a target as functions, of which drafters are made, in the letters of `specjax.base`."""

from typing import Any, Protocol

from jax import Array

from specjax.arrays import KV, Params


class RunLayers(Protocol):
  """Runs layers start..stop (static) over the residual stream x [B, N, E]: (x, their KV)."""

  def __call__(
    self, params: Params, x: Array, position: Array, mask: Array, cache: Any = None, *,
    start: int = 0, stop: int | None = None,
  ) -> tuple[Array, KV]: ...  # fmt: skip


class MakeLayers(Protocol):
  """A Linen module of `count` layers shaped like the target's, for drafters that have their own.

  It is called with (x [B, N, E], position i32[B, N], mask, cache=None, earlier=None,
  attention_input=None) and returns x, the KV, and more; see `models.layers.Layers`.

  Args:
    mlp: False leaves the MLPs out, for drafters that have others in their place.
    mlp_width: 0 is the target's.
    attention_width: the width of `attention_input`, where one is given.
    window: of sliding attention; True is the target's, False or None leaves it out.
    qk_norm: False leaves out the target's norms on q and k.
    qkv_bias: whether q, k and v have biases; None is as in the target.
  """

  def __call__(
    self, count: int = 1, *, mlp: bool = True, mlp_width: int = 0,
    attention_width: int | None = None, window: bool | int | None = True, qk_norm: bool = True,
    qkv_bias: bool | None = None,
  ) -> Any: ...  # fmt: skip


class RunSome(Protocol):
  """Runs some of a target's sublayers over the residual stream x [B, N, E].

  Args:
    position: i32[B, N], absolute.
    mask: bool[B, N, N], or bool[B, N, M + N] with M earlier rows, which it has first.
    cache: a Cache whose first `length` rows everyone sees, or None.
    run: bool[L, 2], whether the attention and the MLP of each layer run; a sublayer that does not
      leaves the stream as it is. It is traced: one program serves every choice.
    earlier: KV with arrays [B, K, M, C] of rows that are neither cached nor in x, or None.
    given: KV with arrays [B, K, N, C] of x's rows in layers whose attention does not run, or None.

  Returns:
    (x [B, N, E] before the final norm; KV of all L layers, that of `given`, or else 0, where
    attention does not run; the input [B, N, E] of each of the L layers.)
  """

  def __call__(
    self, params: Params, x: Array, position: Array, mask: Array, cache: Any, run: Array, *,
    earlier: KV | None = None, given: KV | None = None,
  ) -> tuple[Array, KV, tuple[Array, ...]]: ...  # fmt: skip
