"""The tokenizer of a GGUF file, from its metadata into the `tokenizers` library."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers
from gguf import TokenType
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from specjax import checks, schema
from specjax.checkpoints import gguf_ends
from specjax.checkpoints.llama2c import scored_merges
from specjax.data.jinja_chat import JinjaTemplate
from specjax.data.tokenizer import Tokenizer

_SPACE = "\u2581"
_SPECIAL = (TokenType.UNKNOWN, TokenType.CONTROL)

# How a text is split before merges, as each family publishes it in its tokenizer.json.
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}"
  rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
  rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
  rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_CHINESE_AND_KOREAN = "[\u0800-\u9fa5\uac00-\ud7ff]+"


class Pre(NamedTuple):
  """What happens to a text before merges.

  Attributes:
    patterns: regular expressions that split it, one after the other.
    whole_words: whether a word that is a token needs no merges.
    composed: whether characters are composed (NFC) first.
    start: whether `add_bos_token` is true where the file is silent.
  """

  patterns: Sequence[str]
  whole_words: bool = False
  composed: bool = False
  start: bool = False


_LLAMA3 = Pre((_WORDS.replace("DIGITS", "3"),), whole_words=True, start=True)
_QWEN2 = Pre((_WORDS.replace("DIGITS", "1"),))
PRE_TOKENIZERS = {
  "gpt-2": Pre((_GPT2,)),
  "smollm": Pre((r"\p{N}", _GPT2)),
  "llama-bpe": _LLAMA3,
  "llama3": _LLAMA3,
  "llama-v3": _LLAMA3,
  "qwen2": _QWEN2._replace(composed=True),
  "deepseek-r1-qwen": _QWEN2,
  "deepseek-coder": Pre(
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_AND_KOREAN, r"\p{N}"),
  ),
  "tekken": Pre((_TEKKEN,), whole_words=True, start=True),
}
"""Pre-tokenizers by the value of `tokenizer.ggml.pre`."""


class Text(NamedTuple):
  """What a file says about text; the fields are those of `hf.Checkpoint`."""

  tokenizer: Tokenizer | None
  start: tuple[int, ...]
  stop: tuple[int, ...]
  mask: int | None
  template: JinjaTemplate | None


_SCHEMA: dict[str, Any] = {
  "model": str, "pre": str, "tokens": tuple[str, ...], "scores": tuple[float, ...],
  "token_type": tuple[int, ...], "merges": tuple[str, ...], "add_bos_token": bool,
  "add_space_prefix": bool,
}  # fmt: skip
_PREFIX = "tokenizer.ggml."
_IDS = (*gguf_ends.KEYS, "bos_token_id", "mask_token_id")
KEYS = ("tokenizer.chat_template", *(_PREFIX + key for key in (*_SCHEMA, *_IDS)))
"""The keys that `read` reads."""


def read(metadata: Mapping[str, Any], vocab_size: int, where: str) -> Text:
  """The tokenizer, its special tokens and the chat template.

  Args:
    metadata: of the file, by key.
    vocab_size: V of the model.
    where: the file that errors name.

  Raises:
    ValueError: an unknown tokenizer or pre-tokenizer, values that do not fit each other, or a chat
      template that is no Jinja.
  """
  token_id = functools.partial(checks.whole, most=vocab_size - 1)
  known = {_PREFIX + key: kind for key, kind in _SCHEMA.items()}
  known |= {_PREFIX + key: token_id for key in _IDS} | {"tokenizer.chat_template": str}
  found = {k.removeprefix(_PREFIX): v for k, v in schema.fields(metadata, known, where).items()}
  stop, named = gguf_ends.of(found, found.get("tokens", ()))
  mask = found.get("mask_token_id")
  if "tokens" not in found or found.get("model") in ("no_vocab", "none"):
    return Text(None, (), stop, mask, None)

  tokens = found["tokens"]
  found.setdefault("token_type", (TokenType.NORMAL,) * len(tokens))
  if len(set(tokens)) < len(tokens) or len(tokens) > vocab_size:
    raise ValueError(f"{where}: tokenizer.ggml.tokens has {len(tokens)} texts, of which "
                     f"{len(set(tokens))} differ, for {vocab_size} ids.")  # fmt: skip
  for key in ("token_type", "scores"):
    if len(found.get(key, tokens)) != len(tokens):
      raise ValueError(f"{where}: tokenizer.ggml.{key} has {len(found[key])} values for "
                       f"{len(tokens)} tokens.")  # fmt: skip
  kind = checks.choice(f"{where}: tokenizer.ggml.model", found.get("model"), ("gpt2", "llama"))
  inner, starts = (_byte_level if kind == "gpt2" else _sentence_piece)(found, where)
  # These tokens are in the vocabulary already and keep their ids.
  inner.add_tokens([
    tokenizers.AddedToken(token, special=kind in _SPECIAL or i in named, normalized=False)
    for i, (token, kind) in enumerate(zip(tokens, found["token_type"], strict=True))
    if kind in (*_SPECIAL, TokenType.USER_DEFINED) or i in named
  ])  # fmt: skip
  start: tuple[int, ...] = ()
  if found.get("add_bos_token", starts):
    if found.get("bos_token_id", len(tokens)) >= len(tokens):
      raise ValueError(f"{where}: a text begins with bos_token_id={found.get('bos_token_id')}, "
                       "which tokenizer.ggml.tokens lacks.")  # fmt: skip
    start = (found["bos_token_id"],)
    bos = tokens[start[0]]
    inner.post_processor = processors.TemplateProcessing(
      single=[bos, "$A"], special_tokens=[(bos, start[0])]
    )
  return Text(Tokenizer(inner), start, stop, mask, _template(found, where))


def _template(found: Mapping[str, Any], where: str) -> JinjaTemplate | None:
  if "tokenizer.chat_template" not in found:
    return None
  text = dict(enumerate(found["tokens"]))
  bos, eos = (text.get(found.get(key, -1), "") for key in ("bos_token_id", "eos_token_id"))
  try:
    return JinjaTemplate(found["tokenizer.chat_template"], bos, eos)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from None


def _byte_level(found: Mapping[str, Any], where: str) -> tuple[tokenizers.Tokenizer, bool]:
  """Byte-level BPE, and whether a text begins with `bos` where the file is silent."""
  name = f"{where}: tokenizer.ggml.pre"
  pre = PRE_TOKENIZERS[checks.choice(name, found.get("pre"), PRE_TOKENIZERS)]
  vocab = {token: i for i, token in enumerate(found["tokens"])}
  merges = [tuple(line.split(" ")) for line in found.get("merges", ())]
  for i, merge in enumerate(merges):
    if len(merge) != 2 or not {*merge, "".join(merge)} <= vocab.keys():
      checks.refuse(f"{where}: tokenizer.ggml.merges[{i}]", found["merges"][i],
                    "two tokens that make a token, with a space between them")  # fmt: skip
  inner = tokenizers.Tokenizer(
    models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.whole_words)
  )
  if pre.composed:
    inner.normalizer = normalizers.NFC()
  splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in pre.patterns]
  to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
  inner.decoder = decoders.ByteLevel()
  return inner, pre.start


def _sentence_piece(found: Mapping[str, Any], where: str) -> tuple[tokenizers.Tokenizer, bool]:
  """SentencePiece's BPE, whose texts begin with `bos` where the file is silent."""
  tokens, types = found["tokens"], found["token_type"]
  if "scores" not in found:
    raise ValueError(f"{where} lacks 'tokenizer.ggml.scores'.")
  scores = {
    token: score
    for token, score, kind in zip(tokens, found["scores"], types, strict=True)
    if kind == TokenType.NORMAL
  }
  unknown = tokens[types.index(TokenType.UNKNOWN)] if TokenType.UNKNOWN in types else None
  inner = tokenizers.Tokenizer(
    models.BPE(
      vocab={token: i for i, token in enumerate(tokens)}, merges=scored_merges(scores),
      unk_token=unknown, fuse_unk=True, byte_fallback=True,
    )
  )  # fmt: skip
  spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
  steps: list[decoders.Decoder] = [
    decoders.Replace(_SPACE, " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if found.get("add_space_prefix", True):
    spaces.insert(0, normalizers.Prepend(_SPACE))
    steps.append(decoders.Strip(" ", 1, 0))
  inner.normalizer = normalizers.Sequence(spaces)
  inner.decoder = decoders.Sequence(steps)
  return inner, True
