"""The texts that a small part learns from: a model's own answers, or given ones."""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax.data.chat import Turns, question, questions
from specjax.data.sources import numbered, open_source
from specjax.decoding.decoder import Decoder
from specjax.names.load import Model, load
from specjax.serving.refill import refilled
from specjax.train.recipe import labels
from specjax.train.recipe.answer_file import written
from specjax.train.recipe.config import Count, Length, Training
from specjax.train.recipe.server import Asking, Server, spellings
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
    answers_from: address of a server of OpenAI's protocol that has the model and writes the answers
      in its place, such as http://127.0.0.1:8000/v1; #NAME behind it names one of its models.
    every_turn: whether a conversation has all of its questions answered, each after the answers
      before it, and not the last alone.
    answer_batch: number of answers that are written at a time.
    length: T, number of tokens of a row.
  """

  held_out: Count = 100
  max_new_tokens: Count = 160
  answers: str | None = None
  answers_from: str | None = None
  every_turn: bool = False
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


class Asked(NamedTuple):
  """Questions that are answered in turn, each after the answers before it.

  Attributes:
    prompt: ids up to the first answer.
    turns: the same as turns.
    later: the turns of each further question.
  """

  prompt: list[int]
  turns: Turns = ()
  later: tuple[Turns, ...] = ()


def _with_room(model: Model, config: Config, new: int, every_turn: bool = False) -> list[Asked]:
  """The questions, without those that leave no `new` positions for an answer."""
  found = []
  for i, turns in enumerate(_conversations(config, config.field)):
    with numbered(i):
      first, *later = questions(turns) if every_turn else [question(turns)]
      found.append(Asked(model.chat(first), first, tuple(later)))
  most = model.config.max_length
  room = [x for x in found if len(x.prompt) + new <= most]
  said = (
    f"{len(found) - len(room)} of {len(found)} questions leave less than {new} of the "
    f"{most} positions of {model.name} for an answer"
  )
  if not room:
    raise ValueError(f"data={config.data!r}: {said}.")
  if len(room) < len(found):
    print(f"{said} and are left out.")
  return room


def ask(model: Model, config: Config, new: int = 1) -> list[list[int]]:
  """The questions as prompts, without those that leave no `new` positions for an answer.

  Raises:
    ValueError: the model has no chat template, a record no question that it accepts, or no question
      leaves room.
  """
  return [x.prompt for x in _with_room(model, config, new)]


def asked(model: Model, config: AnswersConfig) -> list[Asked]:
  """What is to be answered, once it is sure that rows can be made of it, which takes long.

  Raises:
    ValueError: see `ask`; or there are too few questions, or rows too long for the model, or too
      short for an answer; or `answers_from` is no address.
  """
  if config.answers_from is not None:
    Server(config.answers_from)
  labels.check_length(config.length, model)
  found, cut = _with_room(model, config, 1, config.every_turn), config.held_out
  check_held_out(cut, len(found))
  check_batch(config.training.batch, len(found) - cut)
  for part, some in ((labels.TRAIN, found[cut:]), (labels.HELD_OUT, found[:cut])):
    labels.check_prompts(part, [x.prompt for x in some], config.length)
  return found


def content(found: Sequence[Asked]) -> list[Any]:
  """What tells these questions from others, for `run.claim`."""
  return [[x.prompt, *x.later] if x.later else x.prompt for x in found]


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


class _Talk:
  """A conversation while it is answered: its texts so far, and the question that is next.

  Attributes:
    first: the number of its first question among those of all conversations.
    at: which of its questions is next.
    prompt, turns: of that question.
    texts: each has all turns that the template repeats token by token, so mostly there is one.
  """

  first: int
  at: int
  prompt: list[int]
  turns: Turns
  texts: list[Document]

  def __init__(self, asked: Asked, first: int):
    self.first, self.at, self.later = first, 0, asked.later
    self.prompt, self.turns, self.texts = asked.prompt, asked.turns, []

  def add(self, answer: list[int]) -> None:
    """Takes the answer to the question."""
    ids, mask = self.texts[-1] if self.texts else ([], [])
    if self.texts and self.prompt[: len(ids)] == ids:
      self.texts.pop()
    else:
      mask = []
    mask = mask + [False] * (len(self.prompt) - len(mask)) + [True] * len(answer)
    self.texts.append((self.prompt + answer, mask))

  def go_on(self, model: Model, answer: list[int]) -> None:
    """Asks the next question, after the answer to this one.

    The answer is spelled so that the template gives back its very ids, if it can.
    """
    text, said = model.decode(answer, self.prompt), self.prompt + answer
    further, self.at = self.later[self.at], self.at + 1
    asked = [[*self.turns, {"role": "assistant", "content": x}, *further] for x in spellings(text)]
    prompts = [model.chat(turns) for turns in asked]
    same = next((k for k, ids in enumerate(prompts) if ids[: len(said)] == said), 0)
    self.turns, self.prompt = asked[same], prompts[same]


def answered(
  model: Model, found: Sequence[Asked], config: AnswersConfig, temperature: float = 0.0
) -> list[list[Document]]:
  """The texts of each conversation, with the answers of a causal model or of a server that has it.

  Answers end at the model's last position; what is drawn depends on the seed, and greedy answers do
  not. For the file see `answer_file.written`: its numbers count all questions, conversation by
  conversation. A question that leaves no room for an answer, or that a row would not reach, ends
  its conversation.
  """
  path = pathlib.Path(config.answers or f"{config.out}/answers.jsonl")
  seed = config.training.seed
  most = model.config.max_length
  key = model.ingredients() | {
    "temperature": temperature,
    "max_new_tokens": config.max_new_tokens,
    "seed": seed if temperature else None,
    **({"every_turn": True} if config.every_turn else {}),
    **({"written_by": "a server"} if config.answers_from else {}),
  }
  begin = itertools.accumulate((1 + len(x.later) for x in found), initial=0)
  talks = [_Talk(x, i) for x, i in zip(found, begin, strict=False)]
  asking: dict[int, Asking] = {}

  def by_model(left: list[int]) -> Iterator[tuple[int, list[int]]]:
    prompts, budgets = [asking[i].prompt for i in left], [asking[i].budget for i in left]
    decoder = Decoder(model.spread(), temperature=temperature, seed=seed, batch=config.answer_batch)
    for k, result in refilled(decoder, prompts, budgets, numbers=left):
      yield left[k], result.tokens

  def by_server(left: list[int]) -> Iterator[tuple[int, list[int]]]:
    server = Server(config.answers_from or "", temperature, seed, config.answer_batch)
    return server.answers(model, {i: asking[i] for i in left})

  reply = by_server if config.answers_from else by_model
  open_ones, left_out = talks, 0
  while open_ones:
    for x in open_ones:
      budget = min(config.max_new_tokens, most - len(x.prompt))
      asking[x.first + x.at] = Asking(x.prompt, x.turns, budget)
    prompts = {i: asking[i].prompt for i in sorted(asking)}
    texts = written(path, prompts, reply, key=key, together=config.answers_from is None)
    said = {i: ids[len(prompts[i]) :] for i, (ids, _) in zip(prompts, texts, strict=True)}
    further = []
    for x in open_ones:
      answer = said[x.first + x.at]
      x.add(answer)
      if x.at == len(x.later):
        continue
      x.go_on(model, answer)
      if len(x.prompt) < min(most, config.length):
        further.append(x)
      else:
        left_out += 1 + len(x.later) - x.at
    open_ones = further
  if left_out:
    print(f"{left_out} later questions leave no room for an answer and are left out.")
  return [x.texts for x in talks]


def parts(conversations: Sequence[Sequence[Document]], held_out: int) -> dict[str, list[Document]]:
  """The texts to train on, and those of the first conversations, which are held out."""
  return {
    part: list(itertools.chain.from_iterable(some))
    for part, some in (
      (labels.TRAIN, conversations[held_out:]),
      (labels.HELD_OUT, conversations[:held_out]),
    )
  }
