"""The gated delta rule over trees (Yang et al. 2024, arXiv 2412.06464).

The update of node i, whose parent is p, is the rate b_i of what its value differs from what its
key reads: u_i = b_i (v_i - a_i S_p^T k_i). With S the memory before all nodes, and c_i and D_ij the
products of the gates down to i, from the root on and from behind j on,

    u_i + sum over j above i of b_i D_ij (k_i . k_j) u_j = b_i (v_i - c_i S^T k_i).

This is a triangular system, for a node comes after its parent, with the mask of ancestors in place
of the causal one. The letters are those of `recurrence`.
"""

import jax.numpy as jnp
from jax import Array, lax

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
  key = k
  q, k = (jnp.repeat(x, v.shape[1] // x.shape[1], axis=1) for x in (q, k))
  decay, kept = decays(gate, mask, goes_on)
  old = kept[..., None] * dot("bhnc,bhcf->bhnf", k, memory)
  system = rate[..., None] * decay * dot("bhnc,bhmc->bhnm", k, k)
  update = lax.linalg.triangular_solve(
    system, rate[..., None] * (v - old), left_side=True, lower=True, unit_diagonal=True
  )
  read = kept[..., None] * dot("bhnc,bhcf->bhnf", q, memory)
  read += dot("bhnm,bhmf->bhnf", decay * dot("bhnc,bhmc->bhnm", q, k), update)
  return read, Nodes(key, update, gate[..., None])
