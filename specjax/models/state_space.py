"""State space duality over trees (SSD; Dao and Gu 2024, arXiv 2405.21060, section 6).

A node's update is its own value, u_i = v_i, whatever the memory has. So there is nothing to solve:
with S the memory before all nodes, and c_i and D_ij the products of the gates down to i, from the
root on and from behind j on, node i reads

    c_i S^T q_i + sum over j that are i or above it of D_ij (q_i . k_j) v_j,

which is section 6's sum over a piece with the mask of ancestors in place of the causal one. The
paper's C_i and B_i are q_i and k_i, its groups of heads the K key heads, its x_i times the step
v_i, its state of N x P numbers a memory of C x F. The letters are those of `recurrence`.
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
  mask: Array,
  goes_on: Array | None = None,
) -> tuple[Array, Nodes]:
  """The rule, as `recurrence` has it; gate f32[B, H, N] are the logarithms of a."""
  read, _ = recurrence.by_kernel_or(by_products, memory, q, k, v, gate, None, mask, goes_on)
  return read, Nodes(k, v, gate[..., None])


def by_products(
  memory: Array,
  q: Array,
  k: Array,
  v: Array,
  gate: Array,
  rate: None,
  mask: Array,
  goes_on: Array | None,
) -> tuple[Array, Array]:
  """(what the nodes read, their updates v), in XLA."""
  each = v.shape[1] // q.shape[1]
  decay, kept = decays(gate, mask, goes_on)
  scores = decay * jnp.repeat(dot("bknc,bkmc->bknm", q, k), each, axis=1)
  read = kept[..., None] * dot("bhnc,bhcf->bhnf", jnp.repeat(q, each, axis=1), memory)
  return read + dot("bhnm,bhmf->bhnf", scores, v), v
