"""How often a child of each rank is accepted, the input of Sequoia's dynamic program.

Chen et al. 2024 (arXiv 2402.12374, section 4.1); the program itself is `trees.sequoia`.

Letters: B batch, N tree nodes, R ranks.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from specjax.base import Drafter, Params
from specjax.decoding.decoder import Decoder
from specjax.eval.choice import Paths
from specjax.names.load import Model
from specjax.trees.static import as_tuples, k_config
from specjax.trees.structure import gather

WIDTH = 6  # R, children of the root while measuring, and ranks in a tree


def counting(drafter: Drafter) -> Drafter:
  """A drafter of a tree of one level that counts in its state how often each node is accepted."""

  def init(params, target_params, context, features, capacity):
    counts = jnp.zeros((context.length.shape[0], drafter.nodes), jnp.int32)
    return drafter.init(params, target_params, context, features, capacity), counts

  def propose(params, target_params, state, context, settings, noise):
    draft, own = drafter.propose(params, target_params, state[0], context, settings, noise)
    return draft, (own, state[1])

  def update(params, target_params, state, draft, evaluation, verdict, rows):
    last = gather(verdict.path, verdict.count[:, None])
    hit = (last == jnp.arange(drafter.nodes)[None]) & (rows[:, None] > 0)
    own = drafter.update(params, target_params, state[0], draft, evaluation, verdict, rows)
    return own, state[1] + hit.astype(jnp.int32)

  return drafter._replace(init=init, propose=propose, update=update)


def acceptance(
  model: Model,
  fill: Callable[[Paths], Drafter],
  params: Params,
  prompts: Sequence[list[int]],
  max_new_tokens: int,
  temperature: float,
) -> tuple[np.ndarray, int]:
  """f64[R], how often the child of each rank is the accepted one; and the number of rounds.

  `fill` makes the drafter of a tree with children drawn without replacement; `temperature` is
  above 0.
  """
  drafter, B = counting(fill(as_tuples(k_config([WIDTH])))), len(prompts)
  decoder = Decoder(model, (drafter, params), "recursive", temperature=temperature, batch=B)
  request, state, _ = decoder._start(list(prompts), [max_new_tokens] * B, 0)
  state = decoder.advance(request, state, max_new_tokens)
  counts = np.asarray(state.drafter[1]).sum(0)
  return counts[1:] / counts.sum(), int(counts.sum())  # entry 0: rounds that accepted none
