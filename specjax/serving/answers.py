"""The answers to one request of a client, as an event loop hears of them."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from specjax.decoding.texts import Text
from specjax.serving.engine import Busy, Closed, Engine
from specjax.serving.fields import Asked, Refused, field_of
from specjax.serving.logprobs import of_chat, of_completion
from specjax.serving.tools import Spoken


class Piece(NamedTuple):
  """What one answer has more.

  Attributes:
    answer: its index among those to the request.
    text: new, and it may be "".
    reason: "stop", "length" or "tool_calls" where the answer ends with it, else None.
  """

  answer: int
  text: str
  reason: str | None


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
  """Says in HTTP's terms why an engine takes no request."""
  try:
    yield
  except Busy as error:
    raise Refused(429, str(error), "rate_limit_error", "queue_full") from None
  except Closed as error:
    raise Refused(503, str(error), "server_error", "closed") from None
  except ValueError as error:
    raise Refused(400, str(error), field=field_of(str(error))) from None


class Answers:
  """The answers to all prompts of a request, which the engine takes here; it runs in a loop.

  Args:
    seconds: until when, from now, all must have ended.

  Attributes:
    beginnings: what each text has before what is new.

  Raises:
    Refused: the engine takes no request, or none with such settings.
  """

  beginnings: list[str]

  def __init__(self, engine: Engine, asked: Asked, seconds: float):
    self._loop, self._told = asyncio.get_running_loop(), asyncio.Queue[int]()
    self._seconds, self._end = seconds, self._loop.time() + seconds
    self._engine, self._asked = engine, asked
    model = engine.decoder.model
    self.beginnings = [model.decode(ids) if asked.echo else "" for ids in asked.prompts]
    words = (*engine.half.stop_words, *asked.stop_words)
    own = asked.settings.get("penalties")
    least = 0 if own is None else own.min_tokens
    self._texts = [Text(model, words, ids, least) for ids in asked.prompts]
    self._tickets = []
    self._scored = [0] * len(asked.prompts)
    try:
      for i, (ids, budget) in enumerate(zip(asked.prompts, asked.budgets, strict=True)):
        tell = functools.partial(self._tell, i)
        with _refusing():
          ticket = engine.submit(ids, budget, **asked.settings, number=i, tell=tell)
        self._tickets.append(ticket)
    except Refused:
      self.cancel()
      raise

  def cancel(self) -> None:
    """Gives up what has not ended."""
    for ticket in self._tickets:
      ticket.cancel()

  def _tell(self, i: int) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed, and nobody listens
      self._loop.call_soon_threadsafe(self._told.put_nowait, i)

  async def pieces(self) -> AsyncIterator[Piece]:
    """The pieces as they come; whoever stops listening gives the rest up.

    Raises:
      Refused: the time is over, the server ends, or the loop has failed.
    """
    left = set(range(len(self._tickets)))
    try:
      while left:
        try:
          async with asyncio.timeout_at(self._end):
            i = await self._told.get()
        except TimeoutError:
          sentence = f"the answer took longer than {self._seconds:g} seconds."
          raise Refused(503, sentence, "server_error", "timeout") from None
        if i in left and (piece := self._piece(i)) is not None:
          if piece.reason is not None:
            left.discard(i)
          yield piece
    finally:
      self.cancel()

  async def spoken(self) -> AsyncIterator[tuple[Piece, list[dict[str, Any]]]]:
    """The pieces without calls of tools, and those at an answer's end, see `pieces`."""
    each = [Spoken(self._asked.tools) for _ in self._tickets]
    async for i, text, reason in self.pieces():
      shown, calls = each[i].add(text), list[dict[str, Any]]()
      if reason is not None:
        rest, calls = each[i].end()
        shown += rest
      yield Piece(i, shown, "tool_calls" if calls else reason), calls

  def _piece(self, i: int) -> Piece | None:
    ticket, text = self._tickets[i], self._texts[i]
    ended = ticket.ended  # before the tokens are read: then there are no more
    new = text.add(ticket.tokens[len(text.ids) :])
    if text.stopped:
      ticket.cancel()
      return Piece(i, new, "stop")
    if not ended:
      return Piece(i, new, None) if new else None
    if (error := ticket.error) is not None:
      if isinstance(error, ValueError):  # the request's processors left no token
        raise Refused(400, str(error))
      own = isinstance(error, FloatingPointError)
      broken = f"a round has failed ({type(error).__name__}), and with it this answer; try again."
      sentence = str(error) if own else broken
      raise Refused(500, sentence, "server_error")
    if ticket.reason == "cancelled":
      raise Refused(503, "the server ends before the answer does.", "server_error", "closed")
    return Piece(i, new + text.end(), ticket.reason)

  def logprobs(self) -> list[dict[str, Any] | None]:
    """Those of each answer that has ended, in OpenAI's form; it takes a pass of the model each."""
    return [self._logprobs(i, 0) for i in range(len(self._texts))]

  def more_logprobs(self, i: int) -> dict[str, Any] | None:
    """Those of what answer i has more than at the last time, None where nothing is asked for.

    A pass of the model over the text so far gives them, as `logprobs` does of a whole one.
    """
    first, asked = self._scored[i], self._asked
    whole = asked.echo and first == 0
    if asked.top is None or not (whole or self._texts[i].ids[first:]):
      return None
    found = self._logprobs(i, first)
    self._scored[i] = len(self._texts[i].ids)
    return found

  def _logprobs(self, i: int, first: int) -> dict[str, Any] | None:
    """Those of answer i from its token `first` on; of an echo, where that is 0, its prompt's."""
    top, tokenizer = self._asked.top, self._engine.decoder.model.tokenizer
    if top is None or tokenizer is None:
      return None
    ticket, text = self._tickets[i], self._texts[i]
    echo = self._asked.echo and first == 0
    scored = self._engine.scores(ticket, len(text.ids), echo)[first:]
    before = text.ids[first - 1] if first else ticket.ids[-1]
    if self._asked.chat:
      return of_chat(tokenizer, before, text.ids[first:], scored, top)
    if echo:
      return of_completion(tokenizer, None, [*ticket.ids, *text.ids], [None, *scored], top)
    said = 0 if not first else self._said(i, first)
    return of_completion(tokenizer, before, text.ids[first:], scored, top, said)

  def _said(self, i: int, first: int) -> int:
    """Where the token `first` of answer i begins in its text, by the names of those before."""
    tokenizer = self._engine.decoder.model.tokenizer
    assert tokenizer is not None
    ticket, text = self._tickets[i], self._texts[i]
    ids = [*(ticket.ids if self._asked.echo else ticket.ids[-1:]), *text.ids[:first]]
    names = of_completion(tokenizer, None, ids, [None] * len(ids), 0)["tokens"]
    return sum(map(len, names if self._asked.echo else names[1:]))

  def best(self) -> list[int]:
    """The indices of the answers that are shown, of each prompt the likeliest per token first."""
    asked, every = self._asked, range(len(self._tickets))
    if asked.kept == asked.choices:
      return [*every]

    def likely(i: int) -> float:
      ticket, count = self._tickets[i], len(self._texts[i].ids)
      scored = self._engine.scores(ticket, count)
      return sum(score.log_prob for score in scored) / max(count, 1)

    found = list[int]()
    for first in every[:: asked.choices]:
      own = sorted(range(first, first + asked.choices), key=likely, reverse=True)
      found += own[: asked.kept]
    return found

  @property
  def usage(self) -> dict[str, Any]:
    """Counts in OpenAI's form, and what was decoded in how many passes of the model."""
    prompts = self._tickets[:: self._asked.choices]
    given, reused = sum(len(x.ids) for x in prompts), sum(x.reused for x in prompts)
    new = sum(len(text.ids) for text in self._texts)
    passes = sum(ticket.passes for ticket in self._tickets)
    closing = [ticket.closing for ticket in self._tickets]
    return {
      "prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new,
      "prompt_tokens_details": {"cached_tokens": reused},
      "specjax": {
        "passes": passes, "tokens_per_pass": round(new / max(passes, 1), 3),
        **self._engine.half.names,
        **({"closing": closing} if any(place is not None for place in closing) else {}),
      },
    }  # fmt: skip
