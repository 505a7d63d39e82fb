"""The contract: what a policy, which decides when a row's draft is long enough, sees and does.

A drafter asks `stop` once per draft token and `update` once per round. A policy that is asked
before the token is drawn looks at laws; one that is asked after it was drawn, and is kept, looks at
the token too. Both leave every rule of acceptance exact: neither sees the coins of the round. A
token that is looked at and then dropped does not, what is kept has another law.

Hyper-parameters are arrays in the state, so rows may differ in them, and a state from another
build of the same policy changes them without compiling anew.

Letters: B batch, E width of the draft model, V vocabulary. This file imports nothing of the
package.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array


class Observation(NamedTuple):
  """What a policy sees of the candidate, draft token j + 1 of its row.

  Attributes:
    step: int or i32[]. Draft tokens before the candidate, j; 0 for the first of a round.
    law: f32[B, V]. Log-probabilities from which the candidate is, or was, drawn. For a greedy row,
      whose law is one-hot and says nothing, that at temperature 1.
    token: i32[B], the candidate; None before it is drawn.
    features: [B, E], the draft's hidden state that `law` was read from, which is that of token j
      and for j = 0 of the root; None where no head reads it.
  """

  step: int | Array
  law: Array
  token: Array | None = None
  features: Array | None = None


class Policy(NamedTuple):
  """When to stop drafting. `state` is a fixed pytree of arrays [B, ..] that rides in the loop.

  Attributes:
    name: its key in `POLICIES`.
    looks_at_token: True is asked after the candidate was drawn, which is kept; False before.
    drops: the candidate that triggered the stop is dropped after all. "target_only" and "greedy"
      never mind. Any other rule must take the law of what is kept, `confidence.kept_law`, for the
      one that was drawn from, and must correct for it where a token was dropped, too.
    init: (batch) -> state.
    stop: (params, state, observation) -> (bool[B], state). True ends the row's draft: without the
      candidate where that is not drawn yet, else with it unless the policy `drops`. `params` are
      () for all but learned policies. Asked again after a stop, it may answer anything.
    update: (state, accepted i32[B], drafted i32[B]) -> state, once per round, after verification.
  """

  name: str
  looks_at_token: bool
  drops: bool
  init: Callable[[int], Any]
  stop: Callable[[Any, Any, Observation], tuple[Array, Any]]
  update: Callable[[Any, Array, Array], Any]
