"""The texts that a small part learns from: a model's own answers, or given ones."""

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax import distributed, fingerprint
from specjax.data.chat import Turns, question
from specjax.data.sources import JsonlSource, numbered, open_source
from specjax.decoding.decoder import Decoder
from specjax.eval.bar import Bar
from specjax.names.load import Model, load
from specjax.serving.refill import refilled
from specjax.train.recipe import labels
from specjax.train.recipe.config import Count, Length, Training
from specjax.train.recipe.run import count_lines, keep_lines, write_json
from specjax.train.recipe.texts import Document, encoded, turns_of


@dataclasses.dataclass(frozen=True)
class Config:
  """The options of a trainer that learns from a model that answers questions.

  Attributes:
    model: zoo name or directory of the model that answers.
    data: JSONL file, tfds:NAME:SPLIT or lists:SEED:COUNT with the questions.
    out: directory of answers, checkpoints, metrics and report.json; the trained part is in `model`.
    field: name of the question in a record; a record with `messages` or `conversations` asks the
      last question of its conversation.
    questions: number of records that are read, from the start of the data.
    template: chat template in place of the model's own: a name such as chatml, or a file in Jinja.
    training: options of the optimiser; a batch holds rows, for a judge tokens, for a filter
      records.
  """

  model: str
  data: str
  out: str
  field: str = "question"
  questions: Count = 4000
  template: str | None = None
  training: Training = Training()


@dataclasses.dataclass(frozen=True)
class AnswersConfig(Config):
  """The options of a trainer that learns from answers which a causal model writes itself.

  Attributes:
    held_out: number of questions, the first, on which the trained part is measured.
    max_new_tokens: largest number of tokens of an answer.
    answers: file of answers, made where it is absent; runs may share one. By default in `out`.
    answer_batch: number of answers that are written at a time.
    length: T, number of tokens of a row.
  """

  held_out: Count = 100
  max_new_tokens: Count = 160
  answers: str | None = None
  answer_batch: Count = 16
  length: Length = 384


def teacher(
  name: str, *, causal: bool, dtype: DTypeLike = jnp.float32, template: str | None = None
) -> Model:
  """The model that answers the questions, with weights in `dtype`.

  Raises:
    ValueError: there is no such model, or it is of the other kind or without a chat template.
  """
  model = load(name, dtype, weights="float", template=template)
  if not causal:
    _ = model.denoiser  # raises for a causal model
  elif not model.config.causal:
    raise ValueError(f"`model` must be causal, got the masked diffusion model {name!r}.")
  if model.template is None or model.tokenizer is None:
    raise ValueError(
      f"model={model.name!r} has no chat template: name one with --template, such as chatml, or a "
      "file in Jinja."
    )
  return model


def _conversations(config: Config, *fields: str) -> list[Turns]:
  source = open_source(config.data)
  return [turns_of(source[i], fields, i) for i in range(min(config.questions, len(source)))]


def ask(model: Model, config: Config, new: int = 1) -> list[list[int]]:
  """The questions as prompts, without those that leave no `new` positions for an answer.

  Raises:
    ValueError: the model has no chat template, a record no question that it accepts, or no question
      leaves room.
  """
  prompts = []
  for i, turns in enumerate(_conversations(config, config.field)):
    with numbered(i):
      prompts.append(model.chat(question(turns)))
  most = model.config.max_length
  room = [p for p in prompts if len(p) + new <= most]
  said = (
    f"{len(prompts) - len(room)} of {len(prompts)} questions leave less than {new} of the "
    f"{most} positions of {model.name} for an answer"
  )
  if not room:
    raise ValueError(f"data={config.data!r}: {said}.")
  if len(room) < len(prompts):
    print(f"{said} and are left out.")
  return room


def asked(model: Model, config: "AnswersConfig") -> list[list[int]]:
  """`ask`, once it is sure that rows can be made of the answers, which take long to write.

  Raises:
    ValueError: see `ask`; or there are too few questions, or rows too long for the model, or too
      short for an answer.
  """
  labels.check_length(config.length, model)
  prompts, cut = ask(model, config), config.held_out
  check_held_out(cut, len(prompts))
  check_batch(config.training.batch, len(prompts) - cut)
  for part, some in ((labels.TRAIN, prompts[cut:]), (labels.HELD_OUT, prompts[:cut])):
    labels.check_prompts(part, some, config.length)
  return prompts


