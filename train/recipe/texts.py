"""Records as texts, and the tokenizer and network of a model that begins with them."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from specjax.base import Params
from specjax.data.chat import TEMPLATES, encode_chat
from specjax.data.sources import open_source, text_of
from specjax.data.tokenizer import Tokenizer
from specjax.models.config import Config
from specjax.models.transformer import init
from specjax.train.recipe.config import Network

Document = tuple[list[int], list[bool]]  # ids, and whether each is trained
Text = tuple[str, ...]  # (text,) or (question, answer)


def read(data: str, fields: tuple[str, str], template: str) -> list[Text]:
  """All records of a source: a record with `text` as it is, any other as question and answer.

  Raises:
    ValueError: there is no such chat template, or a record has no text in one of `fields`.
  """
  if template not in TEMPLATES:
    raise ValueError(f"template={template!r}: accepted are {', '.join(TEMPLATES)}.")
  source = open_source(data)
  records = (source[i] for i in range(len(source)))
  return [
    tuple(text_of(record, f, i) for f in (("text",) if "text" in record else fields))
    for i, record in enumerate(records)
  ]


def encode_pair(template: str, tokenizer: Tokenizer, pair: Sequence[str]) -> Document:
  """A question with its answer in a chat template; the answer is trained."""
  turns = [{"role": r, "content": t} for r, t in zip(("user", "assistant"), pair, strict=True)]
  return encode_chat(TEMPLATES[template], tokenizer, turns)


def kept_tokenizer(out: pathlib.Path, train: Callable[[], Tokenizer]) -> Tokenizer:
  """The tokenizer of a run, so that a resumed run reads the same ids, else a trained one."""
  file = out / "tokenizer.json"
  return Tokenizer.load(file) if file.exists() else train()


def keep_tokenizer(out: pathlib.Path, tokenizer: Tokenizer) -> None:
  """Keeps the tokenizer for `kept_tokenizer`."""
  if not (out / "tokenizer.json").exists():
    tokenizer.save(out / "tokenizer.tmp")
    (out / "tokenizer.tmp").replace(out / "tokenizer.json")


def new_network(
  shape: Network, tokenizer: Tokenizer, seed: int, **rest: Any
) -> tuple[Config, Params]:
  """A network that reads the tokenizer's ids, and random weights of it; `rest` is of its config."""
  config = Config(vocab_size=tokenizer.vocab_size, **dataclasses.asdict(shape), **rest)
  return config, jax.jit(functools.partial(init, config))(jax.random.key(seed))
