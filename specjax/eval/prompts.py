"""Prompts for decoding and measuring: from a file, or our own."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from specjax import checks
from specjax.data.sources import open_source
from specjax.decoding.model import Model

KEYS = "prompt (text), tokens (ids), turns (texts, of which the first is used) or question (text)"


class Item(NamedTuple):
  """A prompt as it was given and as it is decoded.

  Attributes:
    given: text, or ids.
    ids: what the model reads, chat template and start ids included.
    category: of the benchmark it comes from, or None.
  """

  given: str | list[int]
  ids: list[int]
  category: str | None = None


def _of_question(question: str, model: Model) -> list[int]:
  return model.chat(question) if question and model.template else model.encode(question)


def _item(record: Mapping[str, Any], model: Model) -> Item:
  given: Any = None
  if "tokens" in record:
    given = record["tokens"]
    if not isinstance(given, list) or not all(type(i) is int for i in given):
      raise ValueError(f"tokens={given!r:.60}: accepted is a list of ids.")
    ids = model.encode(given)
  elif "prompt" in record or "question" in record or record.get("turns"):
    key = next(k for k in ("prompt", "question", "turns") if k in record)
    given = record[key][0] if isinstance(record[key], list) else record[key]
    if not isinstance(given, str):
      raise ValueError(f"{key}={record[key]!r:.60}: accepted is text.")
    ids = model.encode(given) if key == "prompt" else _of_question(given, model)
  else:
    raise ValueError(f"no prompt among the keys {', '.join(record) or '(none)'}; accepted: {KEYS}.")
  return Item(given, ids, record.get("category"))


def check_length(item: Item, max_new_tokens: int, model: Model) -> None:
  """Raises ValueError for a prompt that leaves no room for `max_new_tokens`."""
  if len(item.ids) + max_new_tokens > model.config.max_length:
    raise ValueError(
      f"prompt has {len(item.ids)} tokens and max_new_tokens={max_new_tokens}: together at most "
      f"{model.config.max_length}, the positions of {model.name}."
    )


def read(
  path: str | None, model: Model, max_new_tokens: int, limit: int | None = None
) -> list[Item]:
  """The prompts of a file or dataset, every one checked before any is decoded.

  Accepted records: `prompt` (text, used as it is), `tokens` (ids), Spec-Bench's `turns` (the
  first; `category` is kept) and GSM8K's `question`. The last two are written in the model's chat
  template where it has one.

  Args:
    path: see `data.sources.open_source`; None for our own questions.
    model: tokenizer, template and limits.
    max_new_tokens: for which there must be room after each prompt.
    limit: how many records to read; None for all.

  Raises:
    ValueError: a number below 1, or the first record that cannot be decoded, by its number (empty
      lines do not count).
  """
  checks.whole("max_new_tokens", max_new_tokens, 1)
  if limit is not None:
    checks.whole("limit", limit, 1)
  source = [{"question": q} for q in OUR_QUESTIONS] if path is None else open_source(path)
  count = len(source) if limit is None else min(limit, len(source))
  if not count:
    raise ValueError(f"{path} has no prompts; accepted in each line: {KEYS}.")
  items = []
  for i in range(count):
    record = source[i]
    try:
      items.append(_item(record, model))
      check_length(items[-1], max_new_tokens, model)
    except ValueError as error:
      raise ValueError(f"{path or 'our questions'}: record {i + 1}: {error}") from None
  return items


OUR_QUESTIONS = (
  "Mara buys 3 notebooks at $4 each and a pen for $2. She pays with a $20 bill. How many dollars "
  "does she get back?",
  "A train leaves at 9:15 and arrives at 11:40. How many minutes does the trip take?",
  "Four friends share 52 marbles equally. How many marbles does each of them get?",
  "A jacket costs $80. In the sale it is 25% cheaper. What is the sale price in dollars?",
  "Ivo walks 3 kilometers to school and 3 kilometers back, five days a week. How many kilometers "
  "does he walk in 4 weeks?",
  "A bakery sells 45 rolls in the morning and twice as many in the afternoon. How many rolls does "
  "it sell that day?",
  "Lena is 7 years older than her brother, who is 11. How old will Lena be in 6 years?",
  "A tank holds 240 liters. A pump fills 15 liters per minute. How many minutes until an empty "
  "tank is full?",
  "There are 28 pupils in a class. One quarter of them wear glasses. How many pupils do not wear "
  "glasses?",
  "Oskar reads 18 pages each evening. His book has 270 pages. How many evenings does he need?",
  "A farmer has 12 rows of 9 apple trees. A storm knocks down 17 trees. How many trees are left?",
  "Tickets cost $9 for adults and $5 for children. What do 2 adults and 5 children pay together?",
  "Nadia saves $15 every week. After 8 weeks she spends $67 on a skateboard. How many dollars does "
  "she still have?",
  "A car drives 180 miles in 3 hours. At the same speed, how many miles does it drive in 7 hours?",
  "A recipe for 6 people needs 480 grams of rice. How many grams are needed for 10 people?",
  "Of 250 votes, 60% were for the new playground. How many votes were against it?",
  "Pia cuts a 5-meter ribbon into pieces of 20 centimeters. How many pieces does she get?",
  "A film starts at 19:50 and lasts 125 minutes. How many minutes before 22:30 does it end?",
  "Tom has 6 boxes with 24 crayons each. He gives 2 full boxes and 11 more crayons away. How many "
  "crayons does he keep?",
  "A worker earns $18 an hour, and $27 for each hour beyond 40. How many dollars does she earn in "
  "a week of 46 hours?",
  "A rectangular garden is 14 meters long and 9 wide. How many meters of fence go around it?",
  "Ben has twice as many stickers as Ana. Together they have 96. How many stickers does Ben have?",
  "A shop buys 30 lamps for $12 each and sells all of them for $19 each. What is its profit in "
  "dollars?",
  "A cyclist rides 16 kilometers per hour for 2 hours, rests, then rides 3 more hours at 12 "
  "kilometers per hour. How many kilometers does he ride in all?",
)
"""Grade-school word problems, used when no file is given."""
