"""Many prompts through one batch, in which a row that is done takes the next prompt.

A fixed batch waits for its longest answer. Here the loop pauses every few rounds, hands out what is
done and fills each free row: a prompt is prefilled alone, and its state takes the row's place. The
rounds are those of `speculate.advance`, whatever the drafter is. Prompts that are padded to one
length and need caches of one size go together, short ones first: a pass reads whole caches, and
what a drafter keeps may be as long as the prompt.

Letters: B batch.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, speculate
from specjax.decoding.batching import Result, read, timed
from specjax.decoding.decoder import Decoder, padded
from specjax.decoding.model import Prompt


class _Asked(NamedTuple):
  """A prompt, its ids, how many tokens it may get, and its number among all requests."""

  prompt: Prompt
  ids: list[int]
  budget: int
  number: int


class _Held(NamedTuple):
  """What a row is busy with: the index of a prompt, its prefill in seconds, when it was done."""

  prompt: int
  prefill: float
  begun: float


@jax.jit(donate_argnums=0)
def _replaced(state: speculate.State, alone: speculate.State, b: jax.Array) -> speculate.State:
  """`state`, of B rows, with the one of `alone` as row b."""
  return jax.tree.map(lambda x, row: x.at[b].set(row[0]), state, alone)


def refilled(
  decoder: Decoder, prompts: Sequence[Prompt], max_new_tokens: int | Sequence[int] = 128, *,
  numbers: Sequence[int] | None = None, rounds: int = 8,
) -> Iterator[tuple[int, Result]]:  # fmt: skip
  """Decodes prompts and yields (index of the prompt, its result) as they are done, in any order.

  A request draws the tokens that it draws alone, whoever its neighbours are and whenever it is
  admitted. Its `seconds` are those between its prefill and the end of the rounds in which it ended.

  Args:
    max_new_tokens: a budget for all, or one per prompt.
    numbers: of each prompt among all requests, which decides its noise; by default its index.
    rounds: rounds between two looks at what is done.

  Raises:
    ValueError: prompts or budgets that the decoder refuses.
    FloatingPointError: the model's logits became NaN.
  """
  ids, budgets = read(decoder.model, prompts, max_new_tokens)
  checks.whole("rounds", rounds, 1)
  own = list(range(len(ids)) if numbers is None else numbers)
  if len(own) != len(ids):
    checks.refuse("len(numbers)", len(own), f"one per prompt ({len(ids)})")
  groups = dict[tuple[int, int], dict[int, _Asked]]()
  for i, asked in enumerate(map(_Asked, prompts, ids, budgets, own)):
    T = padded(len(asked.ids))
    groups.setdefault((decoder.capacity(T, asked.budget), T), {})[i] = asked
  return itertools.chain.from_iterable(
    _run(decoder, *shape, group, rounds) for shape, group in sorted(groups.items())
  )


def _run(
  decoder: Decoder, capacity: int, T: int, group: Mapping[int, _Asked], rounds: int
) -> Iterator[tuple[int, Result]]:
  B = decoder.batch

  def start(prompt: list[int], number: np.ndarray, limit: np.ndarray) -> speculate.State:
    tokens = np.zeros((len(number), T), np.int32)
    tokens[:, : len(prompt)] = prompt
    length = jnp.full(len(number), len(prompt), jnp.int32)
    return speculate.compiled_start(
      decoder.method, decoder.weights, jnp.asarray(tokens), length, decoder.request(number, limit),
      capacity,
    )  # fmt: skip

  # A free row holds a text of one token, which has reached its limit.
  number, limit = np.zeros(B, int), np.ones(B, np.int32)
  state, held = start([0], number, limit), dict[int, _Held]()
  waiting = iter(group)
  while True:
    for b in sorted(set(range(B)) - held.keys()):
      if (i := next(waiting, None)) is None:
        break
      _, ids, budget, number[b] = group[i]
      limit[b] = len(ids) + budget
      alone, prefill = timed(start, ids, number[b : b + 1], limit[b : b + 1])
      state = _replaced(state, alone, jnp.int32(b))
      held[b] = _Held(i, prefill, time.perf_counter())
    if not held:
      return
    state = decoder.advance(decoder.request(number, limit), state, rounds)
    seen = jax.device_get(state._replace(cache=None, drafter=None, processors=()))
    decoder.check_logits(seen, number)
    now = time.perf_counter()
    for b in [b for b in held if seen.done[b]]:
      i, prefill, begun = held.pop(b)
      prompt, ids, *_ = group[i]
      yield i, decoder.result(prompt, len(ids), seen, b, now - begun, prefill)
