"""Answers by a server of OpenAI's protocol that has the target: vLLM, SGLang, llama.cpp, ours.

A server says texts, not ids. An answer's ids are those that the chat template writes for its text,
which are nearly always the ids that the model said.
"""

import os
import queue
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import httpx2

from specjax import checks
from specjax.data.chat import Turns
from specjax.names.load import Model

WAITS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # seconds before a question is asked again
LONGEST = 600.0  # seconds that an answer may take
AGAIN = frozenset({408, 409, 425, 429, *range(500, 600)})  # statuses that may pass
KEY = "OPENAI_API_KEY"
_SAY_EVERY = 15.0  # seconds between two lines about questions that are asked again
_OF_TURN = "role", "content", "name", "tool_calls", "tool_call_id"  # what servers accept


class Asking(NamedTuple):
  """A question: its prompt as ids and as turns, and how many tokens its answer may have."""

  prompt: list[int]
  turns: Turns
  budget: int


class Said(NamedTuple):
  """An answer: its text, whether it ended by itself, the tokens that the server counts before it.

  The last is None where the server does not count.
  """

  text: str
  ended: bool
  counted: int | None = None


class Server:
  """A server that is asked several questions at a time, and each again where it does not answer.

  Args:
    address: as http://127.0.0.1:8000/v1; #NAME behind it names one of several models. The
      environment variable OPENAI_API_KEY is its key, if it asks for one.
    seed: of the answers; that of a question is its number more.
    workers: number of questions that are asked at a time.

  Raises:
    ValueError: it is no address.
  """

  def __init__(self, address: str, temperature: float = 0.0, seed: int = 0, workers: int = 1):
    self.url, _, self.wanted = address.partition("#")
    self.temperature, self.seed, self.workers = temperature, seed, workers
    try:
      parts = urllib.parse.urlsplit(self.url)
      known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
      known = False
    if not known:
      checks.refuse("answers_from", address, "the address of a server, as http://127.0.0.1:8000/v1")
    self._ended, self._told = threading.Event(), 0.0

  def answers(self, model: Model, asked: Mapping[int, Asking]) -> Iterator[tuple[int, list[int]]]:
    """(number, ids) of answers as they come, of questions by their numbers.

    Raises:
      ValueError: the server is not there, refuses a question, or does not answer it after all of
        WAITS; what came before is kept.
    """
    name = self._model()
    print(f"{name} at {self.url} answers {len(asked)} questions, {self.workers} at a time.")
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Said | Exception]] = queue.SimpleQueue()
    for i in asked:
      todo.put(i)

    def work() -> None:
      with self._client() as client:
        while not self._ended.is_set():
          try:
            i = todo.get_nowait()
          except queue.Empty:
            return
          try:
            done.put((i, self._ask(client, i, self._body(name, i, asked[i]))))
          except Exception as error:
            done.put((i, error))

    other, first = 0, True
    for _ in range(min(self.workers, len(asked))):
      threading.Thread(target=work, daemon=True).start()  # one that waits does not hold up an end
    try:
      for _ in asked:
        i, said = done.get()
        if isinstance(said, Exception):
          raise said
        question = asked[i]
        if first and said.counted not in (None, len(question.prompt)):
          print(
            f"the server counts {said.counted} tokens in a question of {len(question.prompt)}: its "
            "chat template may be another one, see --template.",
            file=sys.stderr,
          )
        first = False
        ids, same = spelled(model, question, said)
        other += not same
        yield i, ids
    finally:
      self._ended.set()
    if other:
      print(
        f"{other} of {len(asked)} answers are not what the chat template writes for their text; "
        "they are read as it writes them."
      )

  def _client(self) -> httpx2.Client:
    key = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx2.Timeout(LONGEST, connect=10.0)
    return httpx2.Client(base_url=self.url, timeout=limits, headers=headers)

  def _refuse(self, what: str) -> NoReturn:
    raise ValueError(f"answers_from={self.url!r} {what}")

  def _model(self) -> str:
    """What the server calls the model that is asked."""
    try:
      with self._client() as client:
        found = client.get("/models", timeout=30).raise_for_status().json()
      names = [str(each["id"]) for each in found["data"]]
    except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
      self._refuse(f"must be a server of OpenAI's protocol: {_reason(error)}.")
    if self.wanted in names or (not self.wanted and len(names) == 1):
      return self.wanted or names[0]
    got = repr(self.wanted) if self.wanted else "none"
    self._refuse(f"must be followed by #NAME, one of {', '.join(names) or 'none'}, got {got}.")

  def _body(self, model: str, i: int, question: Asking) -> dict[str, Any]:
    turns = [{k: turn[k] for k in _OF_TURN if k in turn} for turn in question.turns]
    drawn = {"top_p": 1.0, "seed": self.seed + i} if self.temperature else {}
    return {
      "model": model, "messages": turns, "max_tokens": question.budget,
      "temperature": self.temperature, **drawn,
    }  # fmt: skip

  def _ask(self, client: httpx2.Client, i: int, body: Mapping[str, Any]) -> Said:
    """The answer to question i, which is asked again where that may help."""
    for seconds in (*WAITS, None):
      after = 0.0
      try:
        response = client.post("/chat/completions", json=body)
        if response.status_code == 200:
          return self._read(response)
        reason = f"{response.status_code}: {_shortened(response.text)}"
        if response.status_code not in AGAIN:
          self._refuse(f"refuses question {i + 1} ({reason}).")
        after = _seconds(response.headers.get("retry-after"))
      except httpx2.TransportError as error:
        reason = _reason(error)
      if seconds is None:
        break
      self._say(i, reason)
      self._ended.wait(min(max(seconds, after), WAITS[-1]))
      if self._ended.is_set():
        break
    self._refuse(
      f"does not answer question {i + 1} after {len(WAITS) + 1} tries ({reason}): what is written "
      "is kept, and the same command continues."
    )

  def _say(self, i: int, reason: str) -> None:
    if time.monotonic() - self._told > _SAY_EVERY:
      self._told = time.monotonic()
      print(f"question {i + 1} is asked again ({reason}).", file=sys.stderr)

  def _read(self, response: httpx2.Response) -> Said:
    try:
      whole = response.json()
      choice = whole["choices"][0]
      message, end = choice["message"], choice.get("finish_reason")
      text, counted = message.get("content"), (whole.get("usage") or {}).get("prompt_tokens")
      thinking = message.get("reasoning_content") or message.get("reasoning")
    except (ValueError, LookupError, TypeError, AttributeError):
      self._refuse(f"answers with what is no chat completion: {_shortened(response.text)}.")
    if thinking:
      self._refuse(
        "takes the thinking out of answers: start it without a parser of reasoning, for the model "
        "says both."
      )
    if end not in ("stop", "length") or not isinstance(text, str | None):
      self._refuse(f"must end an answer by stop or length, got {end!r}.")
    return Said(text or "", end == "stop", counted if isinstance(counted, int) else None)


