"""Many prompts through one batch, in which a row that is done takes the next prompt.

A fixed batch waits for its longest answer. Here the loop pauses every few rounds, hands out what is
done and fills each free row, see `decoding.rows`. Prompts that are padded to one length and need
caches of one size follow each other, short ones first: a pass may read whole caches, and what a
drafter keeps may be as long as the prompt. Rows that are still busy then ride on in longer caches.
`decoding.engine` takes requests while it decodes.
"""

import collections
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specjax import checks, switches
from specjax.decoding.batching import Result, read
from specjax.decoding.decoder import Decoder, pad_to_bucket
from specjax.names.build.cache import DENSE
from specjax.names.load import Prompt
from specjax.serving.rows import DecodeRows


class _Asked(NamedTuple):
  """A prompt, its ids, how many tokens it may get, its number among all requests, and (S, T): the
  capacity of the caches that it needs and the length to which it is padded."""

  prompt: Prompt
  ids: list[int]
  budget: int
  number: int
  shape: tuple[int, int]


class _Held(NamedTuple):
  """What a row is busy with: the index of a prompt, its prefill in seconds, when it was done."""

  prompt: int
  prefill: float
  begun: float


def refilled(
  decoder: Decoder,
  prompts: Sequence[Prompt],
  max_new_tokens: int | Sequence[int] = 128,
  *,
  numbers: Sequence[int] | None = None,
  rounds: int = 8,
) -> Iterator[tuple[int, Result]]:
  """Decodes prompts and yields (index of the prompt, its result) as they are done, in any order.

  A request draws the tokens that it draws alone, whoever its neighbours are and whenever it is
  admitted. Its `seconds` are those between its prefill and the end of the rounds in which it ended.

  Args:
    max_new_tokens: a budget for all, or one per prompt.
    numbers: of each prompt among all requests, which decides its noise; by default its index.
    rounds: rounds between two looks at what is done.

  Raises:
    ValueError: prompts or budgets that the decoder refuses.
    FloatingPointError: the model's logits became NaN or infinite.
  """
  ids, budgets = read(decoder.model, prompts, max_new_tokens)
  decoder.check_budgets(budgets)
  checks.whole("rounds", rounds, 1)
  own = list(range(len(ids)) if numbers is None else numbers)
  if len(own) != len(ids):
    checks.refuse("len(numbers)", len(own), f"{len(ids)}, the number of prompts")
  shapes = [
    (decoder.capacity(T := pad_to_bucket(len(i)), n), T) for i, n in zip(ids, budgets, strict=True)
  ]
  asked = list(map(_Asked, prompts, ids, budgets, own, shapes))
  return _run(decoder, asked, rounds)


@switches.hold
def _run(decoder: Decoder, asked: list[_Asked], rounds: int) -> Iterator[tuple[int, Result]]:
  waiting = collections.deque(sorted(range(len(asked)), key=lambda i: asked[i].shape))
  held, numbers = dict[int, _Held](), np.zeros(decoder.batch, int)
  rows: DecodeRows | None = None
  shape = 0, 0
  while waiting or held:
    for b in sorted(set(range(decoder.batch)) - held.keys()):
      if not waiting:
        break
      wanted = asked[waiting[0]].shape
      if rows is None or (wanted != shape and not held):
        rows = DecodeRows(decoder, *wanted)
      elif wanted != shape:
        # What another kind of cache keeps may depend on its length.
        if decoder.cache != DENSE or wanted[1] < shape[1]:
          break
        rows.grow(*wanted)
      i = waiting.popleft()
      _, ids, budget, numbers[b], shape = asked[i]
      request = decoder.request(numbers[b : b + 1], np.array([len(ids) + budget]))
      again = bool(waiting) and asked[waiting[0]].ids == ids
      prefill = rows.admit(b, ids, shape[1], request, again)
      held[b] = _Held(i, prefill, time.perf_counter())
    assert rows is not None
    seen = rows.advance(rounds)
    decoder.check_logits(seen, numbers)
    now = time.perf_counter()
    for b in [b for b in held if seen.done[b]]:
      i, prefill, begun = held.pop(b)
      rows.free(b)
      prompt, ids, budget, *_ = asked[i]
      yield i, decoder.result(prompt, len(ids), budget, seen, b, now - begun, prefill)
