"""The gated delta rule over trees (Yang et al. 2024, arXiv 2412.06464).

The update of node i, whose parent is p, is the rate b_i of what its value differs from what its
key reads: u_i = b_i (v_i - a_i S_p^T k_i). With S the memory before all nodes, and c_i and D_ij the
products of the gates down to i, from the root on and from behind j on,

    u_i + sum over j above i of b_i D_ij (k_i . k_j) u_j = b_i (v_i - c_i S^T k_i).

This is a triangular system, for a node comes after its parent, with the mask of ancestors in place
of the causal one. The letters are those of `recurrence`.
"""

import jax.numpy as jnp
from jax import Array

from specjax.models import recurrence
from specjax.models.recurrence import Nodes, decays, dot


def evaluate(
  memory: Array,
  q: Array,
  k: Array,
  v: Array,
  gate: Array,
  rate: Array,
  mask: Array,
  goes_on: Array | None = None,
) -> tuple[Array, Nodes]:
  """The rule, as `recurrence` has it; gate and rate f32[B, H, N] are the logarithms of a, and b."""
  read, update = recurrence.by_kernel_or(by_products, memory, q, k, v, gate, rate, mask, goes_on)
  return read, Nodes(k, update, gate[..., None])


def by_products(
  memory: Array,
  q: Array,
  k: Array,
  v: Array,
  gate: Array,
  rate: Array,
  mask: Array,
  goes_on: Array | None,
) -> tuple[Array, Array]:
  """(what the nodes read, their updates), in XLA."""
  q, k = (jnp.repeat(x, v.shape[1] // x.shape[1], axis=1) for x in (q, k))
  decay, kept = decays(gate, mask, goes_on)
  old = kept[..., None] * dot("bhnc,bhcf->bhnf", k, memory)
  system = rate[..., None] * decay * dot("bhnc,bhmc->bhnm", k, k)
  update = dot("bhnm,bhmf->bhnf", inverse(system), rate[..., None] * (v - old))
  read = kept[..., None] * dot("bhnc,bhcf->bhnf", q, memory)
  read += dot("bhnm,bhmf->bhnf", decay * dot("bhnc,bhmc->bhnm", q, k), update)
  return read, update


def inverse(system: Array) -> Array:
  """That of f32[B, H, N, N], of which only what is below the diagonal counts; on it are ones.

  Blocks on the diagonal are inverted, twice as large ones in each step. The solver that XLA calls
  on a CPU has threads of its own for 16 nodes or more, and takes 32 ms beside other work, not 0.02.
  """
  B, H, N, _ = system.shape
  whole, size = 1 << (N - 1).bit_length(), 1
  more = [(0, 0), (0, 0), (0, whole - N), (0, whole - N)]
  system, found = jnp.pad(system, more), jnp.ones((B, H, whole, 1, 1), system.dtype)
  while size < whole:
    count, both = whole // (2 * size), 2 * size
    pairs = system.reshape(B, H, count, both, count, both)
    pairs = jnp.diagonal(pairs, axis1=2, axis2=4)[:, :, size:, :size]
    below, first, last = jnp.moveaxis(pairs, -1, 2), found[:, :, ::2], found[:, :, 1::2]
    below = -dot("bhxij,bhxjk->bhxik", last, dot("bhxij,bhxjk->bhxik", below, first))
    upper = jnp.concatenate([first, jnp.zeros_like(first)], -1)
    found = jnp.concatenate([upper, jnp.concatenate([below, last], -1)], -2)
    size = both
  return found[:, :, 0, :N, :N]
