"""Spec-Bench's questions: six categories, one or two turns each (Xia et al. 2024, 2401.07851)."""

import collections
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from specjax import checks
from specjax.data.sources import open_source

MT_BENCH = (
  "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip
# The category of a report by the category of a record.
CATEGORIES = dict.fromkeys(MT_BENCH, "MT-Bench") | {
  "translation": "translation", "summarization": "summarization", "qa": "QA",
  "math_reasoning": "math", "rag": "RAG",
}  # fmt: skip
LOCAL = pathlib.Path(__file__).parents[3] / "shared" / "data" / "spec_bench.jsonl"


class Question(NamedTuple):
  """A question, or a conversation of which the user's turns are known.

  Attributes:
    number: of the record in its file, from 1.
    category: one of the six.
    turns: what the user says; the answers to the earlier turns belong to the later prompts.
  """

  number: int
  category: str
  turns: tuple[str, ...]


class Asked(Protocol):
  """A `Question`, or a task that has more fields."""

  @property
  def number(self) -> int: ...
  @property
  def category(self) -> str: ...
  @property
  def turns(self) -> tuple[str, ...]: ...


Q = TypeVar("Q", bound=Asked)


def read(path: str | None) -> list[Question]:
  """The questions of a file or dataset, see `data.sources.open_source`; None is LOCAL.

  Raises:
    ValueError: there is no such file, or a record is no question of Spec-Bench; it is named.
  """
  if path is None and not LOCAL.is_file():
    checks.refuse(
      "prompts",
      path,
      "Spec-Bench's question.jsonl, which lies in data/spec_bench of "
      f"https://github.com/hemingkx/Spec-Bench (there is no {LOCAL})",
    )
  source = open_source(path or str(LOCAL))
  return [_question(source[i], i + 1, path or str(LOCAL)) for i in range(len(source))]


def _question(record: dict, number: int, path: str) -> Question:
  where = f"{path}: record {number}"
  shape = {"category": str, "turns": checks.texts}
  found = checks.fields_of(record, shape, where, needed=shape)
  category = checks.choice(f"{where}: category", found["category"], CATEGORIES)
  if not found["turns"]:
    checks.refuse(f"{where}: turns", record["turns"], "a list of one text or more")
  return Question(number, CATEGORIES[category], found["turns"])


def evenly(
  questions: Sequence[Q], limit: int | None, categories: Iterable[str] = CATEGORIES.values()
) -> list[Q]:
  """`limit` questions, by default all, sorted by category.

  Each category gives as many as the others while it has some, at equal distances in its list, so
  that MT-Bench's subjects are all asked.
  """
  kinds = [[q for q in questions if q.category == c] for c in dict.fromkeys(categories)]
  # The first of every category, the second of every category, and so on.
  order = sorted((i, k) for k, kind in enumerate(kinds) for i in range(len(kind)))
  share = collections.Counter(k for _, k in order[:limit])
  return [kinds[k][i * len(kinds[k]) // n] for k, n in sorted(share.items()) for i in range(n)]
