"""How logits become the distribution that tokens are drawn from, and the noise that draws them.

There is one distribution and one way to draw in the whole package: plain decoding, the verifiers
and the drafters all use it. The letters of shapes are those of `specjax.base`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from specjax import checks, switches
from specjax.kernels.platform import platform


@dataclasses.dataclass(frozen=True)
class SamplingParams:
  """How tokens are drawn, the same for all rows.

  Attributes:
    temperature, top_k, top_p, min_p, typical_p: see `Settings`; the defaults are greedy.

  Raises:
    ValueError: a number that `Settings` does not take.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  typical_p: float = 1.0

  def __post_init__(self) -> None:
    checks.number("temperature", self.temperature, 0, note="0 is greedy")
    checks.whole("top_k", self.top_k, note="0 keeps all")
    checks.number("top_p", self.top_p, most=1, above=0, note="1 keeps all")
    checks.number("min_p", self.min_p, 0, below=1, note="0 keeps all")
    checks.number("typical_p", self.typical_p, most=1, above=0, note="1 keeps all")

  @property
  def filters(self) -> dict[str, float]:
    """What keeps some tokens from being drawn, by name."""
    own = dataclasses.asdict(self)
    usual = dataclasses.asdict(SamplingParams(self.temperature))
    return {name: value for name, value in own.items() if value != usual[name]}

  def rows(self, B: int) -> "Settings":
    """The settings of B rows."""
    f32 = jnp.float32
    return Settings(
      jnp.full(B, self.temperature, f32),
      jnp.full(B, self.top_k, jnp.int32),
      jnp.full(B, self.top_p, f32),
      jnp.full(B, self.min_p, f32),
      jnp.full(B, self.typical_p, f32),
    )


GREEDY = SamplingParams()


def changed(sampling: SamplingParams, **changes: Any) -> SamplingParams:
  """These with other fields; ValueError for what are no `SamplingParams`."""
  if not isinstance(sampling, SamplingParams):
    checks.refuse("sampling", sampling, "a SamplingParams")
  return dataclasses.replace(sampling, **changes)


class Settings(NamedTuple):
  """The sampling settings of each row, which are traced, so that changing them never recompiles.

  They apply in this order: temperature, top-k, top-p, min-p, typical-p.

  Attributes:
    temperature: f32[B]. 0 is greedy.
    top_k: i32[B]. Keeps the k most likely tokens; 0 keeps all.
    top_p: f32[B]. Keeps the fewest most likely tokens whose mass reaches top_p; 1 keeps all.
    min_p: f32[B]. Drops tokens less likely than min_p times the most likely; 0 keeps all.
    typical_p: f32[B]. Of what the others keep, with entropy H in nats, keeps the fewest tokens with
      the least |-log p - H| whose mass reaches typical_p, the likeliest token not always among
      them; 1 keeps all. Locally typical sampling, Meister et al. 2022 (arXiv 2202.00666, section
      4). None keeps all in every row, and nothing is compiled for it.
  """

  temperature: Array
  top_k: Array
  top_p: Array
  min_p: Array
  typical_p: Array | None = None


def _order(x: Array) -> Array:
  """u32[...]: keys whose order is that of the f32 numbers x."""
  bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)  # -0 is 0
  bits = jnp.where(bits < 0, ~bits, bits | jnp.int32(-(2**31)))
  return lax.bitcast_convert_type(bits, jnp.uint32)


