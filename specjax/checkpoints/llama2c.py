"""llama2.c's legacy (version 0) checkpoints and tokenizers."""

import math
import pathlib
import struct

import jax.numpy as jnp
import numpy as np
import tokenizers
from jax.typing import DTypeLike
from tokenizers import decoders, models, normalizers, processors

from specjax import checks
from specjax.checkpoints.bpe import scored_merges
from specjax.checkpoints.hf import Checkpoint, start_ids
from specjax.data.tokenizer import Tokenizer
from specjax.models.config import Config

_HEADER = struct.Struct("<7i")
_SPECIAL = ["<unk>", "<s>", "</s>"]
_BOS, _EOS = 1, 2
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _read_header(path: pathlib.Path) -> Config:
  head = checks.contents(path, _HEADER.size)
  if len(head) < _HEADER.size:
    raise ValueError(f"{path} has {len(head)} bytes, less than a llama2.c header.")
  numbers = _HEADER.unpack(head)
  width, mlp_width, layers, heads, kv_heads, vocab_size, length = numbers
  possible = (
    min(width, mlp_width, layers, heads, kv_heads, abs(vocab_size), length) > 0
    and width % (2 * heads) == 0
    and heads % kv_heads == 0
  )
  if not possible:
    raise ValueError(
      f"{path} is no llama2.c version 0 checkpoint: its header (dim, hidden_dim, n_layers, "
      f"n_heads, n_kv_heads, vocab_size, max_seq_len) is {numbers}."
    )
  return Config(
    vocab_size=abs(vocab_size),
    width=width,
    layers=layers,
    heads=heads,
    kv_heads=kv_heads,
    head_dim=width // heads,
    mlp_width=mlp_width,
    max_length=length,
    tied=vocab_size > 0,
  )


def _tables(c: Config) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the float32 tables, in the file's order."""
  L, E, F = c.layers, c.width, c.mlp_width
  q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
  tables = {
    "embedding": (c.vocab_size, E), "attention_norm": (L, E), "wq": (L, q, E), "wk": (L, kv, E),
    "wv": (L, kv, E), "wo": (L, E, q), "mlp_norm": (L, E), "w1": (L, F, E), "w2": (L, E, F),
    "w3": (L, F, E), "norm": (E,), "angles": (2, c.max_length, c.head_dim // 2),
  }  # fmt: skip
  return tables if c.tied else tables | {"wcls": (c.vocab_size, E)}


def halves(w: np.ndarray, heads: int) -> np.ndarray:
  """Rows of w [heads * C, ...], per head, from rotary pairs (2i, 2i + 1) to (i, i + C / 2)."""
  return w.reshape(heads, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _read_pieces(path: pathlib.Path, vocab_size: int) -> list[tuple[float, str]]:
  """(score, text) of every token."""
  data = checks.contents(path)
  pieces, at = [], 4  # the length of the longest token comes first
  for i in range(vocab_size):
    if at + 8 > len(data):
      raise ValueError(f"{path} ends before token {i} of {vocab_size}.")
    score, size = struct.unpack_from("<fi", data, at)
    piece = data[at + 8 : at + 8 + size]
    if size < 0 or len(piece) < size:
      raise ValueError(f"{path}: token {i} of {vocab_size} has length {size}, past the file's end.")
    try:
      pieces.append((score, piece.decode()))
    except UnicodeDecodeError as error:
      raise ValueError(f"{path}: token {i} of {vocab_size} is not UTF-8: {piece!r}.") from error
    at += 8 + size
  if at != len(data):
    raise ValueError(f"{path} has {len(data) - at} bytes after the last of {vocab_size} tokens.")
  return pieces


def load_tokenizer(path: str | pathlib.Path, vocab_size: int) -> Tokenizer:
  """A tokenizer with llama2.c's ids; ValueError where the file has not `vocab_size` tokens.

  Encoding puts one more space before a text; decoding drops it after `<s>` only, so that a
  continuation keeps its own.
  """
  path = pathlib.Path(path)
  pieces = _read_pieces(path, vocab_size)
  first = len(_SPECIAL) + len(_BYTES)
  names = _SPECIAL + _BYTES + [text for _, text in pieces[first:]]
  vocab = {name: i for i, name in enumerate(names)}
  if len(vocab) != vocab_size:
    raise ValueError(f"{path} has {len(vocab)} different tokens, and the model {vocab_size}.")

  merges = scored_merges({names[i]: pieces[i][0] for i in range(first, vocab_size)})
  inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
  inner.normalizer = normalizers.Prepend(" ")
  bos = _SPECIAL[_BOS]
  inner.post_processor = processors.TemplateProcessing(
    single=f"{bos} $A", special_tokens=[(bos, _BOS)]
  )
  # Control tokens are not registered as special: llama2.c reads their names in a text as letters.
  inner.decoder = decoders.Sequence(
    [
      decoders.Replace(tokenizers.Regex("^<unk>$|^</s>$"), ""),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Replace(tokenizers.Regex("^<s> ?"), ""),
    ]
  )
  return Tokenizer(inner)


def load(
  path: str | pathlib.Path,
  tokenizer: str | pathlib.Path | None = None,
  dtype: DTypeLike = jnp.float32,
) -> Checkpoint:
  """Reads a `.bin` model, and a `.bin` tokenizer where one is given.

  It raises ValueError for a file that cannot be read, has no version 0 header, or is not as long as
  its header says; see also `load_tokenizer`.
  """
  path = pathlib.Path(path)
  c = _read_header(path)
  tables = _tables(c)
  size = path.stat().st_size
  expected = _HEADER.size + 4 * sum(map(math.prod, tables.values()))
  if size != expected:
    raise ValueError(f"{path} has {size} bytes, its header calls for {expected}.")
  t, offset = {}, _HEADER.size
  for name, shape in tables.items():
    t[name] = np.memmap(path, "<f4", "r", offset, shape)
    offset += t[name].nbytes

  def array(*parts: np.ndarray):
    return jnp.asarray(np.concatenate(parts), dtype)

  params = {"embedding": array(t["embedding"]), "norm": {"weight": array(t["norm"])}}
  if not c.tied:
    params["lm_head"] = array(t["wcls"])
  for i in range(c.layers):
    q, k = halves(t["wq"][i], c.heads), halves(t["wk"][i], c.kv_heads)
    params[f"layer_{i}"] = {
      "attention_norm": {"weight": array(t["attention_norm"][i])},
      "qkv": array(q, k, t["wv"][i]),
      "out": array(t["wo"][i]),
      "mlp_norm": {"weight": array(t["mlp_norm"][i])},
      "gate_up": array(t["w1"][i], t["w3"][i]),
      "down": array(t["w2"][i]),
    }
  text = None if tokenizer is None else load_tokenizer(tokenizer, c.vocab_size)
  stop = (_BOS, _EOS)  # training texts follow each other, so <s> ends one, too
  start = (_BOS,) if text is None else start_ids(text)
  return Checkpoint(c, {"params": params}, text, stop, template=None, start=start)
