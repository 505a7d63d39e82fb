"""Faults to inject into a method, which a proof must find.

Each takes a method and breaks it in one place, in a way in which real programs are broken. A
verifier that never reads q, such as target_only, is right not to depend on a wrong one.

Letters: B batch, N tree nodes, V vocabulary.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Draft, Features, Params, Proposal, Verdict
from specjax.sampling import RESIDUAL, NoiseSource
from specjax.speculate import Method
from specjax.testing import enumerate as exact
from specjax.testing.enumerate import Case


def _drafting(method: Method, change: Callable[[Draft], Draft]) -> Method:
  """The method with `change` made to every draft."""
  drafter = method.drafter

  def propose(*arguments, **named):
    draft, state = drafter.propose(*arguments, **named)
    return change(draft), state

  return method._replace(drafter=drafter._replace(propose=propose))


def _judging(method: Method, change: Callable[[Draft, Array], tuple[Draft, Array]]) -> Method:
  """The method with `change` made to what its verifier reads, (draft, log p)."""
  verifier = method.verifier

  def verify(params: Params, draft: Draft, log_probs: Array, *rest, **named) -> Verdict:
    return verifier.verify(params, *change(draft, log_probs), *rest, **named)

  return method._replace(verifier=verifier._replace(verify=verify))


def _reading(method: Method, change: Callable[[Array, Array], tuple[Array, Array]]) -> Method:
  """The method with `change` made to (log q, log p), f32[B, N, V] each, before its verifier."""

  def of_draft(draft: Draft, log_p: Array) -> tuple[Draft, Array]:
    assert draft.log_probs is not None, "a fault of q needs a draft with a distribution"
    log_q, log_p = change(draft.log_probs, log_p)
    return draft._replace(log_probs=log_q), log_p

  return _judging(method, of_draft)


def row_of_the_child(method: Method) -> Method:
  """Row i + 1 of the target's distribution is read in place of row i."""
  return _judging(method, lambda draft, log_probs: (draft, jnp.roll(log_probs, -1, 1)))


def p_for_q(method: Method) -> Method:
  """The verifier reads p in place of q."""
  return _judging(method, lambda draft, log_p: (draft._replace(log_probs=log_p), log_p))


def p_and_q_swapped(method: Method) -> Method:
  return _reading(method, lambda log_q, log_p: (log_p, log_q))


def q_padded(method: Method) -> Method:
  """0.05 is added to q, as if to avoid a division by zero."""
  return _reading(method, lambda log_q, log_p: (jnp.log(jnp.exp(log_q) + 0.05), log_p))


def q_rounded(method: Method) -> Method:
  """q is rounded to 3 bits of mantissa after the draw."""

  def change(log_q: Array, log_p: Array) -> tuple[Array, Array]:
    return jnp.log(lax.reduce_precision(jnp.exp(log_q), 8, 3)), log_p

  return _reading(method, change)


def siblings_reversed(method: Method) -> Method:
  """Nodes of a level are numbered in the reverse of the order in which they were drawn."""

  def change(draft: Draft) -> Draft:
    N = draft.tokens.shape[1]
    order = jnp.argsort(draft.depth * N - jnp.arange(N, dtype=jnp.int32)[None], axis=1)
    number = jnp.argsort(order, axis=1)

    def moved(x: Array) -> Array:
      return jnp.take_along_axis(x, order if x.ndim == 2 else order[..., None], 1)

    parent = jnp.take_along_axis(number, moved(draft.parent), 1).astype(jnp.int32)
    return jax.tree.map(moved, draft)._replace(parent=parent)

  return _drafting(method, change)


def child_duplicated(method: Method) -> Method:
  """The root's second child gets the token of its first."""

  def change(draft: Draft) -> Draft:
    return draft._replace(tokens=draft.tokens.at[:, 2].set(draft.tokens[:, 1]))

  return _drafting(method, change)


def distribution_forgets_siblings(method: Method) -> Method:
  """Draws without replacement are treated as independent ones."""
  return method._replace(drafter=method.drafter._replace(proposal="iid"))


def last_token_redrawn(method: Method) -> Method:
  """The token after the accepted ones is drawn anew from p."""
  verifier = method.verifier

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
    verdict = verifier.verify(
      params, draft, log_probs, features, noise, depth=depth, proposal=proposal
    )
    leaf = jnp.take_along_axis(verdict.path, verdict.count[:, None], 1)
    again = noise.draw(RESIDUAL, jnp.take_along_axis(log_probs, leaf[..., None], 1)[:, 0])
    step = jnp.arange(verdict.tokens.shape[1], dtype=jnp.int32)[None]
    tokens = jnp.where(step < verdict.count[:, None], verdict.tokens, again[:, None])
    return verdict._replace(tokens=tokens)

  return method._replace(verifier=verifier._replace(verify=verify))


FAULTS: dict[str, Callable[[Method], Method]] = {
  fault.__name__.replace("_", " "): fault
  for fault in (
    row_of_the_child,
    p_for_q,
    p_and_q_swapped,
    q_padded,
    q_rounded,
    siblings_reversed,
    child_duplicated,
    distribution_forgets_siblings,
    last_token_redrawn,
  )
}


def distances(
  cases: Sequence[Case], method: Method, drafter_params: Params = (), *, faults: Sequence[str]
) -> dict[str, float]:
  """By fault the largest total variation over the cases between the broken method and the target.

  Args:
    cases: several tables; a fault may have no effect on one of them.
    method: exact, of a `table_model`.
    faults: names in FAULTS. Those of q need a draft with one, those of siblings two children.
  """

  def distance(case: Case, broken: Method) -> float:
    emitted = exact.emitted_distribution(case, broken, drafter_params)
    return exact.total_variation(emitted, exact.target_distribution(case))

  return {name: max(distance(case, FAULTS[name](method)) for case in cases) for name in faults}
