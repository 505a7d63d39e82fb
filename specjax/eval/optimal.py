"""How far a pair of drafter and verifier is from the best verifier for the same drafts.

At the root of every round the distributions p and q are known, and so is alpha*, the largest
probability with which an exact verifier can accept one of the root's children
(`theory.optimal_acceptance`). Its mean is compared with how often the loop accepted one.

Letters: B batch, N tree nodes, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, speculate
from specjax.base import Drafter
from specjax.decoding.decoder import Decoder
from specjax.eval.theory import optimal_acceptance
from specjax.sampling import Noise

# Proposals of which alpha* is known.
KNOWN = frozenset({"deterministic", "chain", "iid", "without_replacement", "mixed"})


@functools.partial(jax.jit, static_argnames="method")
def _root(method: speculate.Method, weights: speculate.Weights, request, state):
  """(p f32[B, V], q f32[B, V] or None, tokens i32[B, N], root's children bool[B, N]) of a round."""
  noise = Noise(request.key, state.context.length)
  draft, _, _, log_probs, _ = speculate.guess(method, weights, request, state, noise)
  q = None if draft.log_probs is None else jnp.exp(draft.log_probs[:, 0])
  return jnp.exp(log_probs[:, 0]), q, draft.tokens, draft.valid & (draft.depth == 1)


def _optimum(drafter: Drafter, p, q, tokens, children) -> float:
  """alpha* of one row."""
  count = int(children.sum())
  if not count:
    return 0.0
  if drafter.proposal == "deterministic":
    return float(p[np.unique(tokens[children])].sum())
  how = {"chain": "iid"}.get(drafter.proposal, drafter.proposal)
  p, q = (np.asarray(x, np.float64) / np.asarray(x, np.float64).sum() for x in (p, q))
  return float(optimal_acceptance(p, q, count, how))


def measure(
  decoder: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int, rounds: int
) -> dict[str, float]:
  """Decodes at batch 1 and looks at the roots of at most `rounds` rounds.

  "accepted" is the share of rounds that accepted a child of the root, "optimum" the mean of alpha*
  over these rounds, and "reached" their ratio, which is 1 where nothing could be accepted and above
  1 only by chance. The number of a node's children must not depend on what was drawn.
  """
  checks.whole("batch", decoder.batch, 1, 1)
  optima: list[float] = []
  accepted = 0
  for i, prompt in enumerate(prompts):
    request, state, _ = decoder._start([list(prompt)], [max_new_tokens], i)
    while not bool(state.done.all()) and len(optima) < rounds:
      seen: Any = _root(decoder.method, decoder.weights, request, state)
      of_row = jax.tree.map(lambda x: x[0], jax.device_get(seen))
      optima.append(_optimum(decoder.method.drafter, *of_row))
      state = decoder.advance(request, state, 1)
    accepted += int(np.asarray(state.stats.accepted[0])[1:].sum())
  share, optimum = accepted / len(optima), float(np.mean(optima))
  return {"accepted": share, "optimum": optimum, "reached": share / optimum if optimum else 1.0}
