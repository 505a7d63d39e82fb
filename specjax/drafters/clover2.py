"""Clover-2: layers over committed text, then a recurrent attention without softmax per token.

Letters: B batch, T row length, N nodes, M cut points, D depth, E width, H heads, V vocabulary,
W draft vocabulary, L the target's layers.
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Drafter, Examples, Head, LossWeights
from specjax.drafters import draft_context, draft_vocabulary
from specjax.models.config import Config
from specjax.models.linear import linear
from specjax.models.transformer import Layers, RMSNorm, attention_mask, target
from specjax.trees.grow import Sampling, Tree, grow, proposal_of, size_of
from specjax.trees.structure import at

NOISE = 0.01  # starting weights lie up to this above 0, or above the identity


def _near_identity(key, shape, dtype=jnp.float32):
  return jnp.eye(*shape, dtype=dtype) + NOISE * jax.random.uniform(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class Clover2Config:
  """Shape of the head.

  Attributes:
    depth: D, how far it guesses ahead.
    layers: transformer layers of the augmenting block, 1 or more; the released code has 2.
  """

  depth: int = 5
  layers: int = 1


class Affine(nn.Module):
  """[..., any] -> [..., width]: a matrix and a bias."""

  width: int
  initial: Callable[..., Array] = _near_identity

  @nn.compact
  def __call__(self, x: Array) -> Array:
    y = linear(x, self.param("weight", self.initial, (self.width, x.shape[-1])))
    bias = self.param("bias", nn.initializers.zeros, (self.width,))
    return y + jnp.broadcast_to(bias, y.shape)


class ResidualAttention(nn.Module):
  """x + cos(q, k) v, the cosine per head: attention to a single key, which no softmax could weigh.

  q is of the normed x, k and v of y. A head is a run of E / H channels.
  """

  config: Config

  @nn.compact
  def __call__(self, x: Array, y: Array) -> Array:
    """x, y [..., E] -> [..., E]."""
    c = self.config

    def heads(z: Array) -> Array:
      return z.reshape(*z.shape[:-1], c.heads, -1)

    def unit(z: Array) -> Array:
      z = z.astype(jnp.float32)
      square = jnp.sum(z * z, -1, keepdims=True)
      return z * jax.lax.rsqrt(jnp.maximum(square, c.norm_epsilon**2))

    q = heads(Affine(c.width, name="q")(RMSNorm(c.norm_epsilon, name="norm")(x)))
    k = heads(Affine(c.width, name="k")(y))
    v = heads(Affine(c.width, nn.initializers.uniform(NOISE), name="v")(y))
    cosine = jnp.sum(unit(q) * unit(k), -1, keepdims=True).astype(v.dtype)
    return x + (cosine * v).reshape(x.shape)


class Clover2Net(nn.Module):
  """The parts, in the order in which a token passes them."""

  config: Config  # the target's, with the augmenting block's number of layers

  def setup(self):
    c = self.config
    self.root_attention = ResidualAttention(c)
    self.augment = Layers(c)
    self.norm = RMSNorm(c.norm_epsilon)
    self.root_output = Affine(c.width)
    self.token_attention = ResidualAttention(c)
    self.token_output = Affine(c.width)
    self.head_norm = RMSNorm(c.norm_epsilon)

  def block(self, stream, following, position, mask, cache=None):
    """The target's stream and the vectors of the tokens that follow, [B, N, E]: (m_0, KV)."""
    x, kv, _ = self.augment(self.root_attention(stream, following), position, mask, cache)
    return self.norm(x), kv

  def first(self, m: Array) -> Array:
    """m_0 -> what the LM head reads at depth 1; [B, N, E] each."""
    return self.head_norm(self.root_output(m))

  def later(self, m: Array, token: Array) -> tuple[Array, Array]:
    """m of a depth and the vector guessed there -> (what is read at the next depth, its m)."""
    m = self.token_attention(m, token)
    return self.head_norm(self.token_output(jnp.concatenate([m, token], -1))), m

  def __call__(self, stream, position, mask):
    """Runs everything once, for `init`."""
    m, _ = self.block(stream, stream, position, mask)
    return self.first(m), self.later(m, stream)


