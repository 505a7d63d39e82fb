"""How likely a model finds a text that follows another.

Letters: B batch, T padded length, C padded length of what is scored, V vocabulary, E width.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, switches
from specjax.base import Params, Target
from specjax.decoding.batching import check_model
from specjax.diffusion.base import Denoiser
from specjax.names.load import Model

Pair = tuple[Sequence[int], Sequence[int]]  # ids of a context, one at least, and of what follows it


class Scored(NamedTuple):
  """A continuation.

  Attributes:
    log_prob: the natural logarithm of its probability after its context.
    greedy: whether every token of it is the likeliest.
  """

  log_prob: float
  greedy: bool


@switches.hold
def causal(model: Model, pairs: Sequence[Pair], batch: int = 8) -> list[Scored]:
  """The probability of each continuation under an autoregressive model.

  Of a pair that is longer than the model's positions the beginning of the context is left out.

  Raises:
    ValueError: the model is a denoiser, a context is empty, or a continuation leaves no position.
  """
  check_model(model, causal=True)
  fit = _fitting(model, pairs, least=1)
  found: dict[int, Scored] = {}
  for part in _batches([len(a) + len(b) for a, b in fit], checks.whole("batch", batch, 1)):
    rows = [fit[i] for i in part] + [fit[part[-1]]] * (batch - len(part))
    tokens, length = _table([[*a, *b] for a, b in rows], model)
    first = jnp.asarray([len(a) for a, _ in rows], jnp.int32)
    C = _power(max(len(b) for _, b in rows))
    said, right = _causal(model.target, model.params, tokens, length, first, C)
    for i, log_prob, greedy in zip(part, np.asarray(said), np.asarray(right), strict=False):
      found[i] = Scored(float(log_prob), bool(greedy))
  return [found[i] for i in range(len(fit))]


@functools.partial(jax.jit, static_argnames=("target", "C"))
def _causal(
  target: Target, params: Params, tokens: Array, length: Array, first: Array, C: int
) -> tuple[Array, Array]:
  """(log-probability f32[B] of what stands from `first` i32[B] on, whether it is the likeliest)."""
  T = tokens.shape[1]
  _, features = target.prefill(params, tokens, length, T)
  at = first[:, None] + jnp.arange(C, dtype=jnp.int32)[None]
  wanted = jnp.take_along_axis(tokens, jnp.minimum(at, T - 1), 1)
  states = jnp.take_along_axis(features.hidden, jnp.minimum(at - 1, T - 1)[..., None], 1)

  def row(each: tuple[Array, Array]) -> tuple[Array, Array]:  # one row's logits at a time
    logits = jax.nn.log_softmax(target.head(params, each[0]))
    return jnp.take_along_axis(logits, each[1][:, None], 1)[:, 0], jnp.argmax(logits, 1) == each[1]

  said, right = jax.lax.map(row, (states, wanted))
  inside = at < length[:, None]
  return jnp.where(inside, said, 0).sum(1), (right | ~inside).all(1)


@switches.hold
def masked(
  model: Model, pairs: Sequence[Pair], samples: int = 128, batch: int = 8, seed: int = 0
) -> list[float]:
  """An estimate of a lower bound of each continuation's log-probability under a denoiser.

  Of the n tokens of a continuation, l are masked, l being uniform in 1..n; n / l times the
  log-probability of these l, given all others, is the bound in the mean (LLaDA, Nie et al. 2025,
  2502.09992, appendix A). Samples take l from equal parts of its range, one each. A model that is
  causal over blocks has a bound of each block, given the earlier ones, and the sum of them
  (BD3-LM, Arriola et al. 2025, 2503.09573, section 3).

  Args:
    samples: passes for each pair, or each block of one, published 128. One token needs one pass.
    seed: of the numbers and the places of masks.

  Raises:
    ValueError: the model is no masked diffusion model, or a continuation leaves no position.
  """
  denoiser, mask = model.denoiser, model.mask
  if mask is None:
    checks.refuse("model", model.name, "one with a mask token, for whose noise there is a bound")
  checks.whole("samples", samples, 1)
  draws = []
  for i, (context, said) in enumerate(_fitting(model, pairs, least=0)):
    noise = np.random.default_rng((checks.whole("seed", seed), i))
    for before, block in _blocks(context, said, denoiser.block):
      n = len(block)
      for s in range(min(samples, 1 if n == 1 else samples)):
        count = 1 + int(n * (s + noise.random()) / samples)
        hidden = set(noise.permutation(n)[:count].tolist())
        noisy = [mask if j in hidden else token for j, token in enumerate(block)]
        weight = n / count / (1 if n == 1 else samples)
        draws.append((i, weight, [*before, *block], [*before, *noisy]))
  found = np.zeros(len(pairs))
  for part in _batches([len(clean) for _, _, clean, _ in draws], checks.whole("batch", batch, 1)):
    rows = [draws[k] for k in part] + [draws[part[-1]]] * (batch - len(part))
    clean, length = _table([row[2] for row in rows], model)
    scores = np.asarray(
      _masked(denoiser, model.params, _table([row[3] for row in rows], model)[0], clean, length)
    )
    for (i, weight, _, _), log_prob in zip(rows[: len(part)], scores, strict=False):
      found[i] += weight * float(log_prob)
  return found.tolist()


def _blocks(context: Sequence[int], said: Sequence[int], D: int | None) -> Iterator[Pair]:
  """What a continuation has in each block of D positions of the text, with all that is before."""
  text, begin = [*context, *said], len(context)
  while begin < len(text):
    end = len(text) if D is None else min(begin - begin % D + D, len(text))
    yield text[:begin], text[begin:end]
    begin = end


@functools.partial(jax.jit, static_argnames="denoiser")
def _masked(denoiser: Denoiser, params: Params, noisy: Array, clean: Array, length: Array) -> Array:
  """The log-probability f32[B] of clean i32[B, T] where noisy i32[B, T] has masks."""
  B, T = noisy.shape
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  inside = position < length[:, None]
  states, _ = denoiser.evaluate(params, noisy, position, inside, None)
  states = states[:, jnp.maximum(jnp.arange(T) - int(denoiser.shift), 0)]

  def row(each: tuple[Array, Array]) -> Array:  # one row's logits at a time
    logits = denoiser.head(params, each[0])
    never = jnp.arange(denoiser.vocab_size)[None] == denoiser.mask
    logits = jax.nn.log_softmax(jnp.where(never, -jnp.inf, logits))
    return jnp.take_along_axis(logits, each[1][:, None], 1)[:, 0]

  said = jax.lax.map(row, (states, clean))
  return jnp.where((noisy == denoiser.mask) & inside, said, 0).sum(1)


def _fitting(model: Model, pairs: Sequence[Pair], least: int) -> list[Pair]:
  """The pairs, with contexts cut on the left to what the model's positions leave, checked."""
  most, fit = model.config.max_length, []
  for i, (context, said) in enumerate(pairs):
    if len(context) < least:
      checks.refuse(f"pairs[{i}]: context", context, "at least one token")
    room = most - checks.whole(
      f"pairs[{i}]: length of the continuation", len(said), 1, most - least
    )
    fit.append((context[max(len(context) - room, 0) :], said))
  return fit


def _batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
  """Indices of rows of like length, so that little is padded."""
  order = sorted(range(len(lengths)), key=lengths.__getitem__)
  return (order[i : i + size] for i in range(0, len(order), size))


def _table(rows: Sequence[Sequence[int]], model: Model) -> tuple[Array, Array]:
  """(ids i32[B, T], length i32[B]); T is a power of two, so few shapes are compiled."""
  lengths = [len(row) for row in rows]
  tokens = np.zeros((len(rows), min(_power(max(lengths)), model.config.max_length)), np.int32)
  for b, row in enumerate(rows):
    tokens[b, : len(row)] = row
  return jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32)


def _power(n: int) -> int:
  return max(32, 1 << (n - 1).bit_length())
