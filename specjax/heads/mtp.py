"""MTP: modules with which published models predict more tokens, the last used for every depth left.

Letters: B batch, N rows, S capacity, E width, D depth, M modules.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import draft_vocabulary
from specjax.heads.attending import Attend, Attending
from specjax.heads.base import LossWeights
from specjax.kernels.tree_attention import PAGE, Paged
from specjax.models import cache as kv_cache
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm

DEEPER = "depth_"  # begins the names of what modules 2 to M have for themselves


@dataclasses.dataclass(frozen=True)
class MTPConfig:
  """Shape of the head.

  Attributes:
    depth: D, how many tokens are guessed in a row.
    before_norm: whether the text's states are the target's before its final norm, as in MiMo.
    modules: M, how many there are, each for a depth; the last one serves deeper guesses.
    shares: whether modules differ in their layer alone, as in Qwen3.5.
  """

  depth: int = 4
  before_norm: bool = False
  modules: int = 1
  shares: bool = False

  def __post_init__(self):
    checks.whole("modules", self.modules, 1)


class MTPModule(nn.Module):
  """z = P [norm e; norm h], a whole transformer layer on z, and a norm."""

  layers: nn.Module
  epsilon: float

  @nn.compact
  def __call__(
    self,
    state: Array,
    embedded: Array,
    position: Array,
    mask: Array,
    cache: Cache | None = None,
    earlier: KV | None = None,
    visible: Array | None = None,
  ) -> tuple[Array, KV]:
    """States h and embeddings e of the tokens that follow them, [B, N, E] -> (the next states
    [B, N, E], KV); see `models.layers.Layers` for the rest."""
    E = state.shape[-1]
    token = RMSNorm(self.epsilon, name="token_norm")(embedded)
    x = jnp.concatenate([token, RMSNorm(self.epsilon, name="state_norm")(state)], -1)
    x = linear(x, weight(self, "projection", nn.initializers.normal(0.02), (E, 2 * E)))
    x, kv, *_ = self.layers(x, position, mask, cache, earlier, visible=visible)
    return RMSNorm(self.epsilon, name="norm")(x), kv


@dataclasses.dataclass(frozen=True)
class MTP(Attending):
  """The head: each of the first levels has a module of its own.

  Attributes:
    at_level: level -> what attends from its nodes.
    memory: takes what it gave at the row before its first one, too, `before` [B, M E] or None.
  """

  at_level: Callable[[int], Attend]
  memory: Callable[..., tuple[Array, KV]] = dataclasses.field(kw_only=True)

  def at(self, level):
    return self.at_level(level)

  def behind(self, state):
    return functools.partial(self.memory, before=state.last)


def _of_depth(params: Params, m: int) -> Params:
  """The parameters of module m, from 0; later ones have what is theirs beside the first's."""
  first = {key: x for key, x in params.items() if not key.startswith(DEEPER)}
  return first | params.get(f"{DEEPER}{m + 1}", {})


def _of_module(cache: Cache | None, m: int) -> tuple[Cache | None, Array | None]:
  """The module's part of a cache, and bool[B, S], which of its rows there are: see `mtp`."""
  if cache is None:
    return None, None
  own = cache._replace(kv=KV(*(x[m : m + 1] for x in cache.kv)))
  rows: Any = kv_cache.rows_of(own).k[0]
  if m == 0 or rows.ndim != 4:
    return own, None
  capacity = rows.table.shape[1] * PAGE if isinstance(rows, Paged) else rows.shape[2]
  row = jnp.arange(capacity, dtype=jnp.int32)[None]
  return own, (row >= m) & (row < cache.length[:, None])


