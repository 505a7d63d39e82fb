"""Units of several tokens that a head is sure of, with pseudo rows behind the last of them alone.

Letters: B batch, D depth of the draft.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax import checks
from specjax.base import Context, Draft, Drafter, Params
from specjax.heads import drafting
from specjax.heads.pseudo_rows import Guesses, PseudoRows
from specjax.sampling import NoiseSource, Settings


@functools.cache
def lexical_units(head: PseudoRows, nodes: int, least: float = 0.9) -> Drafter:
  """A chain of guesses that are all likelier than a threshold, and guesses after the last alone.

  A pass has D pseudo rows in place of D for each of D + 1 nodes. It is a round of lexical unit
  decoding (Sun et al. 2024, arXiv 2405.15208) where the verifier is `unverified`, which accepts
  every draft. Any other verifier stays exact, and after a draft that it does not accept as a whole
  there are no guesses for one round. The paper tunes the target, as `specjax.train.joint` may with
  the head, and refuses repeated tokens; here repeats are allowed.

  It was measured on `masked_slots` at a threshold of .8, which accepts 2.06 as a whole chain.

  Measured: 1.27 tokens per pass (lossy_verifiers)

  Args:
    nodes: the root and D tokens drafted per round at most.
    least: the threshold; the likelihood is that of the head's guess at temperature 1.

  Raises:
    ValueError: a threshold outside 0 to 1, or more nodes than the head guesses tokens ahead and 1.
  """
  checks.number("least", least, 0, 1)
  D = nodes - 1
  behind_last = tuple(tuple(D * (v == m) for v in range(nodes)) for m in range(nodes))
  whole = drafting.drafter(head, tuple((0,) * d for d in range(1, nodes)), behind_last)

  def propose(
    params: Params,
    target_params: Params,
    guesses: Guesses,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    likely = jax.nn.softmax(head.read(params, target_params, guesses.states, None)).max(-1)
    length = jnp.cumprod(likely > least, 1, dtype=jnp.int32).sum(1, dtype=jnp.int32)
    known = jnp.minimum(guesses.known, length)
    return whole.propose(
      params,
      target_params,
      guesses._replace(known=known),
      context=context,
      settings=settings,
      noise=noise,
    )

  return whole._replace(propose=propose)
