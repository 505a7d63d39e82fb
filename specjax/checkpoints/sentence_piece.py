"""tokenizer.model, SentencePiece's own file, into the `tokenizers` library."""

import pathlib
from typing import Any

import tokenizers
from gguf import TokenType
from tokenizers import models, normalizers, processors

from specjax import checks
from specjax.checkpoints import bpe

_UNIGRAM, _BPE = 1, 2
_HELP = "a tokenizer.json, which transformers' AutoTokenizer writes by save_pretrained"


def _parse(file: pathlib.Path) -> Any:
  content = checks.contents(file)
  if not content.startswith(b"\n"):  # the first field of its message
    checks.refuse("tokenizer", str(file), f"a model of SentencePiece, not tiktoken's, or {_HELP}")
  try:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2
  except ImportError:
    raise ValueError(
      f"{file} needs the package sentencepiece, which is not installed: use pip install "
      f"specjax[sentencepiece], or {_HELP}."
    ) from None
  messages: Any = sentencepiece_model_pb2  # makes its classes when it is imported
  try:
    return messages.ModelProto.FromString(content)
  except DecodeError as error:
    raise ValueError(f"{file} is truncated or no model of SentencePiece: {error}.") from error


def _before(file: pathlib.Path, spec: Any) -> list[normalizers.Normalizer]:
  """What happens to a text before its spaces become letters."""
  if not spec.escape_whitespaces:
    checks.refuse(f"{file}: escape_whitespaces", False, "true")
  steps: list[normalizers.Normalizer] = []
  if spec.precompiled_charsmap:
    steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
  if spec.remove_extra_whitespaces:
    steps.append(normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
    steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
  return steps


def read(file: pathlib.Path, legacy: bool, add_bos: bool) -> tuple[tokenizers.Tokenizer, list[str]]:
  """The tokenizer, and its markers, which no text writes.

  Args:
    legacy: whether a space is read before each part between markers, and not before the first only.
    add_bos: whether a text begins with the file's `bos`.

  It raises ValueError where the file is of another program, damaged, or of an algorithm that is
  neither BPE nor unigram, and where the package sentencepiece is absent.
  """
  found = _parse(file)
  trainer, spec, pieces = found.trainer_spec, found.normalizer_spec, found.pieces
  if trainer.treat_whitespace_as_suffix:
    checks.refuse(f"{file}: treat_whitespace_as_suffix", True, "false")
  if trainer.model_type not in (_UNIGRAM, _BPE):
    checks.refuse(f"{file}: model_type", trainer.model_type, "1 (unigram) or 2 (BPE)")
  vocab = {piece.piece: i for i, piece in enumerate(pieces)}
  if len(vocab) < len(pieces):
    raise ValueError(f"{file} has {len(pieces)} pieces, of which {len(vocab)} differ.")
  of = {kind: [p for p in pieces if p.type == kind] for kind in TokenType}
  if trainer.model_type == _BPE:
    scores = {p.piece: p.score for p in of[TokenType.NORMAL]}
    unknown = of[TokenType.UNKNOWN][0].piece if of[TokenType.UNKNOWN] else None
    model = bpe.scored(vocab, scores, unknown, byte_fallback=trainer.byte_fallback)
  else:
    table = [(p.piece, p.score) for p in pieces]
    model = models.Unigram(table, trainer.unk_id, trainer.byte_fallback)
  prefix: bpe.Prefix = "never"
  if spec.add_dummy_prefix:
    prefix = "always" if legacy else "first"
  inner = bpe.sentence_piece(model, prefix, _before(file, spec))
  inner.add_tokens(
    [
      tokenizers.AddedToken(p.piece, special=False, normalized=False)
      for p in of[TokenType.USER_DEFINED]
    ]
  )
  if add_bos and trainer.bos_id >= 0:
    bos = pieces[trainer.bos_id].piece
    inner.post_processor = processors.TemplateProcessing(
      single=[bos, "$A"], special_tokens=[(bos, trainer.bos_id)]
    )
  return inner, [p.piece for p in (*of[TokenType.UNKNOWN], *of[TokenType.CONTROL])]
