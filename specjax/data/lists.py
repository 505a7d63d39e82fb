"""Operations on lists of names: tasks that show what parallel decoding loses.

The tasks follow the waiting lines of ParallelBench (Kang et al. 2025, arXiv 2510.04767); their
texts are our own. Where the answer is decided slot by slot (copy, sort, an index) all slots may be
filled at once; where slots depend on each other (shuffle, random, a Latin square or a sentence of
the names) they may not.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from specjax import checks

_TEXT = (
  "Ada Ali Amy Ana Ben Bea Bob Cai Cy Dan Dee Eli Eva Fay Gus Guy Hal Ian Ida Ira Ivy Jan Jay Joe "
  "Kai Kim Kit Lea Lee Leo Lin Liz Lou Mae Max May Meg Mia Ned Nia Noa Ola Pam Pat Paz Pia Ray Rex "
  "Rob Ron Roy Sal Sam Sky Sue Tad Ted Tia Tim Una Val Viv Wes Zoe"
)
NAMES = tuple(_TEXT.split())


@dataclasses.dataclass(frozen=True)
class Question:
  """One question.

  Attributes:
    task: its name in KNOWN.
    items: the list of names.
    word: a name that is not in the list; "" where the task has none.
    index: a place in the list, from 1; 0 where the task has none.
  """

  task: str
  items: tuple[str, ...]
  word: str = ""
  index: int = 0

  @property
  def text(self) -> str:
    """The question as the model reads it, its words separated by single spaces."""
    parts = [*self.task.split("_"), *([self.word] if self.word else [])]
    parts += [str(self.index)] if self.index else []
    return " ".join([*parts, ":", *self.items, "="])


@dataclasses.dataclass(frozen=True)
class Task:
  """How a question is answered, and which answers are right.

  Attributes:
    answer: (rng, question) -> a right answer.
    right: (question, answer) -> bool; some tasks have many right answers.
    needs_word, needs_index: whether the question has a word, and an index.
  """

  answer: Callable[[np.random.Generator, Question], list[str]]
  right: Callable[[Question, Sequence[str]], bool]
  needs_word: bool = False
  needs_index: bool = False


def _only(answer: Callable[[Question], list[str]], **needs: bool) -> Task:
  """A task with a single right answer."""
  return Task(lambda rng, q: answer(q), lambda q, a: list(a) == answer(q), **needs)


def _anywhere(removed: int, needs_word: bool) -> Task:
  """A task for which `_spliced` is right, and equally likely, at every place of the list."""

  def answers(q: Question) -> list[list[str]]:
    added = [q.word] if needs_word else []
    return [_spliced(q, i, removed, *added) for i in range(len(q.items) + 1 - removed)]

  def drawn(rng: np.random.Generator, q: Question) -> list[str]:
    options = answers(q)
    return options[rng.integers(len(options))]

  return Task(drawn, lambda q, a: list(a) in answers(q), needs_word)


def _shuffled(rng: np.random.Generator, q: Question) -> list[str]:
  while True:
    answer = [q.items[i] for i in rng.permutation(len(q.items))]
    if answer != list(q.items):
      return answer


def _is_shuffled(q: Question, answer: Sequence[str]) -> bool:
  return sorted(answer) == sorted(q.items) and tuple(answer) != q.items


def _spliced(q: Question, i: int, removed: int, *added: str) -> list[str]:
  """The list with `added` in place of the `removed` names from place i (from 0) on."""
  return [*q.items[:i], *added, *q.items[i + removed :]]


TASKS: dict[str, Task] = {
  "copy": _only(lambda q: list(q.items)),
  "sort": _only(lambda q: sorted(q.items)),
  "reverse": _only(lambda q: list(q.items[::-1])),
  "shuffle": Task(_shuffled, _is_shuffled),
  "replace_index": _only(
    lambda q: _spliced(q, q.index - 1, 1, q.word), needs_word=True, needs_index=True
  ),
  "insert_index": _only(
    lambda q: _spliced(q, q.index - 1, 0, q.word), needs_word=True, needs_index=True
  ),
  "remove_index": _only(lambda q: _spliced(q, q.index - 1, 1), needs_index=True),
  "replace_random": _anywhere(1, needs_word=True),
  "insert_random": _anywhere(0, needs_word=True),
  "remove_random": _anywhere(1, needs_word=False),
}

VERBS = ("called", "met", "saw", "thanked")


def _square(rng: np.random.Generator, q: Question) -> list[str]:
  n = len(q.items)
  row, column, name = (rng.permutation(n) for _ in range(3))
  return [q.items[name[(i + j) % n]] for i in row for j in column]


def is_latin_square(items: Sequence[str], cells: Sequence[str]) -> bool:
  """Whether n * n cells, row by row, have each of n items once in every row and column."""
  n = len(items)
  rows = [cells[i : i + n] for i in range(0, len(cells), n)]
  whole = len(cells) == n * n
  return whole and all(sorted(x) == sorted(items) for x in [*rows, *zip(*rows, strict=True)])


def _sentence(rng: np.random.Generator, q: Question) -> list[str]:
  names = [q.items[i] for i in rng.permutation(len(q.items))]
  after = int(rng.integers(1, len(names)))
  words = [word for name in names for word in ("and", name)]
  words[2 * after] = VERBS[rng.integers(len(VERBS))]
  return words[1:]


def _is_sentence(q: Question, answer: Sequence[str]) -> bool:
  names, between = answer[::2], answer[1::2]
  verbs = [word for word in between if word in VERBS]
  whole = len(answer) % 2 == 1 and len(verbs) == 1 and between.count("and") == len(between) - 1
  return whole and sorted(names) == sorted(q.items)


# `records` draws these only where they are asked for: answers are longer, and more of them right.
PUZZLES: dict[str, Task] = {
  "latin_square": Task(_square, lambda q, a: is_latin_square(q.items, a)),
  "sentence": Task(_sentence, _is_sentence),
}
KNOWN = TASKS | PUZZLES


def ask(rng: np.random.Generator, task: str, length: int) -> Question:
  """A question about a list of `length` different names."""
  kind = KNOWN[task]
  names = [NAMES[i] for i in rng.choice(len(NAMES), length + 1, replace=False)]
  word = names[-1] if kind.needs_word else ""
  index = int(rng.integers(1, length + 1)) if kind.needs_index else 0
  return Question(task, tuple(names[:-1]), word, index)


def records(
  seed: int, count: int, lengths: Sequence[int] = (3, 4, 5, 6), tasks: Sequence[str] = tuple(TASKS)
) -> list[dict[str, str]]:
  """`count` records of question and answer; tasks and lengths take turns.

  It raises ValueError for an unknown task, and a length for which there are too few names.
  """
  checks.whole("seed", seed, 0, checks.SEED)
  checks.whole("count", count, 0, 10**7)
  for name, values in (("tasks", tasks), ("lengths", lengths)):
    if not len(checks.sequence(name, values, "a list of one or more")):
      checks.refuse(name, values, "a list of one or more")
  for task in tasks:
    checks.choice("tasks", task, KNOWN)
  for length in lengths:
    checks.whole("lengths", length, 2, len(NAMES) - 1)
  rng = np.random.default_rng(seed)
  out = []
  for i in range(count):
    question = ask(rng, tasks[i % len(tasks)], lengths[i // len(tasks) % len(lengths)])
    answer = KNOWN[question.task].answer(rng, question)
    out.append({"question": question.text, "answer": " ".join(answer)})
  return out


def parse(text: str) -> Question:
  """The question that `Question.text` wrote; ValueError where it writes no such text."""
  words = text.split()
  if ":" not in words[1:] or words[-1] != "=":
    raise ValueError(f"`question` must be TASK [WORD] [INDEX] : NAMES =, got {text!r}.")
  colon = words.index(":")
  head, items = words[:colon], tuple(words[colon + 1 : -1])
  index = int(head.pop()) if head[-1].isdecimal() else 0
  word = head.pop() if head and head[-1] in NAMES else ""
  task = "_".join(head)
  if task not in KNOWN:
    raise ValueError(f"the task of `question` must be one of {', '.join(KNOWN)}, got {text!r}.")
  return Question(task, items, word, index)


def is_right(question: str, answer: str) -> bool:
  """Whether `answer` answers the question of that text."""
  parsed = parse(question)
  return KNOWN[parsed.task].right(parsed, answer.split())
