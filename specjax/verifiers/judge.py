"""Judge decoding: a head on the target's states may accept tokens that exact verifiers refuse."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import PROPOSALS, Draft, Features, Proposal, Verdict, Verifier
from specjax.sampling import NoiseSource
from specjax.trees.structure import match
from specjax.verifiers import chain


class Judge(NamedTuple):
  """The head, w f32[E] and b f32[], trained by `specjax.train.judge`."""

  w: Array
  b: Array


def probability(params: Judge, hidden: Array) -> Array:
  """f32[...], that the token just read is right, from the target's state [..., E] after it."""
  score = jnp.einsum("...e,e->...", hidden.astype(jnp.float32), params.w)
  return jax.nn.sigmoid(score + jnp.broadcast_to(params.b, score.shape))


def _redirected(draft: Draft, after: Array, right: Array) -> Array:
  """`after` i32[B, N]; where it was not drafted, the first child of `right` bool[B, N] instead."""
  node = jnp.arange(after.shape[1])[None, :, None]
  child = (draft.parent[:, None] == node) & draft.valid[:, None]
  child = child.at[:, :, 0].set(False)
  drafted = (child & (draft.tokens[:, None] == after[:, :, None])).any(-1)
  judged = child & right[:, None]
  first = jnp.take_along_axis(draft.tokens, jnp.argmax(judged, -1), 1)
  return jnp.where(~drafted & judged.any(-1), first, after)


@functools.cache
def judge(threshold: float = 0.5) -> Verifier:
  """LOSSY: accepts also what a trained head finds right, sigmoid(w h + b) > threshold.

  Bachmann et al. 2025 (arXiv 2501.19309). h is the target's state after reading the draft token,
  where p comes from the state before. A token of a drawn chain is accepted by its coin of "token"
  or by the head; the residual is that of "token". On any other draft the walk of "target_only" goes
  on, where the target's choice was not drafted, to the first child that the head finds right.

  Measured: 1.1 % of a pass (verifiers)
  Train: python -m specjax.train.judge

  Args:
    threshold: 1 leaves the exact verifier, a lower one accepts more.
  """

  def verify(
    params: Judge,
    draft: Draft,
    log_probs: Array,
    features: Features,
    noise: NoiseSource,
    *,
    depth: int,
    proposal: Proposal,
  ) -> Verdict:
    if not isinstance(params, Judge):
      raise ValueError(f"`params` of verifier='judge' must be a trained Judge, got {params!r:.40}.")
    right = probability(params, features.hidden) > threshold
    if proposal in ("chain", "truncated"):
      passed = chain.coins(draft, log_probs, noise) | (right & draft.valid)[:, 1:]
      return chain.accept_until_rejection(draft, log_probs, passed, noise, proposal)
    after = _redirected(draft, noise.choose(log_probs, draft.depth), right)
    return match(draft, after, depth)

  return Verifier("judge", f"LOSSY (threshold={threshold:g})", PROPOSALS, "any", verify)
