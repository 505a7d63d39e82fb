"""Writes texts in which a model corrects its own answers, for it knew right ones.

    python -m specjax.train.corrections --model smollm2-135m --data gsm8k_train.jsonl \\
        --out runs/corrections
    python -m specjax.train.lm --start smollm2-135m --template chatml --out runs/corrected \\
        --data runs/corrections/corrections.jsonl

Reference-answer-based correction (Cen et al. 2024, Bridging the Training-Inference Gap by
Self-Generated Tokens, arXiv 2410.14655): a model begins an answer by itself, and goes on with the
right answer in its prompt. What it learns is to go on like that without such a prompt, behind text
of its own: a line of `corrections.jsonl` is a conversation whose answer has `begun` with the
model's words, which `train.lm` reads and does not learn. How long a beginning is, is drawn evenly
from 1 to all of its tokens, which is our choice. A model that follows no instructions has the right
answer itself as the correction. The same command again continues a run that was killed.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from specjax.data.resume import write_text
from specjax.data.sources import open_source, text_of
from specjax.names.load import Model
from specjax.train.recipe import answers, options, run
from specjax.train.recipe.config import Count, Positive, Seed
from specjax.train.recipe.writer import Writer

TOLD = "{question}\n\nA right answer is:\n{answer}\n\nAnswer in your words; correct what is wrong."
AGAIN = " No, once more: "  # between a wrong beginning and the right answer itself


@dataclasses.dataclass(frozen=True)
class Config:
  """Corrections by a causal model.

  Attributes:
    model: name of the model that answers, and that will learn.
    data: JSONL file or tfds:NAME:SPLIT of questions with right answers.
    out: directory of `corrections.jsonl` and of what it is made from.
    fields: names of the question and of the right answer in a record.
    questions: number of records that are read, from the start of the data.
    by: who corrects: the "model", which is told the right answer, or the "reference", by the right
      answer itself.
    template: chat template in place of the model's own: a name such as chatml, or a file in Jinja.
    max_new_tokens: largest number of tokens of an answer, and of a correction by the model.
    temperature: of all that the model writes.
    batch: number of texts that are written at a time.
    seed: seed of all noise.
  """

  model: str
  data: str
  out: str
  fields: tuple[str, str] = ("question", "answer")
  questions: Count = 1000
  by: Literal["model", "reference"] = "model"
  template: str | None = None
  max_new_tokens: Count = 160
  temperature: Positive = 0.8
  batch: Count = 16
  seed: Seed = 0


def _asked(model: Model, question: str) -> list[int]:
  return model.chat([{"role": "user", "content": question}])


def beginning(model: Model, own: Sequence[int], rng: np.random.Generator) -> list[int]:
  """The first tokens of an answer, without the one that ends it; none where it says nothing."""
  said = list(own[:-1] if own and own[-1] in model.stop else own)
  return said[: rng.integers(1, len(said) + 1)] if said else []


def by_reference(begun: str, reference: str) -> str:
  """The right answer behind a beginning, or what is left of it where the beginning is its own."""
  return reference if reference.startswith(begun) else f"{begun}{AGAIN}{reference}"


def _records(pairs: Sequence[tuple[str, str]], texts: Sequence[tuple[str, str]]) -> Iterator[Any]:
  """Conversations of texts (the beginning, the whole answer), without those that teach nothing."""
  for (question, _), (begun, whole) in zip(pairs, texts, strict=True):
    if begun and len(whole) > len(begun) and whole.startswith(begun) and "\ufffd" not in whole:
      said = {"role": "assistant", "content": whole, "begun": begun}
      yield {"messages": [{"role": "user", "content": question}, said]}


def write(model: Model, config: Config, pairs: Sequence[tuple[str, str]], writer: Writer):
  """The conversations about questions with right answers.

  Raises:
    ValueError: no question leaves room for its answers.
  """
  new, told = config.max_new_tokens, config.by == "model"
  prompts = [_asked(model, question) for question, _ in pairs]
  again = [_asked(model, TOLD.format(question=q, answer=a)) if told else [] for q, a in pairs]
  most = model.config.max_length - new
  fits = [len(a) <= most and len(b) + new <= most for a, b in zip(prompts, again, strict=True)]
  kept = np.flatnonzero(fits).tolist()
  if not kept:
    raise ValueError(f"data={config.data!r}: no question leaves room for {new} tokens and more.")
  pairs, again = [pairs[i] for i in kept], [again[i] for i in kept]
  own = writer.continued("own", [prompts[i] for i in kept], new)

  begun = [
    beginning(model, ids, np.random.default_rng([config.seed, i])) for i, ids in enumerate(own)
  ]
  starts = [model.decode(ids).lstrip() for ids in begun]
  if told:
    after = [prompt + ids for prompt, ids in zip(again, begun, strict=True)]
    ends = writer.continued("corrected", after, new)
    wholes = [  # an answer that was cut is none
      model.decode([*ids, *end[:-1]]).lstrip() if end[-1] in model.stop else ""
      for ids, end in zip(begun, ends, strict=True)
    ]
  else:
    wholes = [by_reference(a, b) for a, (_, b) in zip(starts, pairs, strict=True)]
  return list(_records(pairs, list(zip(starts, wholes, strict=True))))


def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True, template=config.template)
  source, pairs = open_source(config.data), []
  for i in range(min(config.questions, len(source))):
    question, answer = (text_of(source[i], field, i) for field in config.fields)
    pairs.append((question, answer))
  run.claim(out, config, pairs, model.ingredients())
  writer = Writer(model, out, temperature=config.temperature, seed=config.seed, batch=config.batch)
  records = write(model, config, pairs, writer)
  write_text(out / "corrections.jsonl", "".join(json.dumps(x) + "\n" for x in records))
  run.report(out, {"questions": len(pairs), "corrections": len(records)})


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.corrections"))
