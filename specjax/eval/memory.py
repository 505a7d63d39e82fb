"""What a decoder needs of a device's memory, before anything is allocated.

SpecMemo (Yildirim and Chen 2025, arXiv 2506.01986) asks this of speculative decoding on small
devices. Here shapes say what rests between rounds, and the compiler says what a pass needs besides.

Letters: B batch, T prompt, S capacity.
"""

import functools
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, speculate
from specjax.base import Params
from specjax.decoding.decoder import Decoder, pad_to_bucket
from specjax.kernels.platform import platform
from specjax.models.attention import queries
from specjax.models.chunks import chunk
from specjax.models.config import Config
from specjax.serving.paging import lowered_piece, over_pages, state_shapes
from specjax.serving.pieces import axes_of, check_pieces

GUESSES = 4  # of a batch, each of which compiles two programs


class Memory(NamedTuple):
  """Bytes per device.

  Attributes:
    weights: of the target, once for every layout in which its matrices lie.
    parts: weights of the drafter and of the verifier.
    cache: keys and values of the target; with pages, all of these.
    state: what the drafter keeps, of which its caches may be in pages, too; texts and
      log-probabilities.
    prefill, round: what is set aside besides for the prompts, and for a round.
    prefixes: what a server keeps of prompts, and the row into which it reads one in pieces; with
      pages what may be kept beside each of them, such as the state of recurrent layers.
  """

  weights: int
  parts: int
  cache: int
  state: int
  prefill: int
  round: int
  prefixes: int = 0

  @property
  def resting(self) -> int:
    """Bytes between rounds."""
    return self.weights + self.parts + self.cache + self.state + self.prefixes

  @property
  def total(self) -> int:
    """Bytes at the worst moment."""
    return self.resting + max(self.prefill, self.round)

  @property
  def rows(self) -> list[dict[str, str]]:
    """A table in MB (1e6 bytes)."""
    named = {
      "weights of the target": self.weights, "weights of drafter and verifier": self.parts,
      "cache": self.cache, "texts and the drafter's state": self.state,
      **({"beginnings of prompts": self.prefixes} if self.prefixes else {}),
      "between rounds": self.resting, "more for the prefill": self.prefill,
      "more for a round": self.round, "at most": self.total,
    }  # fmt: skip
    return [{"memory": name, "MB": f"{size / 1e6:,.1f}"} for name, size in named.items()]


def resident(key: str) -> int:
  """Bytes of this process in memory: VmRSS now, VmHWM at most since the mark was cleared;
  Linux only."""
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def size_of(tree: Any) -> int:
  """Of a device; an array that is in the tree twice counts once."""

  def size(x: Any) -> int:
    placed = getattr(x, "sharding", None)
    shape = x.shape if placed is None else placed.shard_shape(x.shape)
    return math.prod(shape) * x.dtype.itemsize

  return sum(size(x) for x in {id(x): x for x in jax.tree.leaves(tree)}.values())


