"""Sparse MLPs: a router sends every token to some of many small MLPs, its experts.

No expert refuses a token, so that a row's result is that of the row alone: what stands beside it in
a tree or a batch changes nothing but the order in which weights are read. How many experts are read
grows with the rows, see `eval.experts_read`.

Mixtral (Jiang et al. 2024, arXiv 2401.04088), Qwen3 (Yang et al. 2025, arXiv 2505.09388) and
LLaDA-MoE (Zhu et al. 2025, arXiv 2509.24389) choose by a softmax, DeepSeek-V2 (2024, arXiv
2405.04434) by one in groups, LLaDA2.0 (2025) by sigmoids in groups, BlockFFN (Song et al. 2025,
arXiv 2507.08771) by ReLU. GPT-OSS (2025) has biases everywhere.

Letters: B batch, N nodes, R rows, E width, X experts, k experts of a row, F width of an expert.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from specjax.kernels.platform import mesh_axis, platform
from specjax.models import groups
from specjax.models.config import Experts
from specjax.models.groups import Groups
from specjax.models.linear import fused, linear
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm, unit
from specjax.models.weights import dense

_INIT = nn.initializers.normal(0.02)
# On 2 CPU cores, up to here all rows of an expert that is used cost less than sorting them does.
_FEW_ROWS = 64
# Rows are written once for each expert by `ragged_dot` on GPUs: so many numbers at a time, 1 GB.
_SPREAD = 2**29


class Chosen(NamedTuple):
  """Where rows go.

  Attributes:
    expert: i32[..., k], numbers of experts, none of them twice.
    weight: f32[..., k], what the experts' outputs are multiplied with; 0 is an expert not chosen.
  """

  expert: Array
  weight: Array


def _of_best_groups(c: Experts, value: Array, best: int) -> Array:
  """f32[..., X], the values of experts in the groups whose `best` largest add up to most; -inf for
  those in the other groups."""
  groups = value.reshape(*value.shape[:-1], c.groups, -1)
  _, group = lax.top_k(lax.top_k(groups, min(best, groups.shape[-1]))[0].sum(-1), c.chosen_groups)
  allowed = jax.nn.one_hot(group, c.groups, dtype=bool).any(-2)
  return jnp.where(allowed[..., None], groups, -jnp.inf).reshape(value.shape)


def by_softmax(c: Experts, logits: Array) -> Chosen:
  """The k likeliest of the best groups of logits f32[..., X], whose likeliest expert counts
  (DeepSeek-V2, section 2.2.2); where `normalised`, their probabilities sum to 1."""
  share = jax.nn.softmax(logits)
  share, expert = lax.top_k(share if c.groups == 1 else _of_best_groups(c, share, 1), c.chosen)
  if c.normalised:
    share = share / share.sum(-1, keepdims=True)
  return Chosen(expert, share * c.scale)


def by_sigmoid(c: Experts, logits: Array, bias: Array) -> Chosen:
  """The k largest of the best groups, by sigmoid(logits) + bias; the bias f32[X] weighs nothing.

  The value of a group is the sum of its two largest.
  """
  share = jax.nn.sigmoid(logits)
  value = _of_best_groups(c, share + jnp.broadcast_to(bias, share.shape), 2)
  _, expert = lax.top_k(value, c.chosen)
  share = jnp.take_along_axis(share, expert, -1)
  if c.normalised and c.chosen > 1:
    share = share / (share.sum(-1, keepdims=True) + 1e-20)
  return Chosen(expert, share * c.scale)


def by_input(c: Experts, logits: Array) -> Chosen:
  """The k largest of logits f32[..., X], by their sigmoids, which are for `on_inputs`."""
  largest, expert = lax.top_k(logits, c.chosen)
  return Chosen(expert, jax.nn.sigmoid(largest))


def by_relu(logits: Array, norm: RMSNorm) -> Chosen:
  """All whose logit f32[..., X] is positive, by RMSNorm(ReLU(logits)) (BlockFFN, section 3.1)."""
  expert = jnp.broadcast_to(jnp.arange(logits.shape[-1], dtype=jnp.int32), logits.shape)
  return Chosen(expert, norm(jax.nn.relu(logits)))


def of_layers(intermediates: Any, name: str, layers: int) -> list[Any]:
  """What each of so many `layers` that has experts has kept under a name, "chosen" or "logits"."""
  found = (intermediates.get(f"layer_{i}", {}).get("experts", {}) for i in range(layers))
  return [own[name][0] for own in found if name in own]


class Biased(NamedTuple):
  """Matrices [..., out, in] of experts and their biases [..., out]."""

  weight: Any
  bias: Array

  @property
  def shape(self) -> tuple[int, ...]:
    return self.weight.shape


Activation = Callable[[Array], Array]
"""What comes between the two matrices of an expert, of products [..., 2F] or [..., F]."""


def silu(hidden: Array) -> Array:
  """[..., F] of experts without a gate."""
  return nn.silu(hidden)


def swiglu(hidden: Array) -> Array:
  """[..., 2F], gates and then what they let through, -> [..., F]."""
  gate, up = jnp.split(hidden, 2, -1)
  return nn.silu(gate) * up


def geglu(hidden: Array) -> Array:
  """`swiglu` with GELU's approximation by tanh."""
  gate, up = jnp.split(hidden, 2, -1)
  return nn.gelu(gate) * up


