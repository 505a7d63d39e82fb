"""Right and wrong tokens from which a judge learns, as people or checks have marked them.

A record has a question, an answer, and one of these:

    "wrong": [[12, 14], ..]     the wrong parts of the answer, in characters, the end left out;
                                [] where all of it is right
    "wrong_answer": "..."       an answer that is wrong. Its wrong tokens are those that the right
                                answer does not have there (the shortest edit says where)

The second form is for data that know only which answer is right. It calls another way to say the
same thing wrong, which is noise in the labels.

Letters: R rows, T row length, P marked tokens.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax.data.packing import pack
from specjax.data.sources import numbered
from specjax.models.transformer import Transformer
from specjax.names.load import Model
from specjax.train.recipe import forward
from specjax.train.recipe.judge_labels import JudgeLabels
from specjax.train.recipe.texts import Document

Marked = tuple[Document, list[bool]]  # a text, and which of its tokens are wrong


def _ends(model: Model, ids: list[int]) -> list[int]:
  """Where each token ends in the text of them all, in characters."""
  assert model.tokenizer is not None  # see `answers.teacher`
  return [len(model.tokenizer.decode(ids[: k + 1])) for k in range(len(ids))]


def _by_spans(model: Model, document: Document, answer: str, spans: list[list[int]]) -> list[bool]:
  ids, said = document
  places = [i for i, own in enumerate(said) if own]
  own = [ids[i] for i in places]
  assert model.tokenizer is not None
  first = model.tokenizer.decode(own).find(answer)
  if first < 0:
    raise ValueError("answer is not in the tokenizer's text of it: its marks cannot be placed.")
  wrong, begin = [False] * len(ids), 0
  for place, end in zip(places, _ends(model, own), strict=True):
    wrong[place] = any(a < end - first and begin - first < b for a, b in spans)
    begin = end
  return wrong


def _by_edit(right: Document, other: Document) -> list[bool]:
  ids, said = other
  places = [i for i, own in enumerate(said) if own]
  a, b = ([i for i, own in zip(*d, strict=True) if own] for d in (right, other))
  edit = difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes()
  wrong = [False] * len(ids)
  for kind, _, _, begin, end in edit:
    for k in range(begin, end if kind != "equal" else begin):
      wrong[places[k]] = True
  return wrong


def _spans(record: dict[str, Any], answer: str) -> list[list[int]]:
  spans = record["wrong"]
  pairs = isinstance(spans, list) and all(
    isinstance(span, list)
    and len(span) == 2
    and all(type(x) is int for x in span)
    and 0 <= span[0] < span[1] <= len(answer)
    for span in spans
  )
  if not pairs:
    raise ValueError(
      f"`wrong` must be pairs [begin, end] of characters of the answer, which has {len(answer)}, "
      f"got {spans!r:.60}."
    )
  return spans


def marked(
  model: Model, record: dict[str, Any], index: int, field: str, answer: str
) -> list[Marked]:
  """The texts of record `index` with their marks, two where it has a wrong answer.

  Args:
    field, answer: names of the question and the answer.

  Raises:
    ValueError: a field is missing or not as the head of this file says.
  """
  template, tokenizer = model.template, model.tokenizer
  assert template is not None and tokenizer is not None  # see `answers.teacher`

  def document(said: str) -> Document:
    turns = [{"role": "user", "content": record[field]}, {"role": "assistant", "content": said}]
    return template.encode(tokenizer, turns)

  with numbered(index):
    for name in (field, answer, *(["wrong_answer"] if "wrong_answer" in record else [])):
      if not isinstance(record.get(name), str) or not record[name].strip():
        raise ValueError(f"`{name}` must be text, got {record.get(name)!r:.40}.")
    right = document(record[answer])
    if "wrong_answer" in record:
      other = document(record["wrong_answer"])
      return [(right, [False] * len(right[0])), (other, _by_edit(right, other))]
    if "wrong" not in record:
      raise ValueError("a record must have wrong or wrong_answer, got neither.")
    spans = _spans(record, record[answer])
    return [(right, _by_spans(model, right, record[answer], spans))]


def states(
  model: Model, records: Sequence[list[Marked]], *, length: int, batch: int = 4
) -> JudgeLabels:
  """The states after all answer tokens of the records' texts, in rows of `length` T, and marks."""
  texts = [text for record in records for text in record]
  rows = pack([document for document, _ in texts], length)
  # Packing goes by lengths alone, so the marks lie as their tokens do.
  wrong = pack([(ids, wrong) for (ids, _), wrong in texts], length).mask
  tokenizer, network = model.tokenizer, Transformer(model.config)
  assert tokenizer is not None
  digits = [i for i in np.unique(rows.tokens).tolist() if re.search(r"\d", tokenizer.decode([i]))]
  read = jax.jit(lambda params, part: forward.read(network, params, part).hidden)
  hidden = [
    np.asarray(read(model.params, part), np.float16)[:size]
    for _, size, part in forward.parts(rows, batch, "marked texts")
  ]
  said = rows.mask
  number = np.isin(rows.tokens[said], digits)
  return JudgeLabels(np.concatenate(hidden)[said], ~wrong[said], number)