def measure(
  decoder: Decoder, prompt_tokens: int, max_new_tokens: int, prefixes: int = 0, pages: int = 0
) -> Memory:
  """The memory in which a decoder answers B prompts of so many tokens.

  Both programs are compiled, and nothing is run. On a mesh it is called under `jax.set_mesh`.

  Args:
    prefixes: bytes in which a server keeps beginnings of prompts, see `serving.engine`.
    pages: in which a server keeps all texts, as there.

  Raises:
    ValueError: a number below 1, a text that is longer than the model's positions, or `prefixes` or
      `pages` with a decoder that does not go with them.
  """
  model, method, weights, B = decoder.model, decoder.method, decoder.weights, decoder.batch
  checks.whole("prompt_tokens", prompt_tokens, 1)
  checks.whole("max_new_tokens", max_new_tokens, 1)
  if prompt_tokens + max_new_tokens > model.config.max_length:
    raise ValueError(
      f"`prompt_tokens` and `max_new_tokens` must be together at most {model.config.max_length}, "
      f"the positions of {model.name}, got {prompt_tokens} and {max_new_tokens}."
    )
  if pages:
    return _in_pages(decoder, prompt_tokens + max_new_tokens, pages)
  T = pad_to_bucket(prompt_tokens)
  capacity = decoder.capacity(T, max_new_tokens)
  request = decoder.request(np.arange(B), np.full(B, prompt_tokens + max_new_tokens))
  asked = method, weights, jnp.zeros((B, T), jnp.int32), jnp.ones(B, jnp.int32), request
  start = speculate.compiled_start.lower(*asked, capacity).compile()
  state = jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    speculate.compiled_start.eval_shape(*asked, capacity),
    start.output_shardings,
  )
  advance = speculate.compiled_advance.lower(
    method, weights, request, state, jnp.int32(1)
  ).compile()
  parts = size_of(weights) - size_of(weights.target)
  cache, rest = size_of(state.cache), size_of(state._replace(cache=()))
  if prefixes:
    check_pieces(decoder, capacity, prefixes)
  return Memory(
    size_of(weights.target),
    parts,
    cache,
    rest,
    _besides(start) + _library(model.config, weights.target, B, T),
    _besides(advance),
    prefixes and prefixes + (cache + rest) // B,
  )


def _in_pages(decoder: Decoder, max_length: int, count: int) -> Memory:
  """`measure` of a server whose B rows have so many pages."""
  decoder = over_pages(decoder, max_length, count)
  method, weights, B = decoder.method, decoder.weights, decoder.batch
  capacity = decoder.capacity(max_length, 0)
  request = decoder.request(np.arange(B), np.full(B, max_length))
  state = state_shapes(decoder, capacity, request, count)
  advance = speculate.compiled_advance.lower(method, weights, request, state, jnp.int32(1))
  return Memory(
    size_of(weights.target),
    size_of(weights) - size_of(weights.target),
    size_of(state.cache),
    size_of(state._replace(cache=())),
    _besides(lowered_piece(decoder, capacity, count).compile()),
    _besides(advance.compile()),
    count * axes_of(decoder, capacity)[1],
  )


def _library(config: Config, weights: Params, B: int, T: int) -> int:
  """Bytes that a CPU's library of products sets aside for prompts, and no compiler knows of.

  It holds the largest matrix of a product twice: the gates and values of the MLPs of what is read
  at once of all prompts, or the scores of as many queries as attend together.
  """
  if platform() != "cpu":
    return 0
  T = chunk(T) if config.causal else T
  heads = B * config.heads
  narrow = any(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(weights))
  gates = B * 2 * config.mlp_width * (2 if narrow else 4)
  return T * max(heads * min(T, queries(heads, T)) * 4, gates)


def _besides(program: Any) -> int:
  found = program.memory_analysis()
  return 0 if found is None else found.temp_size_in_bytes


def largest_batch(make: Callable[[int], Decoder], budget: int, *lengths: int) -> tuple[int, Memory]:
  """(the largest batch that fits `budget` bytes, 0 for none; its memory, or that of batch 1).

  From batch 1 and each batch that was measured follows a row's share, and from that the next batch.
  What is returned was measured, and one more row may fit, since programs grow in steps.

  Args:
    make: the decoder of a batch of so many rows.
    lengths: as for `measure`.
  """

  @functools.cache
  def of(batch: int) -> Memory:
    return measure(make(batch), *lengths)

  if of(1).total > budget:
    return 0, of(1)
  tried, guess = {1}, 9
  for _ in range(GUESSES):
    tried.add(guess)
    each = max((of(guess).total - of(1).total) / (guess - 1), 1)
    guess = min(int(1 + (budget - of(1).total) / each), checks.BATCH)
    if guess in tried:
      break
  best = max(batch for batch in tried if of(batch).total <= budget)
  return best, of(best)