def clamped(limit: float, slope: float, hidden: Array) -> Array:
  """[..., 2F] -> [..., F] of GPT-OSS: both are clamped, and what is let through is 1 more."""
  gate, up = jnp.split(hidden, 2, -1)
  gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
  return (up + 1) * gate * jax.nn.sigmoid(slope * gate)


def _product(x: Array, w: Any) -> Array:
  """x [R, in] times a matrix [out, in], with its bias where it has one."""
  if not isinstance(w, Biased):
    return linear(x, w)
  return linear(x, w.weight) + w.bias[None]


def _run(x: Array, gate_up: Any, down: Any, act: Activation) -> Array:
  """One expert: x [R, E], gate_up [2F, E] or, where it has no gate, [F, E], down [E, F]."""
  return _product(act(_product(x, gate_up)), down)


def _weighed(y: Array, share: Array) -> Array:
  """f32[R, E]: outputs y [R, E] times share f32[R]; what is not chosen is 0, whatever it says."""
  share = share[:, None]
  return jnp.where(share != 0, y.astype(jnp.float32) * share, 0)


def one_after_the_other(
  x: Array, chosen: Chosen, gate_up: Any, down: Any, act: Activation = swiglu
) -> Array:
  """Every expert that some row chose, over all rows; the weights of the others are not read."""
  R, X = len(x), gate_up.shape[0]
  share = jnp.zeros((R, X)).at[jnp.arange(R)[:, None], chosen.expert].add(chosen.weight)
  used = (share != 0).any(0)

  def add(total: Array, e: Array) -> tuple[Array, None]:
    def run(total: Array) -> Array:
      inner, outer = jax.tree.map(
        lambda w: lax.dynamic_index_in_dim(w, e, 0, False), (gate_up, down)
      )
      return total + _weighed(
        _run(x, inner, outer, act), lax.dynamic_index_in_dim(share, e, 1, False)
      )

    return lax.cond(used[e], run, lambda total: total, total), None

  return lax.scan(add, jnp.zeros(x.shape, jnp.float32), jnp.arange(X))[0]


class Sorted(NamedTuple):
  """Pairs of a row and an expert that it chose, in the order of the experts; P = Rk pairs.

  Attributes:
    row: i32[P].
    share: f32[P], the weights; 0 for pairs behind the last chosen one.
    sizes: i32[X], how many rows chose an expert.
    place: i32[R, k], where the pairs lie in this order.
  """

  row: Array
  share: Array
  sizes: Array
  place: Array


