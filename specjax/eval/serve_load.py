"""How a server answers under load: any that speaks OpenAI's protocol.

Requests arrive at a rate, whether or not earlier ones have been answered (an open loop), at times
that are a Poisson process: that is how users come, and a queue that grows is seen. Or a number of
clients each ask again once they are answered (a closed loop): that shows what a batch gives.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import httpx2
import numpy as np
from rich.console import Console
from rich.progress import Progress

from specjax import checks
from specjax.data.sources import open_source
from specjax.eval import report
from specjax.eval.options import BenchServe
from specjax.eval.prompts import OUR_QUESTIONS


class Answer(NamedTuple):
  """The times of one answer, in seconds from the run's start.

  Attributes:
    asked, ended: when the request was sent, and when its stream was over.
    pieces: when each piece of text came.
    tokens: as the server counts them; one a piece where it does not say.
    error: why there is no answer, "" where there is one.
  """

  asked: float
  ended: float
  pieces: Sequence[float]
  tokens: int
  error: str = ""

  @property
  def first(self) -> float:
    """Time to the first piece."""
    return self.pieces[0] - self.asked

  @property
  def between(self) -> float:
    """Time of a token after the first piece, whether it came alone or with others."""
    return (self.pieces[-1] - self.pieces[0]) / max(self.tokens - 1, 1)


def arrivals(rate: float, count: int, seed: int) -> np.ndarray:
  """When each request is sent, f64[count], seconds; the first at once."""
  waits = np.random.default_rng(seed).exponential(1 / rate, count - 1)
  return np.concatenate([[0.0], np.cumsum(waits)])


def questions(path: str | None, count: int) -> list[str]:
  """So many texts, from the beginning again where there are fewer."""
  if path is None:
    texts = list(OUR_QUESTIONS)
  else:
    texts = []
    source = open_source(path)
    for record in (source[i] for i in range(len(source))):
      given = record.get("question") or record.get("prompt") or record.get("turns")
      text = given[0] if isinstance(given, list) and given else given
      if not isinstance(text, str):
        raise ValueError(
          f"{path}: `question`, `prompt` or `turns` must be text, got {record!r:.60}."
        )
      texts.append(text)
  return [texts[i % len(texts)] for i in range(count)]


async def ask(client: httpx2.AsyncClient, body: dict[str, Any], began: float) -> Answer:
  """One request, as a stream."""
  asked, pieces, tokens = time.monotonic() - began, list[float](), 0
  try:
    async with client.stream("POST", "/chat/completions", json=body) as response:
      if response.status_code != 200:
        said = (await response.aread()).decode(errors="replace")
        return Answer(
          asked, time.monotonic() - began, (), 0, f"{response.status_code}: {said:.200}"
        )
      async for line in response.aiter_lines():
        if not line.startswith("data: {"):
          continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
          return Answer(asked, time.monotonic() - began, pieces, tokens, str(event["error"]))
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        if any(choice["delta"].get("content") for choice in event["choices"]):
          pieces.append(time.monotonic() - began)
  except httpx2.HTTPError as error:
    return Answer(asked, time.monotonic() - began, pieces, tokens, type(error).__name__)
  ended = time.monotonic() - began
  count = tokens or len(pieces)
  return Answer(asked, ended, pieces, count, "" if pieces else "an answer without text")


@contextlib.asynccontextmanager
async def asking(
  config: BenchServe, model: str, texts: Sequence[str], what: str, progress: Progress
) -> AsyncIterator[tuple[float, Callable[[int], Awaitable[Answer]]]]:
  """(when the run began; what sends request i and returns its answer); `what` names the run."""
  task = progress.add_task(what, total=len(texts))
  limits = httpx2.Limits(max_connections=None)
  headers = {"Authorization": f"Bearer {config.key}"}
  async with httpx2.AsyncClient(
    base_url=config.url, timeout=config.seconds, limits=limits, headers=headers
  ) as client:
    began = time.monotonic()

    async def one(i: int) -> Answer:
      body = {
        "model": model, "messages": [{"role": "user", "content": texts[i]}], "stream": True,
        "stream_options": {"include_usage": True}, "temperature": config.temperature,
        "max_tokens": config.max_new_tokens, "seed": config.seed + i,
      }  # fmt: skip
      answer = await ask(client, body, began)
      progress.advance(task)
      return answer

    yield began, one


async def run_rate(
  config: BenchServe, model: str, texts: Sequence[str], rate: float, progress: Progress
) -> list[Answer]:
  """All requests of one rate, in the order of their arrivals."""
  what = f"{rate:g} requests a second"
  async with asking(config, model, texts, what, progress) as (began, one):

    async def later(i: int, at: float) -> Answer:
      await asyncio.sleep(max(began + at - time.monotonic(), 0))
      return await one(i)

    times = arrivals(rate, len(texts), config.seed)
    return list(await asyncio.gather(*(later(i, at) for i, at in enumerate(times))))


async def run_clients(
  config: BenchServe, model: str, texts: Sequence[str], count: int, progress: Progress
) -> list[Answer]:
  """All requests of so many clients, each of which takes the next that nobody has."""
  left = iter(range(len(texts)))
  async with asking(config, model, texts, f"{count} clients", progress) as (_, one):

    async def client() -> list[Answer]:
      return [await one(i) for i in left]

    own = await asyncio.gather(*(client() for _ in range(count)))
    return [answer for each in own for answer in each]


def figures(
  config: BenchServe, load: dict[str, float], answers: Sequence[Answer]
) -> dict[str, Any]:
  """What a run says; times in milliseconds, NaN where nothing was answered. `load` names it."""
  good = [x for x in answers if not x.error]
  seconds = max(x.ended for x in answers) - min(x.asked for x in answers)
  kept = sum(x.first <= config.first and x.between <= config.between for x in good)
  gaps = np.concatenate([np.diff(x.pieces) for x in good]) if good else np.array([])

  def of(times: Any) -> list[float]:
    held = np.asarray(list(times), float)
    return [
      round(1e3 * float(np.percentile(held, q)), 1) if held.size else np.nan for q in (50, 99)
    ]

  return {
    **load,
    "answered": len(good),
    "failed": len(answers) - len(good),
    "requests_per_second": len(good) / seconds,
    "tokens_per_second": sum(x.tokens for x in good) / seconds,
    "goodput": kept / seconds,
    "first_ms": of(x.first for x in good),
    "token_ms": of(x.between for x in good),
    "gap_ms": of(gaps),
    "whole_ms": of(x.ended - x.asked for x in good),
    "errors": sorted({x.error for x in answers if x.error}),
  }


def rows(found: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
  """The table: a run a row; pairs are the median and the 99th percentile."""
  pair = "{:.0f} / {:.0f}".format
  return [
    {
      **({"asked/s": f"{x['rate']:g}"} if "rate" in x else {"clients": f"{x['clients']}"}),
      "answered": f"{x['answered']} of {x['answered'] + x['failed']}",
      "good/s": f"{x['goodput']:.2f}",
      "tokens/s": f"{x['tokens_per_second']:.1f}",
      "first, ms": pair(*x["first_ms"]),
      "token, ms": pair(*x["token_ms"]),
      "gap, ms": pair(*x["gap_ms"]),
    }
    for x in found
  ]


def model_of(config: BenchServe) -> str:
  """The model that is asked.

  Raises:
    ValueError: nothing answers at `url`, or it names no model.
  """
  headers = {"Authorization": f"Bearer {config.key}"}
  try:
    said = httpx2.get(f"{config.url}/models", headers=headers, timeout=30).raise_for_status().json()
    return config.model or said["data"][0]["id"]
  except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError) as error:
    reason = " ".join(str(error).split()) or type(error).__name__
    raise ValueError(
      f"`url` must be of a server of OpenAI's protocol, got {config.url!r}: {reason}."
    ) from error


def run(config: BenchServe) -> list[dict[str, Any]]:
  """The figures of every rate, or number of clients, one run after the other.

  One request warms up.

  Raises:
    ValueError: an option that is not accepted, or no server.
  """
  report.check(config, "requests", "max_new_tokens")
  for rate in config.rates:
    checks.number("rates", rate, above=0)
  for count in config.clients:
    checks.whole("clients", count, 1)
  texts, model = questions(config.prompts, config.requests), model_of(config)
  found = []
  with Progress(console=Console(stderr=True), transient=True) as progress:
    asyncio.run(run_rate(config, model, texts[:1], 1.0, progress))
    for count in config.clients:
      answers = asyncio.run(run_clients(config, model, texts, count, progress))
      found.append(figures(config, {"clients": count}, answers))
    for rate in () if config.clients else config.rates:
      answers = asyncio.run(run_rate(config, model, texts, rate, progress))
      found.append(figures(config, {"rate": rate}, answers))
  return found
