"""Prompts for decoding and measuring: from a file, or our own."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from specjax import checks
from specjax.data.chat import content_of, question
from specjax.data.sources import conversation, open_source
from specjax.eval import metrics
from specjax.names.load import Model

OUR_QUESTIONS = tuple(pathlib.Path(__file__).with_name("questions.txt").read_text().splitlines())
KEYS = (
  "prompt (text), tokens (ids), turns (texts, of which the first is used), question (text), "
  "messages or conversations (turns)"
)


class Item(NamedTuple):
  """A prompt as it was given and as it is decoded.

  Attributes:
    given: text, or ids.
    ids: what the model reads, chat template and start ids included.
    category: its category in the benchmark that it comes from, or None.
  """

  given: str | list[int]
  ids: list[int]
  category: str | None = None


def _item(record: Mapping[str, Any], model: Model) -> Item:
  if "tokens" in record:
    given: Any = record["tokens"]
    if not isinstance(given, list) or not all(type(i) is int for i in given):
      raise ValueError(f"`tokens` must be a list of ids, got {given!r:.60}.")
    ids = model.encode(given)
  elif turns := conversation(record):
    asked = question(turns)
    given, ids = content_of(asked[-1]), model.chat(asked)
  elif "prompt" in record or "question" in record or record.get("turns"):
    key = next(k for k in ("prompt", "question", "turns") if k in record)
    given = record[key][0] if isinstance(record[key], list) else record[key]
    if not isinstance(given, str):
      raise ValueError(f"`{key}` must be text, got {record[key]!r:.60}.")
    in_chat = key != "prompt" and given and model.template
    ids = model.chat(given) if in_chat else model.encode(given)
  else:
    raise ValueError(
      f"a line must have one of {KEYS}, got the keys {', '.join(record) or '(none)'}."
    )
  return Item(given, ids, record.get("category"))


def check_length(item: Item, max_new_tokens: int, model: Model) -> None:
  """Raises ValueError for a prompt that leaves no room for `max_new_tokens`."""
  if len(item.ids) + max_new_tokens > model.config.max_length:
    raise ValueError(
      f"a prompt's tokens and `max_new_tokens` must be together at most {model.config.max_length}, "
      f"the positions of {model.name}, got {len(item.ids)} and {max_new_tokens}."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
  """The questions that a script decodes, and the model that answers them.

  Attributes:
    prompts: JSONL of questions; by default our own.
    model: the target.
    limit: number of questions that are decoded.
    max_new_tokens: budget per question.
    out: directory of the report.
  """

  prompts: str | None = None
  model: str = "gsm8k-7m"
  limit: int | None = 40
  max_new_tokens: int = 128
  out: str

  def read(self, model: Model) -> list[Item]:
    return read(self.prompts, model, self.max_new_tokens, self.limit)

  def evenly(self, model: Model) -> list[Item]:
    """`limit` questions at equal distances in the file, which must be good as a whole."""
    items = dataclasses.replace(self, limit=None).read(model)
    limit = len(items) if self.limit is None else checks.whole("limit", self.limit, 1)
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]

  def with_numbers(self, model: Model) -> tuple[list[list[int]], list[str]]:
    """(ids of each question, the last number of each `answer`, as GSM8K has them).

    Raises:
      ValueError: there is no file, a record has no number, or `read` refuses it.
    """
    if self.prompts is None:
      checks.refuse("prompts", None, "a file or dataset of questions with answers, such as GSM8K's")
    ids, source, numbers = [item.ids for item in self.read(model)], open_source(self.prompts), []
    for i in range(len(ids)):
      number = metrics.last_number(str(source[i].get("answer", "")))
      if number is None:
        raise ValueError(f"{self.prompts}: record {i + 1} has no number in `answer`.")
      numbers.append(number)
    return ids, numbers


def read(
  path: str | None, model: Model, max_new_tokens: int, limit: int | None = None
) -> list[Item]:
  """The first `limit` prompts of a file or dataset, see `data.sources.open_source`, all checked.

  Accepted records: `prompt` (text, used as it is), `tokens` (ids), Spec-Bench's `turns` (the
  first; `category` is kept), GSM8K's `question`, and a conversation in `messages` or ShareGPT's
  `conversations`, of which an answer at the end is left out. `turns` and `question` are written in
  the model's chat template where it has one; a conversation needs one. A `path` of None is that of
  our own questions.

  Raises:
    ValueError: a number is below 1, or a record cannot be decoded; the first of these is named by
      its number, in which empty lines do not count.
  """
  checks.whole("max_new_tokens", max_new_tokens, 1)
  if limit is not None:
    checks.whole("limit", limit, 1)
  source = [{"question": q} for q in OUR_QUESTIONS] if path is None else open_source(path)
  count = len(source) if limit is None else min(limit, len(source))
  if not count:
    raise ValueError(f"each line of {path} must have one of {KEYS}, got no prompt at all.")
  items = []
  for i in range(count):
    record = source[i]
    try:
      items.append(_item(record, model))
      check_length(items[-1], max_new_tokens, model)
    except ValueError as error:
      raise ValueError(f"{path or 'our questions'}: record {i + 1}: {error}") from None
  return items
