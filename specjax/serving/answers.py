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
    decoder = engine.decoder
    words = (*decoder.stop_words, *asked.stop_words)
    own = asked.settings.get("penalties")
    least = 0 if own is None else own.min_tokens
    self._texts = [Text(decoder.model, words, ids, least) for ids in asked.prompts]
    self._tickets = []
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
      sentence = str(error) if own else f"the loop has failed ({type(error).__name__})."
      raise Refused(500, sentence, "server_error")
    if ticket.reason == "cancelled":
      raise Refused(503, "the server ends before the answer does.", "server_error", "closed")
    return Piece(i, new + text.end(), ticket.reason)

  def logprobs(self, chat: bool) -> list[dict[str, Any] | None]:
    """Those of each answer that has ended, in OpenAI's form; it takes a pass of the model each."""
    top, tokenizer = self._asked.top, self._engine.decoder.model.tokenizer
    if top is None or tokenizer is None:
      return [None] * len(self._texts)
    found: list[dict[str, Any] | None] = []
    for ticket, text in zip(self._tickets, self._texts, strict=True):
      scored = self._engine.scores(ticket, len(text.ids), self._asked.echo)
      if chat:
        found.append(of_chat(tokenizer, ticket.ids[-1], text.ids, scored, top))
      elif self._asked.echo:
        ids = [*ticket.ids, *text.ids]
        found.append(of_completion(tokenizer, None, ids, [None, *scored], top))
      else:
        found.append(of_completion(tokenizer, ticket.ids[-1], text.ids, scored, top))
    return found

  @property
  def usage(self) -> dict[str, Any]:
    """Counts in OpenAI's form, and what was decoded in how many passes of the model."""
    prompts = self._tickets[:: self._asked.choices]
    given, reused = sum(len(x.ids) for x in prompts), sum(x.reused for x in prompts)
    new = sum(len(text.ids) for text in self._texts)
    passes = sum(ticket.passes for ticket in self._tickets)
    decoder = self._engine.decoder
    closing = [ticket.closing for ticket in self._tickets]
    return {
      "prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new,
      "prompt_tokens_details": {"cached_tokens": reused},
      "specjax": {
        "passes": passes, "tokens_per_pass": round(new / max(passes, 1), 3),
        "drafter": decoder.name, "verifier": decoder.label,
        **({"closing": closing} if any(place is not None for place in closing) else {}),
      },
    }  # fmt: skip
