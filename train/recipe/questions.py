"""Questions that a chat model writes itself, tasks over texts, and what is kept of both."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from specjax.data.chat import Turns, content_of
from specjax.data.sources import conversation
from specjax.names.load import Model

WORDS = 8  # successive words that two prompts may not share

# A task over a text, by its kind; the question is the one to which the text is the answer.
TASKS = {
  "summary": "Summarize: {text}",
  "context": "{text}\n\nUse the text above. {question}",
  "german": "Translate English to German: {sentence}",
  "rewrite": "Rewrite the following in simpler words.\n\n{text}",
}


def until_user(model: Model, turns: Turns = ()) -> list[int]:
  """The ids of a conversation up to where its next user begins to speak.

  A model that was taught conversations goes on with a question (Magpie: Xu et al. 2024, arXiv
  2406.08464, section 2.1). They are what two conversations have in common that differ in that turn.
  """
  a, b = (model.chat([*turns, {"role": "user", "content": text}]) for text in ("A", "7"))
  same = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
  return a[: next(same, min(len(a), len(b)))]


def spoken(model: Model, ids: Sequence[int], *, cut: bool = False) -> str | None:
  """The text of a turn, None where there is none; `cut` keeps the whole sentences of a cut turn.

  A turn that holds markers of the template, or ids that no text has, is none.
  """
  ended = bool(ids) and ids[-1] in model.stop
  if not ended and not cut:
    return None
  said = list(ids[:-1] if ended else ids)
  text = model.decode(said)
  if ended and (model.tokenizer is None or model.tokenizer.encode(text) != said):
    return None
  if not ended:
    text = text[: max(text.rfind(mark) for mark in (". ", "! ", "? ", ".\n")) + 1]
  clean = "\ufffd" not in text and not re.search(r"<\|\w+\|>", text)
  return text.strip() or None if clean else None


def first_sentence(text: str, least: int = 5) -> str | None:
  """The first sentence of at least `least` words that stands in one line."""
  for line in text.splitlines():
    for sentence in re.findall(r"[A-Z].*?[.!?](?=\s|$)", line):
      if len(sentence.split()) >= least:
        return sentence
  return None


def task(kind: str, question: str, text: str) -> str | None:
  """The prompt of a kind of TASKS over an answer; None where the answer has no sentence for it."""
  sentence = first_sentence(text)
  if kind == "german" and sentence is None:
    return None
  return TASKS[kind].format(text=text, question=question, sentence=sentence)


def grams(text: str) -> set[tuple[str, ...]]:
  """The runs of WORDS successive words of a text, in lower case; a shorter text is one run."""
  words = re.findall(r"\w+", text.lower())
  last = max(len(words) - WORDS, 0)
  return {tuple(words[i : i + WORDS]) for i in range(last + 1)}


def texts_in(record: dict[str, Any], field: str) -> list[str]:
  """What a user says in a record: its question, its `turns`, or those of its conversation."""
  turns = conversation(record)
  if turns:
    return [content_of(turn) for turn in turns if turn["role"] == "user"]
  said = record.get(field, record.get("turns"))
  return [said] if isinstance(said, str) else [x for x in said or () if isinstance(x, str)]


class Seen:
  """Texts of which no later one may repeat WORDS successive words."""

  def __init__(self, texts: Iterable[str] = ()):
    self._grams = set[tuple[str, ...]]().union(*map(grams, texts))

  def repeats(self, text: str) -> bool:
    return not self._grams.isdisjoint(grams(text))

  def is_new(self, text: str) -> bool:
    """Whether the text repeats none of those before it, which it joins if so."""
    if self.repeats(text):
      return False
    self._grams |= grams(text)
    return True