def given(model: Model, config: Config, answer_field: str) -> list[Document]:
  """The questions with the answers that the records have in `answer_field`, or conversations."""
  template, tokenizer = model.template, model.tokenizer
  assert template is not None and tokenizer is not None  # see `teacher`
  turns = _conversations(config, config.field, answer_field)
  return encoded(template, tokenizer, enumerate(turns))


def check_held_out(held_out: int, count: int, least: int = 1) -> None:
  """Raises ValueError where fewer than `least` of `count` questions are held out, or all."""
  if not least <= held_out < count:
    raise ValueError(
      f"`held_out` must be at least {least} and less than {count}, the questions that fit the "
      f"model, got {held_out}."
    )


def check_batch(batch: int, most: int) -> None:
  """Raises ValueError where a batch takes more rows than there can be."""
  if batch > most:
    raise ValueError(
      f"`batch` must be between 1 and {most}, the rows that the data can fill, got {batch}."
    )


def written(
  path: pathlib.Path,
  prompts: list[list[int]],
  reply: Callable[[list[int]], Iterable[tuple[int, list[int]]]],
  batch: int = 1,
  key: fingerprint.Key | None = None,
) -> list[Document]:
  """Answers to prompts, each a line of a JSONL file that a killed run continues.

  `reply` is given the numbers of the prompts that have no answer, and yields (number, ids of the
  answer). Where its answers come in batches, a multiple of `batch` is kept. The `key` says what
  the answers depend on, for a file that another run may be given; a file without one is read as it
  is.

  Raises:
    ValueError: the file holds answers to other questions, or with another key.
  """
  with distributed.in_turn_or_together():
    if key is not None and distributed.first():
      _compare(path, key)
    return _written(path, prompts, reply, batch, key)


def _compare(path: pathlib.Path, key: fingerprint.Key) -> None:
  there = fingerprint.read(path)
  if there is not None:
    fingerprint.check("answers", path, there, key)
  elif not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(fingerprint.beside(path), key)


def _written(
  path: pathlib.Path,
  prompts: list[list[int]],
  reply: Callable[[list[int]], Iterable[tuple[int, list[int]]]],
  batch: int,
  key: fingerprint.Key | None,
) -> list[Document]:
  if distributed.first():
    done = count_lines(path)
    # What is cut is half a line, or half a batch: batches are those of an uninterrupted run.
    keep_lines(path, done - done % batch if done < len(prompts) else done)
  distributed.met()
  answers = _answers(path, prompts)
  if key is not None and fingerprint.read(path) is None:
    print(
      f"answers={str(path)!r} has no {fingerprint.beside(path).name} beside it: with which "
      "settings they were written is not known.",
      file=sys.stderr,
    )
  left = [i for i in range(len(prompts)) if i not in answers]
  distributed.met()
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
    for i, prompt in enumerate(prompts)
  ]


def _answers(path: pathlib.Path, prompts: list[list[int]]) -> dict[int, list[int]]:
  """The answers of a file by the number of their prompt; a line without one answers in turn.

  The file may be that of a run with more prompts, whose answers are left out.
  """
  found = {}
  source = JsonlSource(path)
  for line, record in enumerate(source[k] for k in range(len(source))):
    i, said = record.get("number", line), record.get("answer")
    if isinstance(i, int) and i >= len(prompts):
      continue
    if not isinstance(i, int) or record.get("prompt") != prompts[i] or not isinstance(said, list):
      raise ValueError(
        f"answers={str(path)!r} answers another question in line {line + 1}: choose another file."
      )
    found[i] = said
  return found


def answered(
  model: Model, prompts: list[list[int]], config: AnswersConfig, temperature: float = 0.0
) -> list[Document]:
  """The answers of a causal model, see `written`; they end at the model's last position.

  What is drawn depends on the seed, and greedy answers do not.
  """
  path = pathlib.Path(config.answers or f"{config.out}/answers.jsonl")
  seed, batch = config.training.seed, config.answer_batch
  decoder = Decoder(model.spread(), temperature=temperature, seed=seed, batch=batch)

  def reply(left: list[int]) -> Iterator[tuple[int, list[int]]]:
    asked = [prompts[i] for i in left]
    budgets = [min(config.max_new_tokens, model.config.max_length - len(p)) for p in asked]
    for k, result in refilled(decoder, asked, budgets, numbers=left):
      yield left[k], result.tokens

  key = model.ingredients() | {
    "temperature": temperature,
    "max_new_tokens": config.max_new_tokens,
    "seed": seed if temperature else None,
  }
  return written(path, prompts, reply, key=key)
