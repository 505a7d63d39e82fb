"""The texts that a draft head learns from: the target's own answers, or given ones."""

import json
import pathlib

from rich.progress import track

from specjax.data.chat import TEMPLATES, encode_chat
from specjax.data.sources import JsonlSource, open_source, text_of
from specjax.decoding.decoder import Decoder
from specjax.decoding.model import Model
from specjax.train.recipe.resume import count_lines, keep_lines

Document = tuple[list[int], list[bool]]


def ask(model: Model, data: str, field: str, questions: int) -> list[list[int]]:
  """The first `questions` questions as prompts; those that leave no room for an answer are not.

  Args:
    model: the target.
    data: JSONL file or tfds:NAME:SPLIT.
    field: of a record, the question.

  Raises:
    ValueError: the target has no chat template, or the data cannot be used.
  """
  _check_template(model)
  source = open_source(data)
  total = min(questions, len(source))
  prompts = [model.chat(text_of(source[i], field, i)) for i in range(total)]
  return [p for p in prompts if len(p) < model.config.max_length]


def answer(
  model: Model,
  prompts: list[list[int]],
  path: pathlib.Path,
  *,
  max_new_tokens: int,
  temperature: float = 0.0,
  seed: int = 0,
  batch: int = 16,
) -> None:
  """Lets the target answer, a JSON line each; what `path` already holds is kept.

  Args:
    max_new_tokens: length of an answer, at most what the target's positions leave.
    temperature: of the answers.
    seed: of their noise.
    batch: prompts answered together.
  """
  done = count_lines(path)
  if done >= len(prompts):
    return
  done -= done % batch  # so that the batches are those of an uninterrupted run
  keep_lines(path, done)
  decoder = Decoder(model, temperature=temperature, seed=seed, batch=batch)
  with path.open("a") as sink:
    for first in track(range(done, len(prompts), batch), description="answers"):
      part = prompts[first : first + batch]
      budgets = [min(max_new_tokens, model.config.max_length - len(p)) for p in part]
      for prompt, result in zip(part, decoder(part, budgets, first=first), strict=True):
        sink.write(json.dumps({"prompt": prompt, "answer": result.tokens}) + "\n")
      sink.flush()


def answered(
  model: Model, prompts: list[list[int]], path: pathlib.Path, **settings
) -> list[Document]:
  """The target's answers, see `answer`, as texts to learn from.

  Raises:
    ValueError: the file holds answers to other questions.
  """
  answer(model, prompts, path, **settings)
  records = JsonlSource(path)
  documents = [document(records[i]) for i in range(len(prompts))]
  for i, prompt in enumerate(prompts):
    if documents[i][0][: len(prompt)] != prompt:
      raise ValueError(f"answers={str(path)!r} answers another question in line {i + 1}: "
                       "choose another file.")  # fmt: skip
  return documents


def document(record: dict) -> Document:
  """Ids of an answered prompt; only the answer is trained."""
  prompt, said = record["prompt"], record["answer"]
  return prompt + said, [False] * len(prompt) + [True] * len(said)


def given(model: Model, data: str, fields: tuple[str, str], questions: int) -> list[Document]:
  """Question and answer as the data have them, in place of the target's own answers.

  Args:
    fields: of a record, question and answer.
  """
  template, tokenizer = _check_template(model)
  source = open_source(data)
  documents = []
  for i in range(min(questions, len(source))):
    texts = (text_of(source[i], f, i) for f in fields)
    turns = [{"role": r, "content": t} for r, t in zip(("user", "assistant"), texts, strict=True)]
    documents.append(encode_chat(TEMPLATES[template], tokenizer, turns))
  return documents


def _check_template(model: Model):
  if model.template is None or model.tokenizer is None:
    raise ValueError(f"model={model.name!r} has no chat template: it cannot be asked questions.")
  return model.template, model.tokenizer