@functools.cache
def mtp(target: LayeredTarget, config: MTPConfig) -> Attending:
  """A layer on the last state and the token after it, each after a norm of its own.

  DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437, section 2.2), where module d predicts depth d and
  is trained with the model. Most published models carry one module, which vLLM and SGLang use again
  on its own states for depths 2 to D; so it is trained here, on a frozen target. Its keys are those
  of the text, then those of its own guesses. Embeddings and the LM head are the target's; the norm
  before the LM head is the module's and starts as the target's final norm.

  Of M modules (`modules`) module d reads the states of module d - 1 at the token before, and its
  keys are its own of the whole text, whose first d - 1 tokens have none, and of the guesses. Every
  module thus runs over the text and over guesses of the levels before its own. Module M goes on by
  its own states, as a single one does.

  States are those after the final norms, as in Qwen3-Next; the norm that reads them again undoes
  all but their weights. MiMo's layer reads the text's before the target's. Depths weigh
  0.6 ** (d - 1) in the loss, cross-entropy with the text, as in FastMTP (Tencent 2025); D = 1 is
  DeepSeek's. The layer lacks the target's sliding window.

  `mtp-2[path/to/model]` is the layer in the target's own checkpoint.

  Measured: 4.28 tokens per pass (heads_short)
  """
  M, E = config.modules, target.width
  module = MTPModule(target.make_layers(window=False), target.norm_epsilon)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)

    def drawn(key: Array) -> Params:
      params = module.init(key, x, x, position, jnp.ones((1, 1, 1), bool))["params"]
      norm = jax.tree.map(jnp.array, target.last_layer(target_params)[1])  # a buffer of its own
      return params | {"norm": norm}

    deeper = {f"{DEEPER}{m + 1}": drawn(jax.random.fold_in(key, m)) for m in range(1, M)}
    if config.shares:
      deeper = {name: {"layers": x["layers"]} for name, x in deeper.items()}
    return drawn(key) | deeper

  def run(m: int, params, state, embedded, position, mask, cache, earlier=None):
    own, visible = _of_module(cache, m)
    if earlier is not None:
      earlier = KV(*(x[m : m + 1] for x in earlier))
    return module.apply(
      {"params": _of_depth(params["params"], m)},
      state, embedded, position, mask, own, earlier, visible,
    )  # fmt: skip

  def memory(
    params,
    target_params,
    features,
    following,
    position,
    mask,
    cache=None,
    before: Array | None = None,
  ):
    embedded = target.embed(target_params, following)
    state = features.hidden_layers[0] if config.before_norm else features.hidden
    own = jnp.eye(mask.shape[1], dtype=bool)[None]
    states: list[Array] = []
    rows: list[KV] = []
    seen = mask
    for m in range(M):
      if m:
        last = jnp.zeros_like(state[:, :1])
        if before is not None:
          last = before[:, None, (m - 1) * E : m * E]
        there = position >= m
        state = jnp.concatenate([last, states[-1][:, :-1]], 1)
        state = jnp.where(there[..., None], state, 0)
        seen = (mask & there[:, None]) | own
      state, kv = run(m, params, state, embedded, position, seen, cache)
      states.append(state)
      rows.append(kv)
    return jnp.concatenate(states, -1), _joined(rows)

  def at_level(level: int) -> Attend:
    def attend(params, target_params, state, following, position, mask, cache=None, earlier=None):
      embedded = target.embed(target_params, following)
      states, rows = jnp.split(state, M, -1), {}
      after = list(states)
      for m in range(min(level, M - 1), M):
        seen = mask
        if m and earlier is not None and mask.shape[2] == earlier.k[0].shape[2]:  # all of the text
          seen = mask & (jnp.cumsum(mask, 2, dtype=jnp.int32) > m)
        before = states[m - 1] if level < M else states[m]
        after[m], rows[m] = run(m, params, before, embedded, position, seen, cache, earlier)
      # No later level asks for rows of the modules before.
      return jnp.concatenate(after, -1), _joined([rows.get(m, rows[M - 1]) for m in range(M)])

    return attend

  def feature(state: Array, d: int | None) -> Array:
    m = min(d or 1, M) - 1
    return state[..., m * E : (m + 1) * E]

  through_target = draft_vocabulary.through(target)

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    return through_target(params, target_params, feature(state, d), d)

  return MTP(
    "mtp",
    target,
    config.depth,
    init,
    read,
    at_level(M),
    at_level=at_level,
    loss=LossWeights(decay=0.6),
    memory=memory,
    feature=feature,
    hidden_layers=(target.layers,) if config.before_norm else (),
  )


def _joined(rows: Sequence[KV]) -> KV:
  """Those of all modules, a layer each."""
  return KV(*(sum((getattr(x, name) for x in rows), ()) for name in KV._fields))
