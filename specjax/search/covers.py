"""The law of the next byte of a text under a model that reads tokens.

Phan et al. 2024 (arXiv 2410.09303, section 3). A text has many covers: tokens that together say it,
of which the last may say more. Its probability is the sum of theirs, and the law of the next byte
the ratio of two such sums. The tokens that a tokenizer makes of a text whose end is cut inside one
are only one of these covers, and often an unlikely one.

Covers that differ in their last token alone are kept together as a stem: tokens that say the
beginning of the text exactly, and the bytes behind them with which the next token must begin. A
byte lengthens what its next token must begin with and, where a token says just that, makes a new
stem, of which one pass reads that token.

Letters: K stems at most, V vocabulary, T prompt length.
"""

import bisect
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, speculate
from specjax.base import Cache, Params, Target
from specjax.decoding.decoder import pad_to_bucket
from specjax.models.cache import read_one

END = 256  # what follows the last byte, in the law of the next one


class Beginning(NamedTuple):
  """The tokens that begin with some bytes.

  Attributes:
    whole: i64[..], those that say no more.
    longer: i64[..], the others.
    after: u8[..], the byte of each of these after those bytes.
  """

  whole: np.ndarray
  longer: np.ndarray
  after: np.ndarray


class Vocabulary:
  """What the tokens of a model say.

  Args:
    spoken: the bytes of each id; a text ends with an id that says none.
  """

  def __init__(self, spoken: Sequence[bytes]):
    ids = sorted((i for i, said in enumerate(spoken) if said), key=spoken.__getitem__)
    self._ids, self._said = np.asarray(ids, np.int64), [spoken[i] for i in ids]
    self.ends = np.asarray([i for i, said in enumerate(spoken) if not said], np.int64)
    self._known: dict[bytes, Beginning] = {}

  def beginning(self, said: bytes) -> Beginning:
    """The tokens that begin with these bytes."""
    if said not in self._known:
      n = len(said)
      low = bisect.bisect_left(self._said, said)
      high = bisect.bisect_right(self._said, said, low, key=lambda word: word[:n])
      more = next((i for i in range(low, high) if len(self._said[i]) > n), high)
      after = np.asarray([word[n] for word in self._said[more:high]], np.uint8)
      self._known[said] = Beginning(self._ids[low:more], self._ids[more:high], after)
    return self._known[said]


@functools.partial(jax.jit, static_argnames=("target", "capacity"))
def _start(
  target: Target, params: Params, tokens: Array, length: Array, *, capacity: int
) -> tuple[Array, Cache]:
  """(log-probabilities f32[V] after a prompt, the cache that has it).

  The prompt is tokens i32[1, T] of which length i32[1] count.
  """
  cache, _ = target.prefill(params, tokens, length, capacity)
  logits, cache = read_one(target, params, cache, jnp.take(tokens[0], length - 1))
  return jax.nn.log_softmax(logits[0]), cache


@functools.partial(jax.jit, static_argnames="target")
def _read(target: Target, params: Params, cache: Cache, token: Array) -> tuple[Array, Cache]:
  """(log-probabilities f32[V] after one more token i32[1], the cache that has it)."""
  logits, cache = read_one(target, params, cache, token)
  return jax.nn.log_softmax(logits[0]), cache


def _log_sum(x: np.ndarray) -> float:
  """The logarithm of the sum of exp(x), -inf for none."""
  most = x.max(initial=-np.inf)
  return float(most + np.log(np.exp(x - most).sum())) if most > -np.inf else -np.inf


class Stem(NamedTuple):
  """The covers of a text that share all tokens but the last.

  Attributes:
    rest: the bytes that the next token must begin with.
    log_weight: nats, of the tokens that are read.
    log_p: f64[V], of the next token.
    cache: of the tokens that are read.
  """

  rest: bytes
  log_weight: float
  log_p: np.ndarray
  cache: Cache


