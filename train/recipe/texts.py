"""Records as texts, and the tokenizer and network of a model that begins with them."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from specjax.base import Params
from specjax.data.chat import TEMPLATES, encode_chat
from specjax.data.sources import open_source, text_of
from specjax.data.tokenizer import Tokenizer
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.train.recipe.config import Network

Document = tuple[list[int], list[bool]]  # ids, and whether each is trained
Text = tuple[str, ...]  # (text,) or (question, answer)


def read(data: str, fields: tuple[str, str], template: str) -> list[Text]:
  """All records of `data`: a record with `text` as it is, any other as question and answer.

  Args:
    data: source of the records, see `open_source`.
    fields: names of the question and the answer.
    template: name of the chat template in which these will be written.

  Raises:
    ValueError: no such template, or data that cannot be used.
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
  shape: Network, tokenizer: Tokenizer, *, max_length: int, causal: bool, seed: int
) -> tuple[Config, Params]:
  """A network that reads the tokenizer's ids, and random weights of it."""
  config = Config(
    vocab_size=tokenizer.vocab_size, max_length=max_length, causal=causal,
    **dataclasses.asdict(shape),
  )  # fmt: skip
  z = jnp.zeros((1, 2), jnp.int32)
  init = jax.jit(Transformer(config).init)
  return config, init(jax.random.key(seed), z, z, jnp.ones((1, 2, 2), bool))
