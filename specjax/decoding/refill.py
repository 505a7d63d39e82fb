"""Many prompts through one batch, in which a row that is done takes the next prompt.

A fixed batch waits for its longest answer. Here the loop pauses every few rounds, hands out what is
done and fills each free row, see `decoding.rows`. Prompts that are padded to one length and need
caches of one size go together, short ones first: a pass reads whole caches, and what a drafter
keeps may be as long as the prompt. `decoding.engine` takes requests while it decodes.
"""

import collections
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specjax import checks
from specjax.decoding.batching import Result, read
from specjax.decoding.decoder import Decoder, padded
from specjax.decoding.model import Prompt
from specjax.decoding.rows import Rows


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
  rows, held = Rows(decoder, capacity, T), dict[int, _Held]()
  numbers, waiting = np.zeros(decoder.batch, int), collections.deque(group)
  while True:
    for b in sorted(set(range(decoder.batch)) - held.keys()):
      if not waiting:
        break
      i = waiting.popleft()
      _, ids, budget, numbers[b] = group[i]
      request = decoder.request(numbers[b : b + 1], np.array([len(ids) + budget]))
      again = bool(waiting) and group[waiting[0]].ids == ids
      prefill = rows.admit(b, ids, T, request, again)
      held[b] = _Held(i, prefill, time.perf_counter())
    if not held:
      return
    seen = rows.advance(rounds)
    decoder.check_logits(seen, numbers)
    now = time.perf_counter()
    for b in [b for b in held if seen.done[b]]:
      i, prefill, begun = held.pop(b)
      rows.free(b)
      prompt, ids, *_ = group[i]
      yield i, decoder.result(prompt, len(ids), seen, b, now - begun, prefill)
