"""Target-only verification samples the target at every node and follows the drafted tokens."""

import functools

from jax import Array

from specjax.base import PROPOSALS, Draft, Features, Params, Proposal, Verdict, Verifier
from specjax.sampling import NoiseSource
from specjax.trees.structure import match


@functools.cache
def target_only() -> Verifier:
  """EXACT for any draft: emits the very tokens of plain sampling.

  Its tokens do not depend on the draft, so no distribution q is needed.

  That is so with position-keyed noise, see `docs/proofs.md`.

  Measured: 1.1 % of a pass (verifiers)
  """

  def verify(
    params: Params,
    draft: Draft,
    log_probs: Array,
    features: Features,
    noise: NoiseSource,
    *,
    depth: int,
    proposal: Proposal,
  ) -> Verdict:
    return match(draft, noise.choose(log_probs, draft.depth), depth)

  return Verifier("target_only", "EXACT", PROPOSALS, "any", verify)
