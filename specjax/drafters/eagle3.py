"""EAGLE-3: one layer on several of the target's layers, trained on its own outputs.

Letters: B batch, T row length, M cut points, N rows, W nodes of one level, E width, D depth,
L the target's layers, V vocabulary, W draft vocabulary.
"""

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Drafter, Examples, Head, LossWeights
from specjax.drafters import draft_context, draft_recursion, draft_vocabulary
from specjax.models.config import Config
from specjax.models.linear import linear
from specjax.models.transformer import Layers, RMSNorm, attention_mask, target
from specjax.trees.grow import Sampling, Tree, grow, proposal_of, size_of
from specjax.trees.structure import at


@dataclasses.dataclass(frozen=True)
class Eagle3Config:
  """Shape of the head.

  Attributes:
    depth: D, how far ahead it may guess.
    hidden_layers: layers of the target whose input is read, 0 to L; () is an early, a middle and a late one.
    mlp_width: of the layer; 0 is the target's.
  """

  depth: int = 5
  hidden_layers: tuple[int, ...] = ()
  mlp_width: int = 0


def hidden_layers_of(model: Config, config: Eagle3Config) -> tuple[int, ...]:
  """The layers read: published are 2, L // 2 and L - 3, which a shallow target moves outwards.

  Raises:
    ValueError: a layer that the target has not.
  """
  L = model.layers
  if not config.hidden_layers:
    return (2, L // 2, L - 3) if L > 6 else (1, L // 2, L - 1)
  if min(config.hidden_layers) < 0 or max(config.hidden_layers) > L:
    raise ValueError(
      f"hidden_layers={config.hidden_layers}: accepted are layers 0 to {L}, the target's."
    )
  return config.hidden_layers


class Eagle3Layer(nn.Module):
  """A block on the state g that attends from [norm e; norm g], e the embedding that follows.

  Attributes:
    config: of the block, one layer.
    hidden_layers: how many states of the target are made into one g.
  """

  config: Config
  hidden_layers: int

  def setup(self):
    c = self.config
    self.fc = self.param(
      "fc", nn.initializers.normal(0.02), (c.width, self.hidden_layers * c.width)
    )
    self.input_norm = RMSNorm(c.norm_epsilon)
    self.hidden_norm = RMSNorm(c.norm_epsilon)
    self.layers = Layers(c, attention_width=2 * c.width)

  def __call__(
    self, hidden_layers: tuple[Array, ...], embedded: Array, position: Array, mask: Array,
    cache: Cache | None = None,
  ) -> tuple[Array, KV]:  # fmt: skip
    """From the target's states, arrays [B, N, E]; otherwise as `guess`."""
    state = linear(jnp.concatenate(hidden_layers, -1), self.fc)
    return self.guess(state, embedded, position, mask, cache)

  def guess(
    self, state: Array, embedded: Array, position: Array, mask: Array,
    cache: Cache | None = None, earlier: KV | None = None,
  ) -> tuple[Array, KV]:  # fmt: skip
    """From states g [B, N, E] and embeddings [B, N, E] of what follows; rest: see `Layers`.

    Returns:
      (the next states [B, N, E], before the final norm, KV).
    """
    x = jnp.concatenate([self.input_norm(embedded), self.hidden_norm(state)], -1)
    return self.layers(state, position, mask, cache, earlier, attention_input=x)[:2]


@functools.cache
def eagle3(model: Config, config: Eagle3Config) -> Head:
  """A layer that guesses tokens from three of the target's layers, then from its own states.

  Li et al. 2025 (arXiv 2503.01840, section 3). Its states need not look like the target's, so there
  is a final norm and an LM head [W, E] of its own, usually over a reduced vocabulary, and no loss
  on states. `unroll` is the training-time test: depth d is learned from what the layer itself said
  at depths 1 to d - 1. Tokens are embedded by the target.

  Carried between rounds: `draft_context.TextLayers`, the layer's cache over true states and its newest
  output; what was drafted from guesses is dropped. Siblings are distinct and chosen without
  looking at noise, so "greedy" and "target_only" are exact.

  The layer has the target's heads, biases and rotary embedding, but neither norms on q and k nor a
  sliding window, which the published layer lacks. The paper leaves open where the LM head starts;
  here at the target's rows.

  Args:
    model: the target's network.
    config: shape of the head.
  """
  layer = dataclasses.replace(
    model, layers=1, mlp_width=config.mlp_width or model.mlp_width, qk_norm=False, window=None
  )
  hidden_layers, D = hidden_layers_of(model, config), config.depth
  module, network, norm = (
    Eagle3Layer(layer, len(hidden_layers)),
    target(model),
    RMSNorm(model.norm_epsilon),
  )

  def init(key, target_params, vocabulary=None):
    x, position = jnp.zeros((1, 1, model.width)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, (x,) * len(hidden_layers), x, position, jnp.ones((1, 1, 1), bool))[
      "params"
    ]
    params = params | {
      "norm": norm.init(key, x)["params"],
      "lm_head": draft_vocabulary.rows(network.lm_head(target_params), vocabulary),
    }
    return {"params": params} | draft_vocabulary.collection(vocabulary)

  def bind(params, target_params, method: str):
    """(state or hidden_layers, following token ids, position, mask, ...) -> (next state, KV)."""
    own = {k: v for k, v in params["params"].items() if k not in ("norm", "lm_head")}

    def run(x, following, *rest):
      embedded = network.embed(target_params, following)
      return module.apply({"params": own}, x, embedded, *rest, method=method)

    return run

  def on_true_states(params, target_params):
    run = bind(params, target_params, "__call__")
    return lambda features, *rest: run(features.hidden_layers, *rest)

  def unroll(params, target_params, examples: Examples):
    following = jnp.pad(examples.tokens[:, 1:], ((0, 0), (0, 1)))
    mask = attention_mask(examples.segment, causal=True)
    run = on_true_states(params, target_params)
    output, kv = run(examples.features, following, examples.position, mask)
    guess = bind(params, target_params, "guess")
    return draft_recursion.unroll(guess, output, kv, examples, mask, D)

  def read(params, target_params, state, d):
    hidden = norm.apply({"params": params["params"]["norm"]}, state)
    return linear(hidden, params["params"]["lm_head"]).astype(jnp.float32)

  def drafter(tree: Tree) -> Drafter:
    nodes, depth = size_of(tree, D)

    def initial(params, target_params, context, features, capacity):
      run = on_true_states(params, target_params)
      return draft_context.remember(run, context, features, capacity)

    def propose(params, target_params, memory, context, settings, noise):
      root = at(context.tokens, context.length[:, None] - 1)
      step = draft_recursion.step_from(
        bind(params, target_params, "guess"), memory,
        lambda state: read(params, target_params, state, 1),
      )  # fmt: skip
      ids = draft_vocabulary.ids(params)
      sampling = Sampling(settings, noise, model.vocab_size)
      return grow(tree, root, step, memory.last[:, None], None, ids, sampling), memory

    def update(params, target_params, memory, draft, evaluation, verdict, rows):
      run = on_true_states(params, target_params)
      return draft_context.extend(run, memory, evaluation, verdict, rows)

    return Drafter(
      "eagle3",
      proposal_of(tree),
      nodes,
      depth,
      initial,
      propose,
      update,
      hidden_layers=hidden_layers,
    )

  loss = LossWeights(hard=0.0, soft=1.0, decay=0.8)
  return Head("eagle3", D, hidden_layers, loss, init, unroll, read, functools.cache(drafter))
