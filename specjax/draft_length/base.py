"""The contract of a policy, which decides when a row's draft is long enough.

A drafter asks `stop` once per draft token and `update` once per round. A policy that is asked
before a token is drawn looks at distributions; one that is asked afterwards, and keeps the token,
looks at the token too. Neither sees the coins of the round, so every verifier stays
exact. To look at a token and then drop it changes q: the draft is a "truncated" proposal.

Hyper-parameters are arrays in the state, so rows may differ in them, and a state from another
build of the same policy changes them without compiling anew.

Letters: B batch, E width of the draft model, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array


class Observation(NamedTuple):
  """What a policy sees of the candidate, draft token j + 1 of its row.

  Attributes:
    step: int or i32[], j.
    log_probs: f32[B, V], from which the candidate is, or was, drawn; for a greedy row, where they
      would be one-hot, those at temperature 1.
    token: i32[B], the candidate; None before it is drawn.
    features: [B, E], the draft model's hidden state from which `log_probs` was read, that of token
      j or, for j = 0, of the root; None where no head reads it.
    chance: f32[B], how likely the candidate is accepted if those before it are, where the drafter
      was trained to say so; else None.
  """

  step: int | Array
  log_probs: Array
  token: Array | None = None
  features: Array | None = None
  chance: Array | None = None


class InitLength(Protocol):
  """The state of B rows, a fixed pytree of arrays [B, ..]."""

  def __call__(self, batch: int) -> Any: ...


class Stop(Protocol):
  """Whether the row's draft ends, bool[B], and the next state.

  It ends before the candidate where that is not drawn yet or the policy `drops`, else after it.
  `params` are () for all but learned policies. Answers after a stop are not used. What it changes
  of the state is of this draft alone, and `update` may be given the state before it.
  """

  def __call__(self, params: Any, state: Any, observation: Observation) -> tuple[Array, Any]: ...


class UpdateLength(Protocol):
  """The state after a round, given accepted and drafted tokens i32[B]."""

  def __call__(self, state: Any, accepted: Array, drafted: Array) -> Any: ...


class DraftLength(NamedTuple):
  """When to stop drafting.

  Attributes:
    name: its key in `DRAFT_LENGTHS`.
    looks_at_token: whether it is asked after the candidate was drawn, not before.
    drops: whether the candidate at which it stops is dropped, see `kept`.
    init, stop, update: see their types.
  """

  name: str
  looks_at_token: bool
  drops: bool
  init: InitLength
  stop: Stop
  update: UpdateLength


def kept(policy: DraftLength, params: Any, state: Any, observation: Observation) -> Array:
  """bool[B, V]: the candidates that would not end the draft, which a policy that `drops` keeps.

  The candidate's distribution at these, not normalised, is q: a token x is accepted with
  probability min(1, p(x) / q(x)), and norm(max(p - q, 0)) gives the token after a refusal and after
  a drop alike (derived: a drop is a child with p = 0).

  Args:
    params, state, observation: as for `policy.stop`; `observation.token` is not read.
  """
  B, V = observation.log_probs.shape

  def ends(token: Array) -> Array:
    alike = jnp.broadcast_to(token, (B,))
    return policy.stop(params, state, observation._replace(token=alike))[0]

  return ~jax.vmap(ends, out_axes=1)(jnp.arange(V, dtype=jnp.int32))
