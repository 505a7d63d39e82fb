"""Writes prompts for the training of draft heads without any download: the model asks itself.

    python -m specjax.train.prompts --model smollm2-135m --out runs/prompts --join gsm8k_train.jsonl

Given the chat template up to the user's turn, a chat model writes a question. It answers some of
them, and the answers become texts to summarise, to translate and to answer questions from, or the
first turn of a conversation whose second question the model writes too. A question that was cut,
repeats another or repeats a benchmark is left out. `prompts.jsonl` has one prompt a line, shuffled,
with `kind` and with `question` or `messages`, as `train.heads --data` reads them. The same command
again continues a run that was killed.
"""

import collections
import dataclasses
import itertools
import json
import pathlib
import random
import sys
from collections.abc import Sequence
from typing import Any

from specjax import fingerprint
from specjax.data.sources import open_source, text_of
from specjax.names.load import Model
from specjax.train.recipe import answers, options, run
from specjax.train.recipe.config import Count, Length, Natural, Positive, Seed
from specjax.train.recipe.questions import TASKS, Seen, spoken, task, texts_in, until_user
from specjax.train.recipe.writer import Writer


@dataclasses.dataclass(frozen=True)
class Config:
  """Prompts by a causal chat model.

  Attributes:
    model: name of the model that writes, for which a head will be trained.
    out: directory of `prompts.jsonl` and of what it is made from.
    questions: number of questions that are written, before any is left out.
    texts: number of them that are answered; every answer becomes a task or a first turn.
    longest_question: largest number of tokens of a question.
    longest_text: largest number of tokens of an answer that becomes a text.
    temperature: of all that is written.
    join: JSONL files or datasets whose questions join.
    field: name of the question in their records.
    joined: number of records that are read from each of them, from its start.
    avoid: JSONL files of benchmarks, of which no prompt may repeat eight successive words.
    batch: number of texts that are written at a time.
    seed: seed of all noise.
  """

  model: str
  out: str
  questions: Count = 2000
  texts: Natural = 600
  longest_question: Length = 96
  longest_text: Length = 256
  temperature: Positive = 0.9
  join: tuple[str, ...] = ()
  field: str = "question"
  joined: Count = 1000
  avoid: tuple[str, ...] = ()
  batch: Count = 32
  seed: Seed = 0


def _user(text: str) -> dict[str, str]:
  return {"role": "user", "content": text}


def write(model: Model, config: Config, out: pathlib.Path, seen: Seen) -> list[dict[str, Any]]:
  """The model's own prompts, of which none repeats another or what was `seen`."""
  writer = Writer(model, out, temperature=config.temperature, seed=config.seed, batch=config.batch)

  def continued(
    name: str, asked: list[list[int]], budget: int, cut: bool = False
  ) -> list[str | None]:
    """The turn that follows each prompt, see `spoken`."""
    return [spoken(model, ids, cut=cut) for ids in writer.continued(name, asked, budget)]

  start = until_user(model)
  written = continued("questions", [start] * config.questions, config.longest_question)
  kept = [text for text in written if text is not None and seen.is_new(text)]
  if not kept:
    raise ValueError(
      f"`model` must be a chat model that was trained on what users say, too: {model.name!r} wrote "
      "no question that ended by itself."
    )
  records: list[dict[str, Any]] = [{"kind": "question", "question": text} for text in kept]

  asked = [[_user(text)] for text in kept[: config.texts]]
  questions = [model.chat(turns) for turns in asked]
  said = continued("texts", questions, config.longest_text, cut=True)
  pairs = [(turns, text) for turns, text in zip(asked, said, strict=True) if text is not None]
  talks: list[list[dict[str, str]]] = []
  for (turns, text), kind in zip(pairs, itertools.cycle([*TASKS, "second"]), strict=False):
    if kind == "second":
      talks.append([*turns, {"role": "assistant", "content": text}])
    elif (prompt := task(kind, turns[0]["content"], text)) and not seen.repeats(text):
      records.append({"kind": kind, "question": prompt})

  prefixes = [until_user(model, talk) for talk in talks]
  more = continued("seconds", prefixes, config.longest_question)
  for talk, second in zip(talks, more, strict=True):
    if second is not None and not seen.repeats(second):
      records.append({"kind": "second", "messages": [*talk, _user(second)]})
  return records


def joined(sources: Sequence[str], field: str, count: int, seen: Seen) -> list[dict[str, Any]]:
  """Questions of datasets that repeat nothing that was `seen`."""
  records = []
  for name in sources:
    source = open_source(name)
    texts = (text_of(source[i], field, i) for i in range(min(count, len(source))))
    records += [{"kind": "joined", "question": text} for text in texts if not seen.repeats(text)]
  return records


def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True)
  avoided = [source[i] for source in map(open_source, config.avoid) for i in range(len(source))]
  seen = Seen(text for record in avoided for text in texts_in(record, config.field))
  others = joined(config.join, config.field, config.joined, seen)
  key = model.ingredients() | {"avoided": fingerprint.digest(map(json.dumps, avoided))}
  run.claim(out, config, [record["question"] for record in others], key)

  records = others + write(model, config, out, seen)
  random.Random(config.seed).shuffle(records)
  unfinished = out / "prompts.tmp"
  unfinished.write_text("".join(json.dumps(record) + "\n" for record in records))
  unfinished.replace(out / "prompts.jsonl")
  kinds = collections.Counter(record["kind"] for record in records)
  run.report(out, {"prompts": len(records), "kinds": dict(sorted(kinds.items()))})


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.prompts"))