@functools.cache
def clover2(model: Config, config: Clover2Config) -> Head:
  """A recurrent head whose start has seen the whole text and the root.

  Xiao et al. 2024 (arXiv 2408.00264), as in their released code. With h_t the target's residual
  stream before its final norm and e(x) the token's row of the target's LM head:

      m_0 = norm(layers(attention_1(h_t, e(x_{t+1})))),  s_1 = head_norm(M_1 m_0)
      m_d = attention_2(m_{d-1}, y),  s_{d+1} = head_norm(M_2 [m_d; y]),  y = e(x_{t+d+1})

  The LM head reads s_d, which is trained to be the target's own state there. attention_2, M_2 and
  head_norm serve all depths. At the start the layers are the target's last one, both norms its
  final norm, q, k, M_1 and M_2 the identity (M_2 = [I 0]) and v zero, all but for `NOISE`.

  Carried between rounds: `TextLayers`, the layers' keys and values and m_0 [B, E]. Siblings are
  distinct and chosen without looking at noise, so "greedy" and "target_only" are exact; no q is
  offered.

  Args:
    model: the target's network.
    config: shape of the head.

  Raises:
    ValueError: the width is not a multiple of the number of heads.
  """
  if model.width % model.heads:
    raise ValueError(f"width={model.width} must be a multiple of heads={model.heads} for clover2.")
  D, hidden_layers = config.depth, (model.layers,)
  module = Clover2Net(dataclasses.replace(model, layers=config.layers, window=None))
  lm_head = target(model).lm_head

  def init(key, target_params, vocabulary=None):
    x, position = jnp.zeros((1, 1, model.width)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, x, position, jnp.ones((1, 1, 1), bool))["params"]

    def copy(name: str):
      return jax.tree.map(jnp.array, target_params["params"][name])

    layers = {f"layer_{i}": copy(f"layer_{model.layers - 1}") for i in range(config.layers)}
    params = params | {"augment": layers, "norm": copy("norm"), "head_norm": copy("norm")}
    return {"params": params} | draft_vocabulary.collection(vocabulary)

  def apply(params, *arguments, method: str):
    return module.apply({"params": params["params"]}, *arguments, method=method)

  def vector(target_params, tokens: Array) -> Array:
    return jnp.take(lm_head(target_params), tokens, axis=0)

  def unroll(params, target_params, examples: Examples):
    following = jnp.pad(examples.tokens[:, 1:], ((0, 0), (0, 1)))
    m, _ = apply(
      params, examples.features.hidden_layers[0], vector(target_params, following), examples.position,
      attention_mask(examples.segment, causal=True), method="block",
    )  # fmt: skip
    m = draft_context.rows_at(m, examples.at)
    states = [apply(params, m, method="first")]
    for d in range(2, D + 1):
      token = vector(target_params, draft_context.token_at(examples, d))
      state, m = apply(params, m, token, method="later")
      states.append(state)
    return tuple(states)

  def read(params, target_params, state, d):
    matrix = draft_vocabulary.rows(lm_head(target_params), draft_vocabulary.ids(params))
    return linear(state, matrix).astype(jnp.float32)

  def drafter(tree: Tree) -> Drafter:
    nodes, depth = size_of(tree, D)

    def run_with(params, target_params):
      def run(features, following, position, mask, cache):
        token = vector(target_params, following)
        return apply(
          params, features.hidden_layers[0], token, position, mask, cache, method="block"
        )

      return run

    def initial(params, target_params, context, features, capacity):
      run = run_with(params, target_params)
      return draft_context.remember(run, context, features, capacity)

    def propose(params, target_params, memory, context, settings, noise):
      root = at(context.tokens, context.length[:, None] - 1)

      def step(level, tokens, m, rows, mask):
        if level == 0:  # m_0 has seen the root
          state = apply(params, m, method="first")
        else:
          state, m = apply(params, m, vector(target_params, tokens), method="later")
        return read(params, target_params, state, level + 1), m, rows

      ids, sampling = draft_vocabulary.ids(params), Sampling(settings, noise, model.vocab_size)
      return grow(tree, root, step, memory.last[:, None], (), ids, sampling), memory

    def update(params, target_params, memory, draft, evaluation, verdict, rows):
      run = run_with(params, target_params)
      return draft_context.extend(run, memory, evaluation, verdict, rows)

    return Drafter(
      "clover2",
      proposal_of(tree),
      nodes,
      depth,
      initial,
      propose,
      update,
      hidden_layers=hidden_layers,
    )

  loss = LossWeights(hard=0.0, soft=1.0, feature=10.0, decay=0.7)
  return Head("clover2", D, hidden_layers, loss, init, unroll, read, functools.cache(drafter))