class Covers:
  """All covers of a text that grows byte by byte.

  Args:
    target, params: the model.
    vocabulary: what its tokens say.
    ids: the tokens before the text, one at least.
    most: K; where there are more stems the likeliest stay, and the law is no longer exact.
    new: the most bytes that are read.

  Attributes:
    stems: those that are kept.
    lost: the share of the text's probability that was dropped, byte after byte; 0 is exact.

  Raises:
    FloatingPointError: the logits became NaN.
  """

  stems: list[Stem]
  lost: float

  def __init__(
    self,
    target: Target,
    params: Params,
    vocabulary: Vocabulary,
    ids: Sequence[int],
    most: int,
    new: int,
  ):
    T = pad_to_bucket(len(ids))
    tokens = np.zeros((1, T), np.int32)
    tokens[0, : len(ids)] = ids
    capacity = -(-speculate.capacity_for(T, new, 0) // 64) * 64
    length = jnp.full(1, len(ids), jnp.int32)
    self._target, self._params, self._vocabulary = target, params, vocabulary
    self._most, self.lost = most, 0.0
    begun = _start(target, params, jnp.asarray(tokens), length, capacity=capacity)
    self._hold([self._stem(0.0, *begun)])

  def _stem(self, log_weight: float, log_p: Array, cache: Cache) -> Stem:
    """A stem of which nothing is behind the tokens that are read."""
    held = np.asarray(log_p, np.float64)
    if np.isnan(held).any():
      raise FloatingPointError("the logits became NaN.")
    return Stem(b"", log_weight, held, cache)

  def _hold(self, stems: list[Stem]) -> None:
    self.stems = stems
    each = map(self._following, stems)
    self._masses = np.logaddexp.reduce([np.full(END + 1, -np.inf), *each], 0)

  def _following(self, stem: Stem) -> np.ndarray:
    """f64[257], the logarithm of the probability of the text and each byte, by one stem."""
    begins, mass = self._vocabulary.beginning(stem.rest), np.zeros(END + 1)
    np.add.at(mass, begins.after, np.exp(stem.log_p[begins.longer]))
    if not stem.rest:
      mass[END] = np.exp(stem.log_p[self._vocabulary.ends]).sum()
    with np.errstate(divide="ignore"):
      return stem.log_weight + np.log(mass)

  @property
  def log_prob(self) -> float:
    """Nats, of the text that was read, given the tokens before it; -inf where nothing says it."""
    return _log_sum(self._masses)

  def law(self) -> np.ndarray:
    """f64[257]: log-probabilities of the next byte, and last of the end of the text.

    All are -inf where no token says the text.
    """
    total = self.log_prob
    return self._masses - total if total > -np.inf else self._masses

  def read(self, byte: int) -> None:
    """Has the text grow by one byte, 0 to 255."""
    checks.whole("byte", byte, 0, 255)
    found: list[tuple[float, Stem, int | None]] = []  # its mass, and the token that it is to read
    for stem in self.stems:
      rest = stem.rest + bytes([byte])
      begins = self._vocabulary.beginning(rest)
      more = stem.log_weight + _log_sum(stem.log_p[begins.longer])
      found.append((more, stem._replace(rest=rest), None))
      for token in begins.whole.tolist():
        found.append((stem.log_weight + float(stem.log_p[token]), stem, token))
    found = sorted((x for x in found if x[0] > -np.inf), key=lambda x: -x[0])
    total = _log_sum(np.asarray([mass for mass, *_ in found]))
    dropped = sum(float(np.exp(mass - total)) for mass, *_ in found[self._most :])
    self.lost += dropped * (1 - self.lost)
    self._hold([
      stem if token is None else self._stem(mass, *self._passed(stem, token))
      for mass, stem, token in found[: self._most]
    ])  # fmt: skip

  def _passed(self, stem: Stem, token: int) -> tuple[Array, Cache]:
    """What a pass over one more token of a stem says and keeps."""
    return _read(self._target, self._params, stem.cache, jnp.full(1, token, jnp.int32))
