"""Gemma 4's assistant: small layers over the target's own keys and values, and an LM head by
centroids.

Letters: B batch, W nodes of one level, E the target's width, E' the head's, V vocabulary, W' draft
vocabulary, X centroids, k open ones, G = V / X tokens of each.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import LayeredTarget, Params
from specjax.distributed import top_k
from specjax.heads.target_rows import TargetRows
from specjax.models.linear import linear

ORDER = "order"  # of the tokens by centroids, a collection of the head's params
_INIT = 0.02


@dataclasses.dataclass(frozen=True)
class Gemma4AssistantConfig:
  """Shape of the head.

  Attributes:
    depth: D, how often the layers may be used in a row.
    width, heads, mlp_width: E', the heads of queries and the width of the MLPs; 0 is the target's.
    full: of each layer, whether it reads the last keys and values of the target that see
      everything; the others read the last that have a sliding window.
    centroids: X, a divisor of V; 0 reads the whole vocabulary.
    open_centroids: k, how many centroids' tokens are read.
  """

  depth: int = 4
  width: int = 0
  heads: int = 0
  mlp_width: int = 0
  full: tuple[bool, ...] = (True,)
  centroids: int = 0
  open_centroids: int = 32

  def __post_init__(self):
    if self.centroids:
      checks.whole("open_centroids", self.open_centroids, 1, self.centroids)


@functools.cache
def gemma4_assistant(target: LayeredTarget, config: Gemma4AssistantConfig) -> TargetRows:
  """Small layers that read the target's last keys and values of each kind and have none.

  Google 2026, the assistants of Gemma 4, as in transformers' `gemma4_assistant`. The embedding of
  a token and the state before it are joined and made E' wide; behind the layers, whose weights are
  the same at every depth, the state is read, and made E wide for the next token. It stays at the
  root's position, since guesses have no keys. At depth 1 the state is the target's, after its final
  norm, as it is at the root.

  The LM head is the head's own. With centroids it reads the tokens of the k whose products with the
  state are largest, G = V / X of each; all others get 1 less than the least of these.

  A target must be dense in what it caches. Transformers' own loop also shows the layers the keys of
  a token that was rejected; they are not seen here.

  `gemma4_assistant-4[path/to/assistant]` is a published one.
  """
  E, V, X = target.width, target.vocab_size, config.centroids
  width = config.width or E
  if X and V % X:
    checks.refuse("centroids", X, f"a divisor of the vocabulary, {V}")
  layers = target.make_readers(
    width=width, heads=config.heads, mlp_width=config.mlp_width, full=config.full
  )

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    if X and vocabulary is not None:
      raise ValueError("`draft_vocab` must be None for a head that reads by centroids.")
    x, position = jnp.zeros((1, 1, width)), jnp.zeros((1, 1), jnp.int32)
    inputs = (target.embed(target_params, position),) * len(layers.hidden_layers)
    seen = layers.rows(target_params, inputs, position, jnp.ones((1, 1, 1), bool))
    seen = jax.tree.map(lambda y: y.astype(x.dtype) if y.ndim > 3 else y, seen)
    keys = jax.random.split(key, 5)
    words = V if vocabulary is None else vocabulary.shape[0]
    shapes = {"before": (width, 2 * E), "after": (E, width), "lm_head": (words, width)}
    shapes |= {"centroids": (X, width)} if X else {}
    own = {
      name: jax.random.normal(k, shape) * _INIT
      for k, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    return own | {"layers": layers.init(keys[4], x, position, seen)["params"]}

  def fixed() -> Params:
    return {ORDER: jnp.arange(V, dtype=jnp.int32)} if X else {}

  def step(params, target_params, carry, tokens, position, seen, d):
    own, embedded = params["params"], target.embed(target_params, tokens)
    x = linear(jnp.concatenate([embedded, carry.astype(embedded.dtype)], -1), own["before"])
    x = layers.apply({"params": own["layers"]}, x, position, seen)
    return x, linear(x, own["after"])

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    own = params["params"]
    if not X:
      return linear(state, own["lm_head"]).astype(jnp.float32)
    shape, x = state.shape[:-1], state.reshape(-1, width)
    _, best = top_k(linear(x, own["centroids"]).astype(jnp.float32), config.open_centroids)
    ids = jnp.take(params[ORDER].reshape(X, -1), best, axis=0).reshape(len(x), -1)
    rows = jnp.take(own["lm_head"], ids, axis=0)
    some = jnp.einsum("ne,nme->nm", x, rows, preferred_element_type=jnp.float32)
    rest = jnp.broadcast_to(some.min(-1, keepdims=True) - 1, (len(x), V))
    logits = rest.at[jnp.arange(len(x))[:, None], ids].set(some)
    return logits.reshape(*shape, V)

  return TargetRows(
    "gemma4_assistant",
    target,
    config.depth,
    init,
    read,
    step,
    layers.rows,
    hidden_layers=layers.hidden_layers,
    fixed=fixed,
  )
