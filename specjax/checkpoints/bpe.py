"""Byte-pair tokenizers of the `tokenizers` library, from tables of tokens and merges or scores."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from specjax import checks

_SPACE = "\u2581"

# How a text is split before merges, as each family publishes it in its tokenizer.json.
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LINES = r"[\r\n]*"
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _words(digits: int, signs: str = _LINES) -> str:
  """Words, of numbers so many digits, and other characters with the `signs` that may follow."""
  return (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,{digits}}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+{signs}|{_REST}"
  )


def _cased(digits: int, end: str = "", signs: str = r"[\r\n/]*", no: str = "") -> str:
  """`_words` that end where lower case is followed by upper case, with an `end`; letters that are
  in the set `no` are in none."""
  upper, lower = (f"[{letters}{no}]" for letters in (_UPPER, _LOWER))
  return (
    rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{end}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{end}"
    rf"|\p{{N}}{{1,{digits}}}| ?[^\s\p{{L}}\p{{N}}]+{signs}|{_REST}"
  )


_ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
  rf"{_ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
  rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}"
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


_LLAMA3 = Pre((_words(3),), whole_words=True, start=True)
_QWEN2 = Pre((_words(1),))
_BY_DIGIT = Pre((r"\p{N}", _GPT2))
_KIMI = _cased(3, f"{_CONTRACTION}?", _LINES, r"&&[^\p{Han}]")
PRE_TOKENIZERS = {
  **dict.fromkeys(("gpt-2", "olmo", "exaone4"), Pre((_GPT2,))),
  **dict.fromkeys(("smollm", "refact", "command-r"), _BY_DIGIT),
  "llama-bpe": _LLAMA3,
  "llama3": _LLAMA3,
  "llama-v3": _LLAMA3,
  "qwen2": _QWEN2._replace(composed=True),
  "deepseek-r1-qwen": _QWEN2,
  "deepseek-coder": Pre(
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_AND_KOREAN, r"\p{N}"),
  ),
  "tekken": Pre((_cased(1),), whole_words=True, start=True),
  **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Pre((_words(3),))),
  **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), Pre((_cased(3, f"{_CONTRACTION}?"),))),
  "deepseek-v3": Pre((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)),
  "kimi-k2": Pre((rf"\p{{Han}}+|{_KIMI}",)),
  "seed-coder": Pre((_words(1, ""),)),
}
"""Pre-tokenizers by the value of `tokenizer.ggml.pre`."""

Prefix = Literal["always", "first", "never"]


def pairs(vocab: Mapping[str, int], merges: Sequence[str], where: str) -> list[tuple[str, str]]:
  """Merges that are written as two tokens with a space between them.

  It raises ValueError for a merge that is no two tokens which make a token.
  """
  made: list[tuple[str, str]] = []
  for i, line in enumerate(merges):
    first, _, second = line.partition(" ")
    if not {first, second, first + second} <= vocab.keys():
      checks.refuse(
        f"{where}[{i}]", line, "two tokens that make a token, with a space between them"
      )
    made.append((first, second))
  return made


def byte_level(
  vocab: Mapping[str, int],
  merges: Sequence[str],
  pre: Pre,
  where: str,
  *,
  space_first: bool = False,
) -> tokenizers.Tokenizer:
  """Byte-level BPE, as of GPT-2 and those that came after it.

  Args:
    vocab: ids by token.
    merges: two tokens each, with a space between them, the first to be applied first.
    where: what errors call the merges.
    space_first: whether a text is read with a space before it.

  It raises ValueError as of `pairs`.
  """
  made = pairs(vocab, merges, where)
  inner = tokenizers.Tokenizer(
    models.BPE(vocab=dict(vocab), merges=made, ignore_merges=pre.whole_words)
  )
  if pre.composed:
    inner.normalizer = normalizers.NFC()
  splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in pre.patterns]
  to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=space_first, use_regex=False)
  inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
  inner.decoder = decoders.ByteLevel()
  return inner


def scored_merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
  """The merges of a vocabulary whose tokens have scores.

  Such a tokenizer joins, again and again, the adjacent pair whose joint text has the highest score,
  so every way to split a token into two is a merge, ranked by the token's score.
  """
  merges = []
  for text in sorted(scores, key=lambda text: -scores[text]):
    splits = ((text[:k], text[k:]) for k in range(1, len(text)))
    merges += [pair for pair in splits if all(part in scores for part in pair)]
  return merges


def scored(
  vocab: Mapping[str, int],
  scores: Mapping[str, float],
  unknown: str | None,
  *,
  byte_fallback: bool = True,
) -> models.Model:
  """SentencePiece's BPE, which joins the pair that makes the token of the highest score.

  Args:
    vocab: ids by token.
    scores: of the tokens that are joined from others.
    unknown: the token for what no token writes.
    byte_fallback: whether bytes are tokens, for what no other token writes.
  """
  return models.BPE(
    vocab=dict(vocab),
    merges=scored_merges(scores),
    unk_token=unknown,
    fuse_unk=True,
    byte_fallback=byte_fallback,
  )


def sentence_piece(
  model: models.Model,
  prefix: Prefix,
  before: Sequence[normalizers.Normalizer] = (),
) -> tokenizers.Tokenizer:
  """A tokenizer of SentencePiece's, whose spaces are letters.

  Args:
    prefix: where a space is read before a text: before all parts between special tokens, before
      the first only (transformers with `legacy` false), or nowhere.
    before: what happens to a text first.
  """
  inner = tokenizers.Tokenizer(model)
  spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
  steps: list[decoders.Decoder] = [
    decoders.Replace(_SPACE, " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if prefix == "always":
    spaces.insert(0, normalizers.Prepend(_SPACE))
  elif prefix == "first":
    inner.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "first", split=False)
  if prefix != "never":
    steps.append(decoders.Strip(" ", 1, 0))
  inner.normalizer = normalizers.Sequence([*before, *spaces])
  inner.decoder = decoders.Sequence(steps)
  return inner
