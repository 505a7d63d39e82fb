"""PEARL: the draft model and the target work at the same time (Liu et al. 2025, arXiv 2408.11850).

In the loop of `speculate` they take turns. Here, in a tick of both, the draft model writes a block
of G tokens after all it wrote before, while the target reads what was pending when the tick began:

    committed  pending      fresh, drafted meanwhile
    .. the cat              sat on the mat        before: the target's distribution after `cat`
                                                  tests `sat` alone
    .. sat     on the mat   and slept there .     after: its distributions after `sat`, `on`, `the`
                                                  and `mat` test `on the mat and`

If all that is tested is accepted, it is committed and the rest of the fresh block is pending. At a
refusal the target's own token is committed, all else is dropped, and the next tick has nothing
pending. `tick` is a pure function; `decoding.pearl_decoder` runs both models at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.sampling import COIN, RESIDUAL, Noise, NoiseSource
from specjax.verifiers.siblings import residual


class PearlState(NamedTuple):
  """What is kept between two ticks.

  Attributes:
    key: key[B], one per request.
    position: i32[B], committed length. No two ticks begin at the same one, so with `Noise` no coin
      is tossed twice, and the fresh block may be drawn with `Noise(key, position)` too.
    post: bool[B], whether tokens are pending (post-verify); where not, a tick verifies the first
      fresh token only (pre-verify).
    tokens: i32[B, G - 1], pending; garbage where not `post`.
    log_probs: f32[B, G - 1, V], what they were drawn from.
  """

  key: Array
  position: Array
  post: Array
  tokens: Array
  log_probs: Array


def start(key: Array, position: Array, block: int, vocab_size: int) -> PearlState:
  """The state in which nothing is pending; key[B], position i32[B], G is `block`."""
  B = position.shape[0]
  tokens = jnp.zeros((B, block - 1), jnp.int32)
  return PearlState(
    key, position, jnp.zeros(B, bool), tokens, jnp.zeros((B, block - 1, vocab_size))
  )


def tick(
  state: PearlState,
  target_log_probs: Array,
  tokens: Array,
  log_probs: Array,
  source: Callable[[Array, Array], NoiseSource] = Noise,
) -> tuple[PearlState, Array, Array, Array]:
  """EXACT, as token verification is: a refused x is replaced from norm(max(p - q, 0)).

  Args:
    state: what the last tick returned.
    target_log_probs: f32[B, G, V], after the committed text and i pending tokens; where not `post`
      only row 0 is read.
    tokens, log_probs: i32[B, G] and f32[B, G, V], the fresh block, drawn after the pending tokens,
      and what it was drawn from.
    source: static; (key, position) -> what tosses the coins.

  Returns:
    (state, tokens i32[B, G], count i32[B], rollback i32[B]): the first `count` tokens are
    committed, 1 at least; the draft's cache drops its last `rollback` tokens, pending and fresh;
    the target's, which never saw the fresh ones, drops max(rollback - G, 0).
  """
  G = tokens.shape[1]
  noise = source(state.key, state.position)
  step = jnp.arange(G, dtype=jnp.int32)[None]
  first, first_log_probs, post = tokens[:, :1], log_probs[:, :1], state.post[:, None]
  window = jnp.where(post, jnp.concatenate([state.tokens, first], 1), first)
  pending = jnp.concatenate([state.log_probs, first_log_probs], 1)
  log_q = jnp.where(post[..., None], pending, first_log_probs)
  length = jnp.where(state.post, G, 1)

  def of_window(log_p: Array) -> Array:
    return jnp.exp(jnp.take_along_axis(log_p, window[..., None], -1)[..., 0])

  def row(log_p: Array) -> Array:
    return jnp.exp(jnp.take_along_axis(log_p, jnp.minimum(accepted, G - 1)[:, None, None], 1)[:, 0])

  coin = noise.accept(COIN, of_window(target_log_probs), of_window(log_q))
  coin = coin & (step < length[:, None])
  accepted = jnp.cumprod(coin.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)
  whole = accepted == length
  extra = noise.draw(RESIDUAL, jnp.log(residual(row(target_log_probs), row(log_q))))
  committed = jnp.where(step < accepted[:, None], window, extra[:, None])
  # After a window that is accepted whole, no token of the target follows: the draft is ahead.
  count = jnp.where(whole, accepted, accepted + 1)
  rollback = jnp.where(whole, 0, length - 1 + G - accepted)
  after = PearlState(state.key, state.position + count, whole, tokens[:, 1:], log_probs[:, 1:])
  return after, committed, count, rollback


def rate(alpha: float, block: int) -> float:
  """Tokens per tick in the long run, when each is accepted with rate alpha, 0..1; G is `block`.

  It is (1 - alpha^G) / ((1 - alpha^G + alpha) (1 - alpha)). A tick without pending tokens commits 1
  and is followed by one with them at rate alpha; a tick with them commits (1 - alpha^G) /
  (1 - alpha) and is followed by another such at rate alpha^G. A tick takes as long as the slower of
  G draft passes and one target pass.
  """
  if not 0 <= alpha <= 1 or block < 1:
    raise ValueError(
      f"`alpha` must be between 0 and 1 and `block` at least 1, got {alpha} and {block}."
    )
  return sum(alpha**i for i in range(block)) / (1 - alpha**block + alpha)
