"""The tokenizer of a GGUF file, from its metadata into the `tokenizers` library."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import tokenizers
from gguf import TokenType
from tokenizers import models, pre_tokenizers, processors

from specjax import checks
from specjax.checkpoints import bpe, gguf_ends
from specjax.data.jinja_chat import JinjaTemplate
from specjax.data.tokenizer import Tokenizer

_SPECIAL = (TokenType.UNKNOWN, TokenType.CONTROL)


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
  found = {k.removeprefix(_PREFIX): v for k, v in checks.fields_of(metadata, known, where).items()}
  stop, named = gguf_ends.of(found, found.get("tokens", ()))
  mask = found.get("mask_token_id")
  if "tokens" not in found or found.get("model") in ("no_vocab", "none"):
    return Text(None, (), stop, mask, None)

  tokens = found["tokens"]
  found.setdefault("token_type", (TokenType.NORMAL,) * len(tokens))
  kind = checks.choice(f"{where}: tokenizer.ggml.model", found.get("model"), _READERS)
  # Of two tokens of Gemma 4 with one text the later is read, as in llama.cpp.
  if (len(set(tokens)) < len(tokens) and kind != "gemma4") or len(tokens) > vocab_size:
    raise ValueError(
      f"{where}: tokenizer.ggml.tokens has {len(tokens)} texts, of which "
      f"{len(set(tokens))} differ, for {vocab_size} ids."
    )
  for key in ("token_type", "scores"):
    if len(found.get(key, tokens)) != len(tokens):
      raise ValueError(
        f"{where}: tokenizer.ggml.{key} has {len(found[key])} values for {len(tokens)} tokens."
      )
  inner, starts = _READERS[kind](found, where)
  # These tokens are in the vocabulary already and keep their ids.
  inner.add_tokens(
    [
      tokenizers.AddedToken(token, special=kind in _SPECIAL or i in named, normalized=False)
      for i, (token, kind) in enumerate(zip(tokens, found["token_type"], strict=True))
      if kind in (*_SPECIAL, TokenType.USER_DEFINED) or i in named
    ]
  )
  start: tuple[int, ...] = ()
  if found.get("add_bos_token", starts):
    if found.get("bos_token_id", len(tokens)) >= len(tokens):
      raise ValueError(
        f"{where}: a text begins with bos_token_id={found.get('bos_token_id')}, "
        "which tokenizer.ggml.tokens lacks."
      )
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
  pre = bpe.PRE_TOKENIZERS[checks.choice(name, found.get("pre"), bpe.PRE_TOKENIZERS)]
  vocab = {token: i for i, token in enumerate(found["tokens"])}
  merges = f"{where}: tokenizer.ggml.merges"
  return bpe.byte_level(vocab, found.get("merges", ()), pre, merges), pre.start


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
  vocab = {token: i for i, token in enumerate(tokens)}
  prefix: bpe.Prefix = "always" if found.get("add_space_prefix", True) else "never"
  return bpe.sentence_piece(bpe.scored(vocab, scores, unknown), prefix), True


def _merged(found: Mapping[str, Any], where: str) -> tuple[tokenizers.Tokenizer, bool]:
  """Gemma 4's, whose merges are of letters; lines of a text and the ends between are apart."""
  tokens, types = found["tokens"], found["token_type"]
  unknown = tokens[types.index(TokenType.UNKNOWN)] if TokenType.UNKNOWN in types else None
  vocab = {token: i for i, token in enumerate(tokens)}
  merges = bpe.pairs(vocab, found.get("merges", ()), f"{where}: tokenizer.ggml.merges")
  model = models.BPE(
    vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True,
    ignore_merges=True,
  )  # fmt: skip
  inner = bpe.sentence_piece(model, "never")
  inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[^\n]+|\n+"), "isolated")
  return inner, True


_READERS = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _merged}
"""By the value of `tokenizer.ggml.model`."""
