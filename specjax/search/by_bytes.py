"""Decoding byte by byte: prompts that end inside a word, holes in a text, models together.

Phan et al. 2024 (arXiv 2410.09303). A prompt is read as tokens up to its last white space that no
token has in its middle, and its last word, which may not be whole, byte by byte, as is all that is
written: `search.covers` has the law of each next byte. Bytes are the same for models of any two
vocabularies, so the laws of several models can be mixed. For a hole in a text the model is asked
for what stands between two parts, in the tokens that it has for this, and what it says begins with
the last word of the first part.

It is EXACT as long as no more stems of covers are needed than are kept: the law is that of what the
model says as text after the tokens before the last word, which are the tokenizer's.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax import checks, switches
from specjax.decoding.batching import check_model, read
from specjax.names.load import Model
from specjax.search.covers import END, Covers, Vocabulary

EXACTNESS = "EXACT (where `lost` is 0)"
_SPACE = re.compile(rb"\s+")
# What stands before the text, before what follows the hole, and before what is in it.
HOLES = (
  ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
  ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
  ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
)


class Bytewise(NamedTuple):
  """What was written after a prompt.

  Attributes:
    said: its bytes.
    text: theirs; bytes that are no whole character are shown as the sign for that.
    ended: whether the text ended before the budget did.
    log_prob: nats, of the bytes, and of the end where it ended, under the models together.
    lost: of each model, see `Covers.lost`.
  """

  said: bytes
  text: str
  ended: bool
  log_prob: float
  lost: list[float]


def vocabulary(model: Model) -> Vocabulary:
  """What the tokens of a model say; those that end a text, and are in none, say nothing.

  Raises:
    ValueError: the model has no tokenizer, or one whose tokens have spaces between them.
  """
  if model.tokenizer is None or model.tokenizer.joint:
    checks.refuse(
      "model", model.name, "a model with a tokenizer whose tokens together are the text"
    )
  spoken = model.tokenizer.spoken_bytes(model.config.vocab_size)
  return Vocabulary([b"" if i in model.stop else said for i, said in enumerate(spoken)])


def cut(model: Model, prompt: str | bytes) -> tuple[str, bytes]:
  """(a prompt up to the last white space where no token goes on, the bytes from there on).

  Raises:
    ValueError: neither text nor bytes, or bytes of which the first part is no UTF-8.
  """
  assert model.tokenizer is not None
  said = prompt if isinstance(prompt, bytes) else checks.text("prompt", prompt).encode()
  whole = model.tokenizer.encode(said.decode(errors="ignore"))
  for at in reversed([0, *(found.start() for found in _SPACE.finditer(said))]):
    try:
      first = said[:at].decode()
    except UnicodeDecodeError:
      checks.refuse("prompt", prompt, "text, or bytes of UTF-8 up to the last word")
    ids = model.tokenizer.encode(first)
    if whole[: len(ids)] == ids:
      return first, said[at:]
  raise AssertionError("nothing is the beginning of every text")


def before(model: Model, first: str, behind: str | None) -> list[int]:
  """The tokens before what is written: of the text before, and where `behind` is given of a hole.

  Raises:
    ValueError: there is none, or the model has no tokens for a hole.
  """
  assert model.tokenizer is not None
  encode = model.tokenizer.encode
  if behind is None:
    ids = [*model.start, *(encode(first) if first else [])]
    if not ids:
      raise ValueError(
        f"`prompt` must have white space before its last word for {model.name}, which has no token "
        "that begins a text."
      )
    return ids
  for names in HOLES:
    marks = [model.tokenizer.id(name) for name in names]
    if (found := [i for i in marks if i is not None]) and len(found) == len(marks):
      return [found[0], *encode(first), found[1], *encode(behind), found[2]]
  checks.refuse(
    "behind", behind, f"None for {model.name}, which has no tokens for a hole in a text"
  )


def opened(
  model: Model,
  words: Vocabulary,
  prompt: str | bytes,
  behind: str | None,
  new: int,
  most: int,
) -> tuple[Covers, bytes]:
  """(covers of no byte yet, after the first part of a prompt; the bytes of its last word)."""
  first, word = cut(model, prompt)
  (ids,), _ = read(model, [before(model, first, behind)], len(word) + new)
  return Covers(model.target, model.params, words, ids, most, len(word) + new), word


def mixed(laws: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
  """f64[257], the logarithm of the mean law, of laws f64[257] and what each counts, above 0."""
  parts = np.stack(laws) + np.log(np.asarray(shares) / np.sum(shares))[:, None]
  return np.logaddexp.reduce(parts, 0)


@switches.hold
def by_bytes(
  models: Model | Sequence[Model],
  prompts: Sequence[str | bytes],
  max_new_bytes: int = 64,
  *,
  behind: Sequence[str] | None = None,
  shares: Sequence[float] | None = None,
  covers: int = 16,
  temperature: float = 0.0,
  seed: int = 0,
) -> list[Bytewise]:
  """EXACT: text byte by byte, after prompts that may end inside a word, by one or more models.

  Prompts are answered one after the other; see the head of this file.

  Measured: 67 % right inside a word (strategies)

  Args:
    models: causal, of any vocabularies; the law of each byte is the mean of theirs.
    prompts: texts, or bytes, which may end inside a character.
    max_new_bytes: a budget for all.
    behind: for each prompt the text after the hole that is filled; None for no holes.
    shares: what each model counts, by default all the same.
    covers: K, the most stems that are kept.
    temperature: of the law of a byte, 0 takes the likeliest. At 1 the text of one model is
      distributed as what it samples token by token.
    seed: of the noise; each prompt has its own.

  Raises:
    ValueError: a model or prompt that is not accepted, or a number.
    FloatingPointError: the logits became NaN.
  """
  group = (
    [models]
    if isinstance(models, Model)
    else [*checks.sequence("models", models, "a model or a list of them")]
  )
  for model in group or [None]:
    check_model(model, causal=True)
  checks.sequence("prompts", prompts, "a list of texts")
  checks.whole("max_new_bytes", max_new_bytes, 1)
  checks.whole("covers", covers, 1, checks.BATCH)
  checks.number("temperature", temperature, 0)
  checks.whole("seed", seed, 0, checks.SEED)
  counts = [1.0] * len(group) if shares is None else [*shares]
  for i, share in enumerate(counts):
    checks.number(f"shares[{i}]", share, above=0)
  if len(counts) != len(group):
    checks.refuse("len(shares)", len(counts), f"{len(group)}, the number of models")
  holes: list[str | None] = [None] * len(prompts) if behind is None else [*behind]
  if len(holes) != len(prompts):
    checks.refuse("len(behind)", len(holes), f"{len(prompts)}, the number of prompts")
  words = [vocabulary(model) for model in group]
  found = []
  for r, (prompt, hole) in enumerate(zip(prompts, holes, strict=True)):
    each = [
      opened(model, said, prompt, hole, max_new_bytes, covers)
      for model, said in zip(group, words, strict=True)
    ]
    for own, word in each:
      for byte in word:
        own.read(byte)
    if all(own.log_prob == -np.inf for own, _ in each):
      checks.refuse("prompt", prompt, "a text that the tokens of a model say")
    rng = np.random.default_rng((seed, r))
    found.append(_written([own for own, _ in each], counts, max_new_bytes, temperature, rng))
  return found


def _written(
  each: Sequence[Covers],
  shares: Sequence[float],
  budget: int,
  temperature: float,
  rng: np.random.Generator,
) -> Bytewise:
  said, total, byte = bytearray(), 0.0, -1
  while len(said) < budget:
    # A model of which no token says the text counts no more.
    able = [(x.law(), share) for x, share in zip(each, shares, strict=True) if x.log_prob > -np.inf]
    law = mixed([law for law, _ in able], [share for _, share in able])
    heated = law / temperature + rng.gumbel(size=len(law)) if temperature > 0 else law
    byte = int(np.argmax(heated))
    total += float(law[byte])
    if byte == END:
      break
    said.append(byte)
    for own in each:
      own.read(byte)
  lost = [own.lost for own in each]
  return Bytewise(bytes(said), said.decode(errors="replace"), byte == END, total, lost)