def _most_likely(order: Array, weight: Array, wanted: Array) -> Array:
  """bool[B, N, V]: the fewest tokens that weigh `wanted`, taken from the highest key down.

  Of equal keys lower ids come first. Nothing is sorted: the last key that is taken is found bit by
  bit, by a sum over the vocabulary for each, and so is the last of equal keys by its id. A running
  sum would have every device of a mesh hold the whole vocabulary.

  Args:
    order: u32[B, N, V].
    weight: [B, N, V], not negative.
    wanted: [B, 1, 1]; all are taken if they weigh less.
  """

  def weigh(tokens: Array) -> Array:
    return jnp.where(tokens, weight, 0).sum(-1, keepdims=True)

  def highest(bits: int, holds: Callable[[Array], Array]) -> Array:
    """u32[B, N, 1], the highest number for which a condition holds, or 0; it holds below it too."""

    def try_bit(i: Array, found: Array) -> Array:
      higher = found | (jnp.uint32(1 << (bits - 1)) >> i.astype(jnp.uint32))
      return jnp.where(holds(higher), higher, found)

    return lax.fori_loop(0, bits, try_bit, jnp.zeros_like(order[..., :1]))

  last = highest(32, lambda key: weigh(order >= key) >= wanted)
  tied = order == last
  before = weigh(order > last)

  def some_of_the_tied(_) -> Array:
    ids = jnp.arange(order.shape[-1], dtype=jnp.uint32)[None, None]
    size = order.shape[-1].bit_length()
    return tied & (ids <= highest(size, lambda i: before + weigh(tied & (ids < i)) < wanted))

  several = (tied.sum(-1) > 1).any()
  return (order > last) | lax.cond(several, some_of_the_tied, lambda _: tied, None)


_GROUP = 256  # tokens of which a vocabulary is searched, or noise is drawn, together


def _grouped(scores: Array) -> Array:
  """[..., V] -> [..., V / 256, 256], filled up with -inf."""
  fill = -scores.shape[-1] % _GROUP
  filled = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(0, fill)], constant_values=-jnp.inf)
  return filled.reshape(*scores.shape[:-1], -1, _GROUP)


def most_likely(scores: Array) -> Array:
  """i32[...], the token of the highest of scores f32[..., V]; the first one where several are.

  On CPU XLA reads a vocabulary number by number to find the place of its maximum, but many numbers
  at once to find the maximum, here of each group. For 16 nodes and 49152 tokens this takes 0.2 ms
  instead of 2.
  """
  if platform() != "cpu" or scores.shape[-1] < 4 * _GROUP:
    return jnp.argmax(scores, -1).astype(jnp.int32)
  groups = _grouped(scores)
  group = jnp.argmax(groups.max(-1), -1)
  members = jnp.take_along_axis(groups, group[..., None, None], -2)[..., 0, :]
  return (group * _GROUP + jnp.argmax(members, -1)).astype(jnp.int32)


