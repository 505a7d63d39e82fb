"""Right and wrong tokens from which a judge learns, made from reference answers.

The labels with which judge decoding is published were made by people and are not public. This
procedure is our own, and its labels say less:

- Right is every token of a reference answer, and a word that replaces one of its words. That word
  is drawn among the target's top-k and holds no digit and no sign of arithmetic. It may change the
  sense ("more" for "less"), which is noise in the labels.
- Wrong is another digit in the place of one that the text before it determines, which in GSM8K are
  those of the results, `<<48/2=24>>24`, and of the last line, `#### 72`; and another operator
  inside `<<..>>`. Both are drawn from the target's distribution over their kind. Operands are not
  replaced: in another order they may be right.

One token is replaced at a time: a replacement is another node after the same text, and one pass
over the reference reads all nodes. The states are those after the token.

Letters: R rows, T row length, V vocabulary, E width, P marked tokens.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.data.packing import PackedRows, pack
from specjax.data.tokenizer import Tokenizer
from specjax.models.transformer import Transformer, attention_mask
from specjax.names.load import Model
from specjax.sampling import new_key
from specjax.train.recipe import forward
from specjax.train.recipe.texts import Document

WORD, DIGIT, OPERATOR, KEPT = range(4)
LIKE = {WORD: r" ?[^\W\d_]{2,}", DIGIT: r"\d", OPERATOR: r"[-+*/]"}


class JudgeLabels(NamedTuple):
  """Labelled tokens."""

  hidden: np.ndarray  # f16[P, E], the target's state after the token
  right: np.ndarray  # bool[P]
  number: np.ndarray  # bool[P], a digit or operator that may be replaced, or its replacement


def kinds(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray:
  """The kind i32[V] of every token; WORD, DIGIT and OPERATOR may be replaced by their own kind."""

  def kind(text: str) -> int:
    return next((kind for kind, like in LIKE.items() if re.fullmatch(like, text)), KEPT)

  return np.asarray([kind(tokenizer.decode([i])) for i in range(vocab_size)], np.int32)


def replaceable(tokenizer: Tokenizer, tokens: list[int], kind: np.ndarray) -> np.ndarray:
  """Says which of T tokens are words, digits of results or operators inside `<<..>>`: bool[T].

  `kind` is i32[V], see `kinds`.
  """
  text, end = "", []
  for i in tokens:
    text += tokenizer.decode([i])
    end.append(len(text))
  result, inside = np.zeros(len(text) + 1, bool), np.zeros(len(text) + 1, bool)
  for m in re.finditer(r"<<([^<>=]*)=([^<>]*)>>([\d.,]*)|####([^\n]*)", text):
    for group in (2, 3, 4):
      result[slice(*m.span(group))] = True
    inside[slice(*m.span(1))] = True
  last = np.asarray(end, int) - 1
  of = kind[np.asarray(tokens, int)]
  return (of == WORD) | ((of == DIGIT) & result[last]) | ((of == OPERATOR) & inside[last])


def mark(
  model: Model,
  documents: Sequence[Document],
  *,
  top_k: int,
  temperature: float,
  seed: int,
  length: int,
  batch: int = 4,
) -> JudgeLabels:
  """Labels every answer token of documents, and one replacement of each.

  For `top_k`, `temperature` and `length` T see `train.judge`; `batch` rows are read at once.

  Raises:
    ValueError: the tokenizer does not split numbers into digits.
  """
  rows = pack(documents, length)
  assert model.tokenizer is not None  # `rows` come from it
  kind = kinds(model.tokenizer, model.config.vocab_size)
  said = np.unique(rows.tokens[rows.mask]).tolist()
  if (kind == DIGIT).sum() < 10 or any(
    re.search(r"\d\d", model.tokenizer.decode([i])) for i in said
  ):
    raise ValueError(
      "`model` must have a tokenizer that splits digits, or the data must be --marked, got "
      f"{model.name!r}, whose vocabulary has numbers of several digits."
    )
  may = np.zeros_like(rows.mask)
  for r, c in zip(*np.nonzero(np.diff(rows.mask, axis=1, prepend=False) & rows.mask), strict=True):
    stop = c + int(np.argmin([*rows.mask[r, c:], False]))
    may[r, c:stop] = replaceable(model.tokenizer, rows.tokens[r, c:stop].tolist(), kind)

  network = Transformer(model.config)

  @jax.jit
  def run(params, rows: PackedRows, key: Array) -> tuple[Array, Array]:
    """States [B, 2 T, E] after tokens and replacements; bool[B, T], where there is one."""
    T = rows.tokens.shape[1]
    seen = attention_mask(jnp.asarray(rows.segment), True)
    hidden = forward.read(network, params, rows).hidden
    logits: Array = network.apply(params, hidden, method="head")  # type: ignore[assignment]
    log_probs = jnp.pad(logits, ((0, 0), (1, 0), (0, 0)))[:, :-1] / temperature
    of = jnp.asarray(kind)[rows.tokens]
    least = jax.lax.top_k(log_probs, top_k)[0][..., -1:]
    allowed = (of[..., None] == jnp.asarray(kind)[None, None]) & (
      rows.tokens[..., None] != jnp.arange(log_probs.shape[-1])[None, None]
    )
    allowed &= (log_probs >= least) | (of != WORD)[..., None]
    log_probs = jnp.where(allowed, log_probs, -jnp.inf)
    noise = jax.random.gumbel(key, log_probs.shape, mode="low")
    other = jnp.argmax(log_probs + noise, -1).astype(jnp.int32)
    before = seen & ~jnp.eye(T, dtype=bool)[None]
    itself = jnp.broadcast_to(jnp.eye(T, dtype=bool), before.shape)
    mask = jnp.block([[seen, jnp.zeros_like(seen)], [before, itself]])
    both, _ = network.apply(
      params,
      jnp.concatenate([rows.tokens, other], 1),
      jnp.tile(rows.position, (1, 2)),
      mask,
      method="features",
    )
    return both.hidden.astype(jnp.float16), allowed.any(-1)

  parts = []
  for i, size, part in forward.parts(rows, batch, "marked tokens"):
    hidden, left = run(model.params, part, jax.random.fold_in(new_key(seed), i))
    hidden, left = np.asarray(hidden)[:size], np.asarray(left)[:size]
    T = left.shape[1]
    own, replaced = rows.mask[i : i + size], may[i : i + size] & left
    number = may[i : i + size] & (kind[rows.tokens[i : i + size]] != WORD)
    parts.append(JudgeLabels(hidden[:, :T][own], np.ones(own.sum(), bool), number[own]))
    parts.append(JudgeLabels(hidden[:, T:][replaced], ~number[replaced], number[replaced]))
  return JudgeLabels(*(np.concatenate(x) for x in zip(*parts, strict=True)))
