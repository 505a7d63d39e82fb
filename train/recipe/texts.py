"""Records as texts, and the tokenizer and network of a new model that is trained on them."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from specjax import distributed
from specjax.base import Params
from specjax.data.chat import TEMPLATES, ChatTemplate, Turns, content_of
from specjax.data.sources import conversation, numbered, open_source, text_of
from specjax.data.tokenizer import Tokenizer
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import init
from specjax.sampling import new_key
from specjax.train.recipe.config import Length, Network, Training

Document = tuple[list[int], list[bool]]  # ids, and whether each is trained
Text = str | Turns  # which is used as it is, or a conversation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The options of a trainer that makes a model from texts.

  Attributes:
    data: JSONL file or tfds:NAME:SPLIT.
    out: directory of checkpoints, metrics and the finished model, which is in `model`.
    fields: names of the question and the answer, for lines of `specjax generate --json` prompt and
      text; else a record with `text` is used as it is, and one with `messages`, or ShareGPT's
      `conversations`, is a conversation of any length.
    template: name of the chat template of questions and answers.
    vocab_size: size of the BPE tokenizer that is trained on the data, special tokens included.
    network: shape of the network.
    length: T, number of tokens of a row.
    training: options of the optimiser; a batch is of rows.
  """

  data: str
  out: str
  fields: tuple[str, str] = ("question", "answer")
  template: str | None
  vocab_size: Length = 4096
  network: Network
  length: Length
  training: Training = Training()


def read(config: Config) -> list[Text]:
  """All records of the data.

  Raises:
    ValueError: there is no such chat template, or a record has no text in one of the fields.
  """
  if config.template is not None and config.template not in TEMPLATES:
    raise ValueError(f"`template` must be one of {', '.join(TEMPLATES)}, got {config.template!r}.")
  source, whole = open_source(config.data), "text" not in config.fields
  return [
    text_of(record, "text", i) if whole and "text" in record else turns_of(record, config.fields, i)
    for i, record in enumerate(source[i] for i in range(len(source)))
  ]


def turns_of(record: dict[str, Any], fields: Sequence[str], index: int) -> Turns:
  """The conversation of record `index`, or else its question, and its answer where it is asked for.

  Args:
    fields: names of the question and the answer, or of the question alone.

  Raises:
    ValueError: a turn without its texts, or no text in one of the fields.
  """
  with numbered(index):
    turns = conversation(record)
  roles = ("user", "assistant")[: len(fields)]
  return turns or [
    {"role": role, "content": text_of(record, field, index)}
    for role, field in zip(roles, fields, strict=True)
  ]


def encoded(
  template: ChatTemplate, tokenizer: Tokenizer, conversations: Iterable[tuple[int, Turns]]
) -> list[Document]:
  """Numbered conversations by a template, of which only the assistant's turns are trained.

  It is said how many of their tokens the template writes otherwise once other turns follow, and how
  many tool calls it does not write.

  Raises:
    ValueError: the template refuses a conversation, which is named by its number.
  """
  documents, lost, unwritten = [], 0, 0
  for i, turns in conversations:
    with numbered(i):
      documents.append(template.encode(tokenizer, turns))
      lost += template.untrained(tokenizer, turns)
    names = [name for turn in turns for name in _called(turn)]
    text = tokenizer.decode(documents[-1][0]) if names else ""
    unwritten += sum(name not in text for name in names)
  if lost:
    trained = sum(sum(said) for _, said in documents)
    print(
      f"{trained} of the answers' {trained + lost} tokens are trained: the chat template "
      "writes the others otherwise once another turn follows, such as without their "
      "thinking."
    )
  if unwritten:
    print(f"{unwritten} tool calls are not trained: the chat template does not write them.")
  return documents


def _called(turn: Mapping[str, Any]) -> list[str]:
  """The names of the functions that a turn calls."""
  calls = turn.get("tool_calls") or ()
  functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
  return [f["name"] for f in functions if isinstance(f, Mapping) and isinstance(f.get("name"), str)]


def contents(records: Iterable[Text]) -> Iterator[str]:
  """The texts of records, from which a tokenizer learns."""
  for record in records:
    yield from [record] if isinstance(record, str) else map(content_of, record)


def kept_tokenizer(out: pathlib.Path, train: Callable[[], Tokenizer]) -> Tokenizer:
  """The tokenizer that a killed run kept, else a trained one."""
  file = out / "tokenizer.json"
  return Tokenizer.load(file) if file.exists() else train()


def keep_tokenizer(out: pathlib.Path, tokenizer: Tokenizer) -> None:
  """Keeps the tokenizer for `kept_tokenizer`."""
  with distributed.in_turn():
    if not (out / "tokenizer.json").exists():
      tokenizer.save(out / "tokenizer.tmp")
      (out / "tokenizer.tmp").replace(out / "tokenizer.json")


def new_network(
  config: Config, tokenizer: Tokenizer, *, max_length: int, causal: bool = True
) -> tuple[ModelConfig, Params]:
  """A network that reads the tokenizer's ids, and random weights of it."""
  network = ModelConfig(
    vocab_size=tokenizer.vocab_size,
    **config.network.sizes,
    max_length=max_length,
    causal=causal,
  )
  return network, jax.jit(functools.partial(init, network))(new_key(config.training.seed))
