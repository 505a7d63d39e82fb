"""DSpark: a block in one pass, a bias for each pair of neighbours, and a confidence for each guess.

Letters: B batch, W nodes of one level, E width, R rank, D depth, W' draft vocabulary.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import LayeredTarget, Params
from specjax.heads import context_block, draft_vocabulary
from specjax.heads.base import LossWeights
from specjax.heads.block_chain import BlockChain
from specjax.heads.context_block import ContextBlockConfig
from specjax.models.linear import linear, lookup


@dataclasses.dataclass(frozen=True)
class DSparkConfig(ContextBlockConfig):
  """Shape of the head; the root's row guesses depth 1, mask d - 1 after it depth d.

  Attributes:
    rank: R, of the bias on the logits by the token before.
    confidence: whether the head says how likely its guess is to be accepted.
    confidence_of_token: whether the confidence reads the token before, too.
  """

  rank: int = 32
  confidence: bool = True
  confidence_of_token: bool = True
  from_root: bool = True


@functools.cache
def dspark(target: LayeredTarget, config: DSparkConfig) -> BlockChain:
  """DFlash with a bias by the token before each guess, and a confidence for each.

  DeepSeek 2026 (arXiv 2607.05147, and its code in DeepSpec). The layers are DFlash's, but the
  root's row guesses, too. To the logits after a token x the head adds U v(x), of rank R, where the
  vectors v are one for each of the target's tokens: a bigram that costs no pass, since the layers
  have run when the tokens are drawn in order. So the distribution of every guess is known where it
  is drawn, and trees, whose nodes share the layers' states, are filled by it. Its confidence is
  sigmoid(c [state; v(x)] + b), the chance that a token drawn at this place is accepted given that
  those before it are; the product down a chain feeds the draft lengths `survival` and `marginal`.

  The loss is 0.1 of the cross-entropy with the text, 0.9 of the L1 distance of the distributions,
  which is twice their total variation, and the binary cross-entropy of the confidence with 1 minus
  the total variation; depth d weighs exp(-(d - 1) / 4), or 0.78 ** (d - 1). The published heads
  have 5 layers, as many states of the target, 7 tokens and rank 256; here are 2, 3, 5 and 32. The
  bias starts as 0, which the published code draws at random.

  `dspark-8[path/to/head]` is a published head of 7 tokens.

  Measured: 1.31 tokens per pass after 50 steps (heads_short)

  Raises:
    ValueError: the target lacks a layer or the mask's token, a window is none, or the rank is not
      at least 1.
  """
  E, R, V = target.width, checks.whole("rank", config.rank, 1), target.vocab_size
  parts = context_block.parts(target, config)
  reads = E + R if config.confidence_of_token else E

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    ours, theirs = jax.random.split(key)
    words = V if vocabulary is None else len(vocabulary)
    params = parts.init(theirs, target_params, vocabulary) | {
      "before": 0.02 * jax.random.normal(ours, (V, R)),
      "bias": jnp.zeros((words, R)),
    }
    if config.confidence:
      params |= {"confidence": jnp.zeros((1, reads)), "confidence_bias": jnp.zeros((1,))}
    return params

  def follow(params, target_params, state, carry, tokens, d):
    before = lookup(params["params"]["before"], tokens).astype(state.dtype)
    return jnp.concatenate([state, before], -1), carry

  through = draft_vocabulary.through(target)

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    bias = linear(state[..., E:], params["params"]["bias"]).astype(jnp.float32)
    return through(params, target_params, state[..., :E]) + bias

  def log_odds(params: Params, state: Array) -> Array:
    own = params["params"]
    found = linear(state[..., :reads], own["confidence"]).astype(jnp.float32)
    return found[..., 0] + own["confidence_bias"].astype(jnp.float32)[0]

  return BlockChain(
    "dspark",
    target,
    config.depth,
    init,
    read,
    parts.block,
    follow,
    loss=LossWeights(hard=0.1, tv=1.8, confidence=float(config.confidence), decay=0.78),
    memory=parts.memory,
    hidden_layers=parts.hidden_layers,
    feature=lambda state, d: state[..., :E],
    log_odds=log_odds if config.confidence else None,
  )