def spellings(text: str) -> list[str]:
  """What an answer's text may be as the content of a turn, around which templates write space."""
  return list(dict.fromkeys((text.strip(), text.lstrip(), text)))


def spelled(model: Model, question: Asking, said: Said) -> tuple[list[int], bool]:
  """The ids of an answer as the chat template writes it, and whether they say just its text.

  Raises:
    ValueError: the template's answers do not go on from its questions.
  """
  template, tokenizer = model.template, model.tokenizer
  assert template is not None and tokenizer is not None  # see `answers.teacher`
  prompt = question.prompt
  text = said.text if said.ended else said.text.rstrip("\ufffd")  # half a character
  found: list[list[int]] = []
  for spelling in spellings(text):
    turns = [*question.turns, {"role": "assistant", "content": spelling}]
    ids, trained = template.encode(tokenizer, turns)
    if ids[: len(prompt)] != prompt:
      continue
    end = max((i + 1 for i, own in enumerate(trained) if own), default=0)
    answer = ids[len(prompt) : end]
    while answer and not said.ended and answer[-1] in model.stop:
      answer.pop()
    answer = answer[: model.config.max_length - len(prompt)]
    if tokenizer.decode(answer, prompt) == text:
      return answer, True
    found.append(answer)
  if not found:
    raise ValueError(
      f"the chat template of {model.name} writes an answer otherwise than after its question: "
      "`answers_from` must be left out."
    )
  return found[0], False


def _reason(error: Exception) -> str:
  return (" ".join(str(error).split()) or type(error).__name__).rstrip(".")


def _shortened(text: str) -> str:
  return " ".join(text.split())[:200].rstrip(".")


def _seconds(said: str | None) -> float:
  """What a header Retry-After says, 0 where it is absent or a date."""
  try:
    return max(float(said or 0), 0.0)
  except ValueError:
    return 0.0
