"""Domino: a block in one pass, and a correction by what is recurrent over the tokens before.

Letters: B batch, W nodes of one level, E width, G width of the recurrent state, R rank, D depth,
V vocabulary, W' draft vocabulary.
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
from specjax.models.linear import linear


@dataclasses.dataclass(frozen=True)
class DominoConfig(ContextBlockConfig):
  """Shape of the head; mask d of a block guesses depth d.

  Attributes:
    state: G, width of the recurrent state.
    rank: R, of the correction.
    plain: how many of the first depths have no correction.
  """

  state: int = 32
  rank: int = 32
  plain: int = 0


@functools.cache
def domino(target: LayeredTarget, config: DominoConfig) -> BlockChain:
  """DFlash with a correction of each guess by a GRU over the tokens of the block before it.

  Domino 2026 (arXiv 2605.29707), as SpecForge 0.2.0 trains it. The GRU has no biases, starts at
  zero, and takes in the embeddings of the root and of the guesses in order. With its state s and
  what DFlash's layers say, z, the logits of a depth are those of z and, but for the first `plain`
  depths, U SiLU(A [z; s]), of rank R. So every guess knows the tokens before it, the layers run
  once, and trees, whose nodes share z, are filled by it.

  The loss is DFlash's. SpecForge's begins as that of the logits without the correction, which
  fades out. The correction starts as 0, which the published code draws at random.

  `domino-15[path/to/head]` is a published head of blocks of 16.

  Raises:
    ValueError: the target lacks a layer or the mask's token, a window is none, `state` or `rank` is
      not at least 1, or `plain` is not between 0 and D.
  """
  E, V = target.width, target.vocab_size
  G, R = checks.whole("state", config.state, 1), checks.whole("rank", config.rank, 1)
  plain = checks.whole("plain", config.plain, 0, config.depth)
  parts = context_block.parts(target, config)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    theirs, *keys = jax.random.split(key, 4)
    words = V if vocabulary is None else len(vocabulary)
    shapes = {"gru_in": (3 * G, E), "gru_own": (3 * G, G), "correction_in": (R, E + G)}
    drawn = zip(keys, shapes.items(), strict=True)
    own = {name: jax.random.normal(k, shape) / shape[1] ** 0.5 for k, (name, shape) in drawn}
    own |= {"correction_out": jnp.zeros((words, R))}
    return parts.init(theirs, target_params, vocabulary) | own

  def follow(params, target_params, state, carry, tokens, d):
    own = params["params"]
    x = target.embed(target_params, tokens).astype(state.dtype)
    s = jnp.zeros((*tokens.shape, G), state.dtype) if carry is None else carry
    (r, z, n), (r_own, z_own, n_own) = (
      jnp.split(linear(y, own[name]), 3, -1) for y, name in ((x, "gru_in"), (s, "gru_own"))
    )
    z = jax.nn.sigmoid(z + z_own)
    s = (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + r_own) * n_own) + z * s
    return jnp.concatenate([state, s], -1), s

  through = draft_vocabulary.through(target)

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    logits = through(params, target_params, state[..., :E])
    if d is not None and d <= plain:
      return logits
    own = params["params"]
    inner = jax.nn.silu(linear(state, own["correction_in"]))
    return logits + linear(inner, own["correction_out"]).astype(jnp.float32)

  return BlockChain(
    "domino",
    target,
    config.depth,
    init,
    read,
    parts.block,
    follow,
    loss=LossWeights(decay=0.78),
    memory=parts.memory,
    hidden_layers=parts.hidden_layers,
    feature=lambda state, d: state[..., :E],
  )
