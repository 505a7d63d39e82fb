"""The file of answers: a line of JSON for each, with the number and the ids of its prompt."""

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from specjax import distributed, fingerprint
from specjax.data.sources import JsonlSource
from specjax.eval.bar import Bar
from specjax.train.recipe.run import count_lines, keep_lines, write_json
from specjax.train.recipe.texts import Document


def written(
  path: pathlib.Path,
  prompts: Mapping[int, list[int]],
  reply: Callable[[list[int]], Iterable[tuple[int, list[int]]]],
  batch: int = 1,
  key: fingerprint.Key | None = None,
  *,
  together: bool = True,
) -> list[Document]:
  """Answers to prompts, each a line of a JSONL file that a killed run continues.

  Args:
    prompts: by their numbers, in the order of the texts that are returned.
    reply: is given the numbers of the prompts that have no answer, and yields (number, ids of the
      answer).
    batch: where the answers come in batches, a multiple of it is kept.
    key: what the answers depend on, for a file that another run may be given; a file without one
      is read as it is.
    together: whether under a mesh every process replies, and not the first alone.

  Raises:
    ValueError: the file holds answers to other questions, or with another key.
  """
  with distributed.in_turn_or_together() if together else distributed.in_turn():
    if key is not None and distributed.first():
      _compare(path, key)
    return _written(path, prompts, reply, batch, key, distributed.met if together else _nothing)


def _nothing() -> None:
  """In place of `distributed.met` where one process does all."""


def _compare(path: pathlib.Path, key: fingerprint.Key) -> None:
  there = fingerprint.read(path)
  if there is not None:
    fingerprint.check("answers", path, there, key)
  elif not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(fingerprint.beside(path), key)


def _written(
  path: pathlib.Path,
  prompts: Mapping[int, list[int]],
  reply: Callable[[list[int]], Iterable[tuple[int, list[int]]]],
  batch: int,
  key: fingerprint.Key | None,
  met: Callable[[], None],
) -> list[Document]:
  if distributed.first():
    done = count_lines(path)
    # What is cut is half a line, or half a batch: batches are those of an uninterrupted run.
    keep_lines(path, done - done % batch if done < len(prompts) else done)
  met()
  answers = _answers(path, prompts)
  if key is not None and fingerprint.read(path) is None:
    print(
      f"answers={str(path)!r} has no {fingerprint.beside(path).name} beside it: with which "
      "settings they were written is not known.",
      file=sys.stderr,
    )
  left = [i for i in prompts if i not in answers]
  met()
  if left:
    with (
      path.open("a") if distributed.first() else open(os.devnull, "w") as sink,
      Bar("answers", len(prompts), len(answers)) as bar,
    ):
      tokens, begin = 0, time.perf_counter()
      for i, ids in reply(left):
        sink.write(json.dumps({"number": i, "prompt": prompts[i], "answer": ids}) + "\n")
        sink.flush()
        answers[i] = ids
        tokens += len(ids)
        bar.update(len(answers), f"{tokens / (time.perf_counter() - begin):.0f} tokens/s")
  return [
    (prompt + answers[i], [False] * len(prompt) + [True] * len(answers[i]))
    for i, prompt in prompts.items()
  ]


def _answers(path: pathlib.Path, prompts: Mapping[int, list[int]]) -> dict[int, list[int]]:
  """The answers of a file by the number of their prompt; a line without one answers in turn.

  The file may be that of a run with other prompts beside these, whose answers are left out.
  """
  found = {}
  source = JsonlSource(path)
  for line, record in enumerate(source[k] for k in range(len(source))):
    i, said = record.get("number", line), record.get("answer")
    if isinstance(i, int) and i not in prompts:
      continue
    if not isinstance(i, int) or record.get("prompt") != prompts[i] or not isinstance(said, list):
      raise ValueError(
        f"answers={str(path)!r} answers another question in line {line + 1}: choose another file."
      )
    found[i] = said
  return found
