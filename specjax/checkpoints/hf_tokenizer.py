"""The tokenizer of a Hugging Face directory, in the layouts in which tokenizers are published."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tokenizers

from specjax import checks
from specjax.checkpoints import bpe, sentence_piece
from specjax.data.tokenizer import Tokenizer

# A key of tokenizer_config.json: the folder beside this one that has tokenizer.json.
SHARED = "specjax_tokenizer"
_CONFIG, _ADDED = "tokenizer_config.json", "added_tokens.json"
_JSON, _VOCAB, _MERGES = "tokenizer.json", "vocab.json", "merges.txt"
_MODEL = "tokenizer.model"
# How a text is split before merges, by the class that the file names; vocab.json does not say.
_CLASSES = {
  "Qwen2Tokenizer": "qwen2",
  "DreamTokenizer": "qwen2",
  "GPT2Tokenizer": "gpt-2",
}
_QWEN = (
  "qwen2", "qwen3", "qwen3_moe", "mimo", "Dream", "sdar", "sdar_moe", "Fast_dLLM_Qwen", "wedlm",
)  # fmt: skip
_OTHERS = {"tekken.json": "mistral-common", "*.tiktoken": "tiktoken", "vocab.txt": "WordPiece",
           "spiece.model": "T5", "*.model.v*": "mistral-common"}  # fmt: skip
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _token(name: str, value: Any) -> tokenizers.AddedToken:
  if not isinstance(value, dict):
    checks.refuse(name, value, "an object with content")
  found = checks.fields_of(value, {"content": str} | dict.fromkeys(_FLAGS, bool), name, ["content"])
  return tokenizers.AddedToken(**found)


def added_tokens(name: str, value: Any) -> dict[int, tokenizers.AddedToken]:
  """`added_tokens_decoder` of tokenizer_config.json: tokens by their ids."""
  if not isinstance(value, dict) or not all(key.isdecimal() for key in value):
    checks.refuse(name, value, "an object of tokens by their ids")
  return {int(key): _token(f"{name}[{key}]", each) for key, each in value.items()}


def shared(name: str, value: Any) -> str:
  """The name of a folder, without a way to it."""
  if not isinstance(value, str) or pathlib.Path(value).name != value or value in ("", ".."):
    checks.refuse(name, value, "the name of a folder beside this one")
  return value


def _texts(value: Any) -> list[str]:
  """The texts of one token or several, as transformers writes them."""
  if isinstance(value, dict) and "content" not in value:
    value = list(value.values())
  if isinstance(value, list):
    return [text for each in value for text in _texts(each)]
  text = value.get("content") if isinstance(value, dict) else value
  return [text] if isinstance(text, str) else []


def _special(directory: pathlib.Path) -> set[str]:
  """The texts of the tokens that have a name, such as `pad_token`; no text writes these."""
  found: set[str] = set()
  for file in (directory / "special_tokens_map.json", directory / _CONFIG):
    for key, value in (checks.read_json(file) if file.exists() else {}).items():
      if key.endswith(("_token", "special_tokens")) and not key.startswith("add_"):
        found.update(_texts(value))
  return found


def _byte_level(
  directory: pathlib.Path, known: Mapping[str, Any], family: str, more: Mapping[str, int]
) -> tokenizers.Tokenizer:
  """Of vocab.json and merges.txt; `more` are ids of tokens that stand elsewhere."""
  named = known.get("tokenizer_class", "Qwen2Tokenizer" if family in _QWEN else None)
  kind = str(named).removesuffix("Fast")
  if kind not in _CLASSES:
    checks.refuse(
      f"{directory / _CONFIG}: tokenizer_class",
      named,
      f"one of {', '.join(_CLASSES)} beside {_VOCAB}, or a {_JSON}",
    )
  raw = checks.read_json(directory / _VOCAB)
  vocab = {token: checks.whole(f"{directory / _VOCAB}: {token!r}", i) for token, i in raw.items()}
  for token, i in more.items():
    if vocab.setdefault(token, i) != i:
      raise ValueError(
        f"{directory}: {token!r} has the id {vocab[token]} in {_VOCAB}, and {i} "
        "among the added tokens: a token must have one id."
      )
  try:
    lines = checks.contents(directory / _MERGES).decode().split("\n")
  except UnicodeDecodeError:
    raise ValueError(f"{directory / _MERGES} is no UTF-8.") from None
  merges = [x.rstrip("\r") for x in lines[lines[0].startswith("#version") :] if x.strip()]
  pre = bpe.PRE_TOKENIZERS[_CLASSES[kind]]
  space = known.get("add_prefix_space", False)
  return bpe.byte_level(vocab, merges, pre, str(directory / _MERGES), space_first=space)


def _add(
  inner: tokenizers.Tokenizer, wanted: Mapping[int, tokenizers.AddedToken], directory: pathlib.Path
) -> None:
  """Adds tokens that the tokenizer lacks or has otherwise; ValueError where an id is another."""
  there = {i: repr(token) for i, token in inner.get_added_tokens_decoder().items()}
  for i, token in sorted(wanted.items()):
    if there.get(i) != repr(token):
      inner.add_tokens([token])
    if (own := inner.token_to_id(token.content)) != i:
      raise ValueError(
        f"{directory}: {token.content!r} has the id {i} among the added tokens, and "
        f"{own} in the tokenizer: a token must have one id."
      )


def _check_space(
  inner: tokenizers.Tokenizer, known: Mapping[str, Any], directory: pathlib.Path
) -> None:
  """Raises ValueError where tokenizer_config.json puts a space before texts and tokenizer.json, in
  its ByteLevel, does not, or the other way round."""
  top = json.loads(inner.pre_tokenizer.__getstate__()) if inner.pre_tokenizer is not None else {}
  for step in top.get("pretokenizers", [top]):
    own = step.get("add_prefix_space") if step.get("type") == "ByteLevel" else None
    if own is not None and known.get("add_prefix_space", own) != own:
      checks.refuse(
        f"{directory / _CONFIG}: add_prefix_space", not own, f"{str(own).lower()}, as in {_JSON}"
      )


def read(directory: pathlib.Path, known: Mapping[str, Any], family: str) -> Tokenizer | None:
  """tokenizer.json, or byte-level BPE in vocab.json and merges.txt, or SentencePiece's
  tokenizer.model; None where there is no tokenizer.

  A model without a tokenizer.json may share that of a folder beside its own (SHARED).

  Tokens of added_tokens.json and tokenizer_config.json are added, as transformers adds them.

  Args:
    known: the checked values of tokenizer_config.json.
    family: of the model, which tells the class where no file names it.

  It raises ValueError for other layouts and damaged files, and where two files give a token another
  id.
  """
  wanted = dict(known.get("added_tokens_decoder", {}))
  own = directory
  if SHARED in known and not (directory / _JSON).exists():
    own = directory.parent / known[SHARED]
    if not (own / _JSON).exists():
      checks.refuse(
        f"{directory / _CONFIG}: {SHARED}", known[SHARED], f"a folder beside it with {_JSON}"
      )
  if (own / _JSON).exists():
    tokenizer = Tokenizer.load(own / _JSON)
    _check_space(tokenizer.inner, known, directory)
    _add(tokenizer.inner, wanted, directory)
    return tokenizer
  file, special = directory / _ADDED, _special(directory)
  for token, i in (checks.read_json(file) if file.exists() else {}).items():
    i = checks.whole(f"{file}: {token!r}", i)
    flags = dict(special=token in special, normalized=token not in special)
    wanted.setdefault(i, tokenizers.AddedToken(token, **flags))
  more = {token.content: i for i, token in wanted.items()}
  if (directory / _VOCAB).exists():
    inner = _byte_level(directory, known, family, more)
  elif (directory / _MODEL).exists():
    legacy, add_bos = known.get("legacy", True), known.get("add_bos_token", True)
    inner, markers = sentence_piece.read(directory / _MODEL, legacy, add_bos)
    special |= set(markers)
  else:
    for pattern, program in _OTHERS.items():
      for other in sorted(directory.glob(pattern)):
        checks.refuse(
          "tokenizer",
          str(other),
          f"a {_JSON} in place of the file of {program}: "
          "transformers' AutoTokenizer writes it by save_pretrained",
        )
    return None
  listed = {token.content for token in wanted.values()}
  for text in special - listed:
    if (i := inner.token_to_id(text)) is not None:
      wanted.setdefault(i, tokenizers.AddedToken(text, special=True, normalized=False))
  _add(inner, wanted, directory)
  return Tokenizer(inner)
