"""P-EAGLE: EAGLE-3 whose later guesses come from masks in a row, all in one pass.

Letters: B batch, N rows of a text, M roots, A = D - 1 masks of a root, E width, D depth, L the
target's layers, W' draft vocabulary.
"""

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import blocks, draft_vocabulary, embedding
from specjax.heads.base import LossWeights
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.heads.masked_block import MaskedBlock
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm
from specjax.models.weights import dense


@dataclasses.dataclass(frozen=True)
class PEagleConfig:
  """Shape of the head.

  Attributes:
    depth: D; the root's row says depth 1, mask d - 1 after it depth d.
    layers: transformer layers of the head, 1 or more.
    mask_token: id of the token whose embedding the masks have.
    hidden_layers: layers of the target whose input is read, 0 to L; () is an early, a middle and a
      late one.
    mlp_width: of the layers; 0 is the target's.
    attention_bias: whether q, k and v have biases.
    own_embedding: whether the head has an embedding of its own, which starts as the target's.
    norm_before_residual: whether the residual stream starts from the normed state.
    window: how many of the last positions a row sees; None is all.
  """

  depth: int = 5
  layers: int = 2
  mask_token: int = 0
  hidden_layers: tuple[int, ...] = ()
  mlp_width: int = 0
  attention_bias: bool = False
  own_embedding: bool = False
  norm_before_residual: bool = False
  window: int | None = None


class PEagleLayers(nn.Module):
  """Layers on the state g, of which the first attends from [norm e; norm g], where e is the
  embedding of the next token; a matrix makes g of `inputs` states of the target, or of one learned
  vector that stands for them in a mask."""

  layers: nn.Module
  width: int
  epsilon: float
  inputs: int
  norm_before_residual: bool

  def setup(self):
    E, inputs = self.width, self.inputs
    self.fc = weight(self, "fc", nn.initializers.normal(0.02), (E, inputs * E))
    self.mask_hidden = self.param("mask_hidden", nn.initializers.normal(1.0), (inputs * E,))
    self.input_norm, self.hidden_norm = RMSNorm(self.epsilon), RMSNorm(self.epsilon)
    self.norm = RMSNorm(self.epsilon)

  def run(self, joint: Array, embedded: Array, *rest) -> tuple[Array, KV]:
    """Joined states [B, N, inputs * E] of the target and embeddings [B, N, E] of the next tokens ->
    (what the LM head reads [B, N, E], KV); see `models.layers.Layers` for the rest."""
    state = linear(joint, self.fc)
    normed = self.hidden_norm(state)
    x = jnp.concatenate([self.input_norm(embedded), normed], -1)
    stream = normed if self.norm_before_residual else state
    x, kv, *_ = self.layers(stream, *rest, attention_input=x)
    return self.norm(x), kv

  def __call__(
    self,
    hidden_layers: tuple[Array, ...],
    embedded: Array,
    position: Array,
    mask: Array,
    cache: Cache | None = None,
  ) -> tuple[Array, KV]:
    """As `run`, from the target's states, arrays [B, N, E]."""
    return self.run(jnp.concatenate(hidden_layers, -1), embedded, position, mask, cache)

  def masks(self, rows: int, roots: int, embedded: Array, *rest) -> Array:
    """What the LM head reads [B, M, A, E] at A `rows` of masks after each of M `roots`; their
    embedding is [B, 1, E]."""
    B, _, E = embedded.shape
    joint = jnp.broadcast_to(self.mask_hidden.astype(embedded.dtype), (B, 1, self.inputs * E))
    joint, embedded = (jnp.repeat(x, roots * rows, 1) for x in (joint, embedded))
    return self.run(joint, embedded, *rest)[0].reshape(B, roots, rows, E)


@functools.cache
def peagle(target: LayeredTarget, config: PEagleConfig) -> MaskedBlock:
  """EAGLE-3's network, which guesses D tokens in one pass: the root and D - 1 masks after it.

  Hui et al. 2026 (arXiv 2602.01469). The text's rows are EAGLE-3's: several states of the target
  and the token after them. A mask has the embedding of one token and, in place of the target's
  states, one learned vector; it stands a place further than the row before it, and sees the text
  and the masks before it. Masks leave no trace: accepted tokens are run from the target's states.
  The head has its own final norm and LM head [W', E], which starts as the target's rows.

  The published heads have 2 to 4 layers and say 8 to 10 tokens; here are 2 and 5. All depths weigh
  the same in the loss, the KL divergence from the target. The published training down-samples: it
  keeps 0.7 ** d of the positions at depth d, and at least a fifth. Here masks follow the drafting
  positions alone (`train.heads --points`), which are random in each step, and the text is run once
  for all of them.

  `peagle-8[path/to/head]` is a published head.

  Measured: 2.55 tokens per pass (heads_short)

  Raises:
    ValueError: the target lacks a layer or the mask's token, or a window is none.
  """
  E, D, epsilon = target.width, config.depth, target.norm_epsilon
  taps = hidden_layers_of(target.layers, config.hidden_layers)
  checks.whole("mask_token", config.mask_token, 0, target.vocab_size - 1, note="the target's")
  if config.window is not None:
    checks.whole("window", config.window, 1)
  layers = target.make_layers(
    config.layers,
    mlp_width=config.mlp_width,
    attention_width=2 * E,
    window=config.window or False,
    qk_norm=False,
    qkv_bias=config.attention_bias,
  )
  module = PEagleLayers(layers, E, epsilon, len(taps), config.norm_before_residual)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, (x,) * len(taps), x, position, jnp.ones((1, 1, 1), bool))["params"]
    params = params | {
      "lm_head": dense(draft_vocabulary.rows(target.lm_head(target_params), vocabulary)),
      **embedding.collection(target, target_params, config.own_embedding),
    }
    return params

  def memory(params, target_params, features, following, *rest):
    embedded = embedding.embed(target, target_params, params, following)
    own = {"params": params["params"]}
    return module.apply(own, features.hidden_layers, embedded, *rest)

  def block(params, target_params, last, position, sees=None, cache=None, earlier=None):
    if D == 1:
      return last[:, :, None]
    B, M, _ = last.shape
    token = jnp.full((B, 1), config.mask_token, jnp.int32)
    embedded = embedding.embed(target, target_params, params, token)
    place, mask = blocks.laid_out(position, 1, D - 1, sees, causal=True, window=config.window)
    later = module.apply(
      {"params": params["params"]}, D - 1, M, embedded, place, mask, cache, earlier, method="masks"
    )
    return jnp.concatenate([last[:, :, None], later], 2)

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    return linear(state, params["params"]["lm_head"]).astype(jnp.float32)

  loss = LossWeights(hard=0.0, soft=1.0, decay=1.0)
  return MaskedBlock(
    "peagle", target, D, init, read, block, loss=loss, memory=memory, hidden_layers=taps
  )
