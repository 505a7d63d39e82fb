"""Records as texts, and the tokenizer and network of a new model that is trained on them."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence

import jax

from specjax.base import Params
from specjax.data.chat import TEMPLATES, encode_chat
from specjax.data.sources import open_source, text_of
from specjax.data.tokenizer import Tokenizer
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import init
from specjax.train.recipe.config import Length, Network, Training

Document = tuple[list[int], list[bool]]  # ids, and whether each is trained
Text = tuple[str, ...]  # (text,) or (question, answer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The options of a trainer that makes a model from texts.

  Attributes:
    data: JSONL file or tfds:NAME:SPLIT.
    out: directory of checkpoints, metrics and the finished model, which is in `model`.
    fields: names of the question and the answer; a record with `text` is used as it is.
    template: chat template of question and answer.
    vocab_size: size of the BPE tokenizer that is trained on the data, special tokens included.
    network: shape of the network.
    length: T, number of tokens of a row.
    training: options of the optimiser; a batch is of rows.
  """

  data: str
  out: str
  fields: tuple[str, str] = ("question", "answer")
  template: str
  vocab_size: Length = 4096
  network: Network
  length: Length
  training: Training = Training()


def read(config: Config) -> tuple[list[Text], str | None]:
  """(all records of the data, their chat template); the template is None where all are `text`.

  Raises:
    ValueError: there is no such chat template, or a record has no text in one of the fields.
  """
  if config.template not in TEMPLATES:
    raise ValueError(f"template={config.template!r}: accepted are {', '.join(TEMPLATES)}.")
  source = open_source(config.data)
  records = [
    tuple(text_of(record, f, i) for f in (("text",) if "text" in record else config.fields))
    for i, record in enumerate(source[i] for i in range(len(source)))
  ]
  return records, config.template if any(len(r) == 2 for r in records) else None


def encode_pair(template: str, tokenizer: Tokenizer, pair: Sequence[str]) -> Document:
  """A question with its answer in a chat template; the answer is trained."""
  turns = [{"role": r, "content": t} for r, t in zip(("user", "assistant"), pair, strict=True)]
  return encode_chat(TEMPLATES[template], tokenizer, turns)


def kept_tokenizer(out: pathlib.Path, train: Callable[[], Tokenizer]) -> Tokenizer:
  """The tokenizer that a killed run kept, else a trained one."""
  file = out / "tokenizer.json"
  return Tokenizer.load(file) if file.exists() else train()


def keep_tokenizer(out: pathlib.Path, tokenizer: Tokenizer) -> None:
  """Keeps the tokenizer for `kept_tokenizer`."""
  if not (out / "tokenizer.json").exists():
    tokenizer.save(out / "tokenizer.tmp")
    (out / "tokenizer.tmp").replace(out / "tokenizer.json")


def new_network(
  config: Config, tokenizer: Tokenizer, *, max_length: int, causal: bool = True
) -> tuple[ModelConfig, Params]:
  """A network that reads the tokenizer's ids, and random weights of it."""
  network = ModelConfig(
    vocab_size=tokenizer.vocab_size, **dataclasses.asdict(config.network), max_length=max_length,
    causal=causal,
  )  # fmt: skip
  return network, jax.jit(functools.partial(init, network))(jax.random.key(config.training.seed))