def likeliest(scores: Array, count: int) -> Array:
  """i32[..., count], the tokens of the highest of scores f32[..., V], best first, as `lax.top_k`.

  On CPU a search through whole vocabularies is slow. The `count` best tokens are in the `count`
  groups with the highest maxima, so these alone are searched: for 8 of 49152 tokens and 8 nodes
  this takes 0.1 ms instead of 0.7, and for 32 nodes 0.6 instead of 2.8.
  """
  if platform() != "cpu" or scores.shape[-1] < 4 * count * _GROUP:
    return lax.top_k(scores, count)[1].astype(jnp.int32)
  groups = _grouped(scores)
  # In rising order, so that of equal scores the lower token still comes first.
  chosen = jnp.sort(lax.top_k(groups.max(-1), count)[1])
  members = jnp.take_along_axis(groups, chosen[..., None], -2)
  best = lax.top_k(members.reshape(*members.shape[:-2], -1), count)[1]
  group = jnp.take_along_axis(chosen, best // _GROUP, -1)
  return (group * _GROUP + best % _GROUP).astype(jnp.int32)


def heated(logits: Array, temperature: Array) -> Array:
  """logits f32[.., V] / temperature, above 0; -inf stays, as 1 / 3e38 may be 0 to a processor.

  Where the quotient overflows, the highest logit is taken off first.
  """
  top = logits.max(-1, keepdims=True)
  over = jnp.isfinite(top) & ~jnp.isfinite(top / temperature)
  cooled = (logits - jnp.where(over, top, 0.0)) / temperature
  return jnp.where(jnp.isfinite(logits), cooled, logits)


def warp(logits: Array, settings: Settings) -> Array:
  """The log-probabilities f32[B, N, V] that tokens are drawn from, of logits f32[B, N, V].

  They are -inf outside the support, and one-hot for greedy rows. Ties are broken by the lower id
  everywhere, so exactly k tokens survive top-k.
  """
  temperature, top_k, top_p, min_p = (x[:, None, None] for x in settings[:4])
  typical_p = None if settings.typical_p is None else settings.typical_p[:, None, None]
  greedy = temperature == 0
  logits = logits.astype(jnp.float32)

  def sampled(_) -> Array:
    x = heated(logits, jnp.where(greedy, 1.0, temperature))
    active = (settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)
    x = lax.cond(active.any(), filtered, lambda x: x, x)
    if typical_p is not None:
      x = lax.cond((typical_p < 1).any(), functools.partial(typical, typical_p), lambda x: x, x)
    return jax.nn.log_softmax(x)

  def filtered(x: Array) -> Array:
    order = _order(logits)  # a high temperature leaves no differences in x

    def first(weight: Array, wanted: Array, off: Array) -> Array:
      every = jnp.ones(x.shape, bool)
      return lax.cond(off.all(), lambda: every, lambda: off | _most_likely(order, weight, wanted))

    in_k = first(jnp.ones(x.shape, jnp.int32), top_k, top_k == 0)
    p = jax.nn.softmax(jnp.where(in_k, x, -jnp.inf))
    keep = in_k & first(p, top_p, top_p >= 1) & (p >= min_p * p.max(-1, keepdims=True))
    return jnp.where(keep | (ids == best), x, -jnp.inf)

  def typical(mass: Array, x: Array) -> Array:
    log_p = jax.nn.log_softmax(x)
    p = jnp.exp(log_p)
    entropy = -jnp.where(p > 0, p * log_p, 0.0).sum(-1, keepdims=True)
    keep = (mass >= 1) | _most_likely(_order(-jnp.abs(log_p + entropy)), p, mass)
    return jnp.where(keep, x, -jnp.inf)

  best, ids = most_likely(logits)[..., None], jnp.arange(logits.shape[-1])[None, None]

  def one_hot() -> Array:
    return jnp.where(ids == best, 0.0, -jnp.inf)

  # Rows may differ; a branch that no row needs is not run.
  return lax.cond(
    greedy.all(), lambda _: one_hot(), lambda x: jnp.where(greedy, one_hot(), sampled(x)), logits
  )


class NoiseSource(Protocol):
  """Where random choices come from: `Noise`, which documents the methods, or an enumerator."""

  def choose(self, log_probs: Array, depth: Array) -> Array: ...
  def draw(self, stream: int, log_probs: Array) -> Array: ...
  def accept(self, stream: int, p: Array, q: Array) -> Array: ...
  def children(self, stream: int, log_probs: Array, count: int, distinct: bool) -> Array: ...
  def gumbel(self, stream: int, shape: tuple[int, ...]) -> Array: ...


# Streams within a round, all apart: draft steps use DRAFT + step, coins COIN + node.
RESIDUAL, DRAFT, COIN = 0, 1, 1 << 16


@switches.hold
def categorical(key: Array, log_probs: Array) -> Array:
  """i32[], a draw from log_probs f32[V], whose probabilities need not sum to 1.

  A group of the vocabulary is drawn, then a token of it, each by the Gumbel-max trick.

  Rounding changes the choice only where two perturbed scores are as close as the rounding. An
  inverse cumulative sum would be as cheap, but rounding moves each of its V steps.
  """
  members = _grouped(log_probs)
  of_group, of_member = jax.random.split(key)
  mass = jnp.log(jnp.exp(members).sum(1))
  group = jnp.argmax(mass + jax.random.gumbel(of_group, mass.shape, mode="low"))
  member = jnp.argmax(members[group] + jax.random.gumbel(of_member, (_GROUP,), mode="low"))
  return (group * _GROUP + member).astype(jnp.int32)


class Noise(NamedTuple):
  """The random choices of one round depend on request and absolute position only.

  What a row draws therefore does not depend on its batch, its neighbours, or on how the tokens
  before it came about.

  Attributes:
    key: key[B], one per request.
    position: i32[B]. Where the next token goes: the committed length n.
  """

  key: Array
  position: Array

  def choose(self, log_probs: Array, depth: Array) -> Array:
    """i32[B, N], the token that plain sampling puts after each node of depth i32[B, N].

    `log_probs` is f32[B, N, V]. Nodes of one depth share their noise, that of their position. That
    is exact, because a walk from the root meets one of them.
    """

    def node(key, position, log_probs, depth):
      return categorical(jax.random.fold_in(key, position + depth), log_probs)

    nodes = jax.vmap(node, (None, None, 0, 0))
    return jax.vmap(nodes)(self.key, self.position, log_probs, depth)

  def _round(self, stream: int | Array) -> Array:
    """key[B] of this round, none of which `choose` uses; each round has its own position."""
    fold = jax.vmap(jax.random.fold_in, (0, 0))
    return jax.vmap(jax.random.fold_in, (0, None))(
      fold(fold(self.key, jnp.full_like(self.position, -1)), self.position), stream
    )

  def draw(self, stream: int | Array, log_probs: Array) -> Array:
    """i32[B], one token per row of f32[B, V]; independent between streams and rounds."""
    return jax.vmap(categorical)(self._round(stream), log_probs)

  @switches.hold
  def accept(self, stream: int, p: Array, q: Array) -> Array:
    """Tosses independent coins, which fall True with probability min(1, p / q); p, q f32[B, D].

    The comparison u q < p is strict, so that p = 0 never passes, and divides by no q = 0.
    """
    u = jax.vmap(lambda k: jax.random.uniform(k, p.shape[1:]))(self._round(stream))
    return u * q < p

  def children(self, stream: int, log_probs: Array, count: int, distinct: bool) -> Array:
    """i32[B, W, count], the draws of each of W nodes in order, from f32[B, W, V].

    Args:
      distinct: draws are without replacement (the Gumbel top-k trick). What is drawn after the
        support has run out is arbitrary.
    """
    if distinct:
      noisy = log_probs + self.gumbel(stream, log_probs.shape)
      return lax.top_k(noisy, count)[1].astype(jnp.int32)
    B, W, V = log_probs.shape
    noisy = log_probs[:, :, None] + self.gumbel(stream, (B, W, count, V))
    return jnp.argmax(noisy, -1).astype(jnp.int32)

  @switches.hold
  def gumbel(self, stream: int, shape: tuple[int, ...]) -> Array:
    """Independent standard Gumbel noise f32[shape]; shape begins with B."""
    draw = functools.partial(jax.random.gumbel, shape=shape[1:], mode="low")
    return jax.vmap(draw)(self._round(stream))


def new_key(seed: int | Array) -> Array:
  """key[] of a seed below 2**32: the one place where keys are made.

  The generator is named, so that its draws are the same whatever `jax_default_prng_impl` is: under
  JAX's others the rows of a batch share their noise. The words are `jax.random.key`'s, without
  `jax_random_seed_offset`.
  """
  word = jnp.asarray(seed, jnp.uint32)
  return jax.random.wrap_key_data(jnp.stack([jnp.zeros_like(word), word]), impl="threefry2x32")


def request_keys(seed: int | Array, requests: ArrayLike) -> Array:
  """key[B]: the key of each request, whatever batch it is decoded in."""
  numbers = jnp.asarray(requests, jnp.uint32)
  return jax.vmap(jax.random.fold_in, (None, 0))(new_key(seed), numbers)