def in_order(chosen: Chosen, count: int) -> Sorted:
  """The pairs of R rows, for `count` experts; those that weigh nothing come last."""
  k = chosen.expert.shape[-1]
  share = chosen.weight.reshape(-1)
  expert = jnp.where(share != 0, chosen.expert.reshape(-1), count)
  order = jnp.argsort(expert, stable=True)
  sizes = jnp.zeros(count, jnp.int32).at[expert].add(1)
  return Sorted(order // k, share[order], sizes, jnp.argsort(order).reshape(-1, k))


def in_blocks(
  x: Array, chosen: Chosen, gate_up: Any, down: Any, size: int, act: Activation = swiglu
) -> Array:
  """Blocks of at most `size` rows (static) of one expert each, so that few rows run in vain."""
  X, pairs = gate_up.shape[0], in_order(chosen, gate_up.shape[0])
  P = len(pairs.row)
  blocks = -(-pairs.sizes // size)
  ends, last = jnp.cumsum(blocks), jnp.cumsum(pairs.sizes)
  number = jnp.arange(P // size + min(X, P))  # of blocks, at most
  expert = jnp.minimum(jnp.searchsorted(ends, number, side="right"), X - 1)
  start = last[expert] - pairs.sizes[expert] + (number - ends[expert] + blocks[expert]) * size
  place = start[:, None] + jnp.arange(size)[None]
  is_own = place < last[expert][:, None]
  place = jnp.minimum(place, P - 1)
  row, share = pairs.row[place], jnp.where(is_own, pairs.share[place], 0)

  def block(_, own) -> tuple[None, Array]:
    e, rows, share = own

    def run(rows: Array) -> Array:
      inner, outer = jax.tree.map(
        lambda w: lax.dynamic_index_in_dim(w, e, 0, False), (gate_up, down)
      )
      return _weighed(_run(rows, inner, outer, act), share)

    return None, lax.cond((share != 0).any(), run, lambda x: jnp.zeros(x.shape), rows)

  _, y = lax.scan(block, None, (expert, x[row], share))
  return jnp.zeros(x.shape, jnp.float32).at[row].add(y)


def grouped(
  x: Array, chosen: Chosen, gate_up: Any, down: Any, act: Activation = swiglu, parts: int = 1
) -> Array:
  """One product of all pairs in the order of the experts, for devices that have it; or a product
  for each of so many `parts` of them (static)."""
  pairs = in_order(chosen, gate_up.shape[0])
  P = len(pairs.row)

  def product(x: Array, w: Any, sizes: Array) -> Array:
    matrix = w.weight if isinstance(w, Biased) else w
    x = groups.rounded(x) if isinstance(matrix, Groups) and matrix.rounds else x
    y = lax.ragged_dot(x, dense(matrix).swapaxes(1, 2), sizes)
    if not isinstance(w, Biased):
      return y
    # Pairs behind the last chosen one have the last expert's: they weigh nothing.
    return y + jnp.repeat(w.bias, sizes, axis=0, total_repeat_length=len(y))

  def run(row: Array, sizes: Array) -> Array:
    return product(act(product(x[row], gate_up, sizes)), down, sizes)

  if parts == 1:
    y = run(pairs.row, pairs.sizes)
  else:
    each = -(-P // parts)
    ends = jnp.cumsum(pairs.sizes)[None] - jnp.arange(0, parts * each, each)[:, None]
    sizes = jnp.diff(jnp.clip(ends, 0, each), axis=1, prepend=0)
    row = jnp.pad(pairs.row, (0, parts * each - P)).reshape(parts, each)
    y = lax.map(lambda part: run(*part), (row, sizes))
    y = y.reshape(parts * each, -1)[:P]
  return _weighed(y, pairs.share)[pairs.place].sum(1)  # in one order, as a scatter's is not


def mixed(x: Array, chosen: Chosen, gate_up: Any, down: Any, act: Activation = swiglu) -> Array:
  """f32[R, E]: the weighed sum of the experts that rows x [R, E] chose.

  Args:
    gate_up: [X, 2F, E], or [X, F, E] of experts without a gate; an array, an Int8, a Groups or a
      Biased.
    down: [X, E, F].
    act: what comes between them.
  """
  if platform() != "cpu":
    numbers = gate_up.shape[0] * chosen.expert.size * x.shape[-1]
    parts = -(-numbers // _SPREAD) if platform() == "gpu" else 1
    return grouped(x, chosen, gate_up, down, act, parts)
  if len(x) <= _FEW_ROWS:
    return one_after_the_other(x, chosen, gate_up, down, act)
  each = -(-chosen.expert.size // gate_up.shape[0])  # rows of an expert, if all have as many
  size = min(max(1 << (each - 1).bit_length(), 32), 128)
  return in_blocks(x, chosen, gate_up, down, size, act)


def spread(x: Array, chosen: Chosen, gate_up: Any, down: Any, act: Activation = swiglu) -> Array:
  """`mixed` for x [B, N, E]; on a mesh a device adds up its experts for its rows of the batch."""
  B, _, E = x.shape
  rows, experts = mesh_axis("data", B), mesh_axis("model", gate_up.shape[0])

  def local(x: Array, chosen: Chosen, gate_up: Any, down: Any) -> Array:
    expert, share = (y.reshape(-1, y.shape[-1]) for y in chosen)
    if experts is not None:
      count = gate_up.shape[0]
      expert = expert - lax.axis_index(experts) * count
      share = jnp.where((expert >= 0) & (expert < count), share, 0)
      expert = jnp.clip(expert, 0, count - 1)
    y = mixed(x.reshape(-1, E), Chosen(expert, share), gate_up, down, act).reshape(x.shape)
    return y if experts is None else lax.psum(y, experts)

  if rows is None and experts is None:
    return local(x, chosen, gate_up, down)
  of_rows, of_experts = PartitionSpec(rows), PartitionSpec(experts)
  return jax.shard_map(
    local, in_specs=(of_rows, of_rows, of_experts, of_experts), out_specs=of_rows, check_vma=False
  )(x, chosen, gate_up, down)


def on_inputs(x: Array, chosen: Chosen, gate_up: Any, down: Any, act: Activation) -> Array:
  """`spread` where the weights multiply what experts read: each has a row of its own of x."""
  B, N, E = x.shape
  rows = (x[:, :, None] * chosen.weight[..., None].astype(x.dtype)).reshape(B, -1, E)
  expert = chosen.expert.reshape(B, -1, 1)
  alone = Chosen(expert, jnp.ones(expert.shape, jnp.float32))
  return spread(rows, alone, gate_up, down, act).reshape(B, N, -1, E).sum(2)


class Shared(nn.Module):
  """The expert that every token passes, of width `inner`."""

  inner: int
  out_init: Any

  @nn.compact
  def __call__(self, x: Array) -> Array:
    E = x.shape[-1]
    gate, up = fused(self, "gate_up", dict.fromkeys(("gate", "up"), self.inner), _INIT, E).linear(x)
    return linear(nn.silu(gate) * up, weight(self, "down", self.out_init, (E, self.inner)))


class SparseMLP(nn.Module):
  """The experts of a layer and their router, which is float32 whatever the dtype of the weights."""

  experts: Experts
  epsilon: float
  out_init: Any

  @nn.compact
  def __call__(self, x: Array, stream: Array | None = None) -> Array:
    """x [B, N, E], normed, -> [B, N, E]; `stream`, before its norm, is read by a router with
    weights of its own for it."""
    c, E = self.experts, x.shape[-1]
    X, F = c.count, c.width
    router = dense(self.param("router", _INIT, (X, E))).astype(jnp.float32)
    gate_up: Any = weight(self, "expert_gate_up", _INIT, (X, 2 * F if c.gated else F, E))
    down: Any = weight(self, "expert_down", self.out_init, (X, E, F))
    act: Activation = swiglu if c.gated else silu
    if c.limit is not None:
      act = functools.partial(clamped, c.limit, c.slope)
    elif c.activation == "gelu":
      act = geglu
    routed = x.astype(jnp.float32)
    if c.beside:
      assert stream is not None
      scale = self.param("router_scale", nn.initializers.ones, (E,)).astype(jnp.float32)
      routed = unit(stream.astype(jnp.float32), self.epsilon) * E**-0.5
      routed = routed * jnp.broadcast_to(scale, routed.shape)
    logits = linear(routed, router)
    if c.biases:
      own = (("router_bias", X), ("expert_gate_up_bias", X, 2 * F), ("expert_down_bias", X, E))
      of_router, *of_experts = (
        self.param(name, nn.initializers.zeros, shape) for name, *shape in own
      )
      logits = logits + jnp.broadcast_to(of_router.astype(jnp.float32), logits.shape)
      gate_up, down = Biased(gate_up, of_experts[0]), Biased(down, of_experts[1])
    if c.router == "relu":
      chosen = by_relu(logits, RMSNorm(self.epsilon, name="router_norm"))
    elif c.router == "sigmoid":
      bias = self.param("router_bias", nn.initializers.zeros, (X,))
      chosen = by_sigmoid(c, logits, bias.astype(jnp.float32))
    elif c.router == "input":
      chosen = by_input(c, logits)
    else:
      chosen = by_softmax(c, logits)
    if c.beside:
      scale = self.param("expert_scale", nn.initializers.ones, (X,)).astype(jnp.float32)
      chosen = Chosen(chosen.expert, chosen.weight * scale[chosen.expert])
    self.sow("intermediates", "chosen", chosen)
    self.sow("intermediates", "logits", logits)
    weighed = on_inputs if c.router == "input" else spread
    y = weighed(x, chosen, gate_up, down, act).astype(x.dtype)
    if not c.shared_width:
      return y
    shared = Shared(c.shared_width, self.out_init, name="shared")(x)
    if c.shared_gate:
      shared = shared * jax.nn.sigmoid(linear(x, weight(self, "shared_share", _INIT, (1, E))))
    return y + shared
