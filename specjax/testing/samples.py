"""The compiled loop, with its real noise, is tested by its samples.

This covers what exact enumeration, which replaces the noise, cannot: streams or positions that
share random bits, within a round or between rounds, and methods whose noise is continuous.

Letters: B requests, V vocabulary, L length of the sequences.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from scipy import stats

from specjax import speculate, switches
from specjax.base import Params
from specjax.sampling import Noise, NoiseSource, request_keys
from specjax.testing.enumerate import Case, target_distribution

_RARE = 5  # cells with fewer expected sequences are merged


@switches.hold
def p_value(
  case: Case,
  method: speculate.Method,
  drafter_params: Params = (),
  *,
  requests: int = 2**15,
  seed: int = 1,
  source: Callable[..., NoiseSource] = Noise,
) -> float:
  """Tests what many requests of one prompt emit against the target's distribution, by chi-square.

  With 63 cells and 2**18 requests a total variation of 0.01 is missed once in a hundred times at
  p < 1e-6. The p-value is 0 where a sequence was emitted that the target cannot emit.

  Args:
    case: what is decoded, without stop tokens and budget; its table is the target's params.
    method: of a `table_model`.
    requests: B.
    seed: of the requests' keys; it is fixed, so a test that passed will pass again.
    source: what draws, `sampling.Noise` or one with a flaw.
  """
  P, L, V = len(case.prompt), case.length, method.target.vocab_size
  request = speculate.DecodeRequest(
    case.settings(requests),
    request_keys(seed, np.arange(requests)),
    jnp.full(requests, P + L, jnp.int32),
    jnp.array([-1]),
  )
  weights = speculate.Weights({"logits": jnp.asarray(case.logits, jnp.float32)}, drafter_params)
  tokens = jnp.broadcast_to(jnp.array([case.prompt]), (requests, P))
  capacity = speculate.capacity_for(P, L, method.drafter.depth)
  length = jnp.full(requests, P, jnp.int32)
  state = speculate.compiled_start(method, weights, tokens, length, request, capacity)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(L), source=source)

  got = np.asarray(state.context.tokens)[:, P : P + L] @ V ** np.arange(L)
  observed = np.bincount(got, minlength=V**L)
  expected = np.zeros(V**L)
  for sequence, p in target_distribution(case).items():
    expected[np.array(sequence) @ V ** np.arange(L)] = requests * p
  if observed[expected == 0].any():
    return 0.0
  rare = expected < _RARE
  observed = np.append(observed[~rare], observed[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  keep = expected > 0
  return float(stats.chisquare(observed[keep], expected[keep], sum_check=False).pvalue)
