"""The host's side of grammars: which tokens a grammar allows after a text, and which it forces.

The engine is llguidance, an Earley parser over a trie of the tokens. It is imported where it is
needed, for it comes with specjax[grammar] only.

Letters: B batch, S capacity of a text, N tree nodes, D depth, V vocabulary, W = ceil(V / 32) words
of 32 bits, G bytes of a grammar.
"""

import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specjax.data.tokenizer import Tokenizer
from specjax.processors import closing
from specjax.processors.distances import Distances, Vocabulary
from specjax.processors.json_texts import Unknown, texts_of
from specjax.processors.languages import NOTHING, Languages
from specjax.processors.measures import INFINITE

KEPT = 256  # matchers, each at the end of a text: more than most batches have rows
GRAMMARS = 64  # parsed grammars
INT32 = 2**31 - 1
_BEFORE = "\x02"


class _Spelled:
  """A tokenizer as the engine wants it; the fields are its own."""

  bos_token_id = None

  def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop: int):
    self._encode = tokenizer.encode
    spoken = tokenizer.spoken_bytes(vocab_size)
    names = [tokenizer.inner.id_to_token(i) or "" for i in range(vocab_size)]
    # A token that says nothing has its name here, by which a grammar may ask for it.
    self.tokens = [b or name.encode() for b, name in zip(spoken, names, strict=True)]
    self.special_token_ids = [i for i, b in enumerate(spoken) if not b and names[i]]
    self.eos_token_id = stop

  def __call__(self, text: str) -> list[int]:
    ids = self._encode(text)
    if b"".join(self.tokens[i] for i in ids) == text.encode():
      return ids
    # Some tokenizers put a space before a text; here it goes on.
    return self._encode(_BEFORE + text)[len(self._encode(_BEFORE)) :]


def _text(grammar: np.ndarray) -> bytes:
  """A grammar u8[G] without the zeros that fill it up."""
  return grammar.tobytes().rstrip(b"\0")


class Matchers:
  """Grammars over the tokens of one model. `masks` and `forced` are pure functions.

  What is kept between calls, matchers that have read a text, saves time only.

  Args:
    tokenizer: the model's.
    vocab_size: V, the model's, which may be larger than the tokenizer's; no grammar allows the ids
      beyond that.
    stop: ids that end a text, one at least.

  Raises:
    ValueError: llguidance is not installed, or there is no id that ends a text.
  """

  def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop: Sequence[int]):
    try:
      import llguidance.numpy
    except ModuleNotFoundError as error:
      if error.name != "llguidance":
        raise
      raise ValueError(
        "json_schema, grammar and forced need llguidance: pip install specjax[grammar]."
      ) from None
    if not stop:
      raise ValueError("a grammar needs a token that ends the text: the model has none; give stop.")
    self._engine: Any = llguidance
    spelled = _Spelled(tokenizer, vocab_size, stop[0])
    self._said = closing.tokens_of(spelled.tokens)
    self._tokens = llguidance.LLTokenizer(
      llguidance.TokenizerWrapper(spelled), n_vocab=vocab_size, eos_token=stop[0]
    )
    self.words = -(-vocab_size // 32)
    self._stop = tuple(dict.fromkeys(int(i) for i in stop))
    bits = np.zeros(32 * self.words, np.uint8)
    bits[list(self._stop)] = 1
    self._ending = np.packbits(bits, bitorder="little").view(np.int32)
    self._lock = threading.Lock()  # several loops may run at once
    self._kept: dict[tuple[bytes, bytes], Any] = {}
    self._words = Vocabulary(tokenizer.spoken_bytes(vocab_size), self._stop)
    self._parsed = functools.lru_cache(GRAMMARS)(self._parse)
    self._known = functools.lru_cache(GRAMMARS)(self._distances)

  def _parse(self, grammar: bytes) -> Any:
    return self._engine.LLMatcher(self._tokens, grammar.decode(), log_level=0)

  def _distances(self, grammar: bytes) -> Distances | None:
    """How far texts are from their ends; None where `json_texts` does not know the grammar."""
    (one,) = json.loads(grammar)["grammars"]
    languages = Languages()
    try:
      return Distances(languages, texts_of(one["json_schema"], languages), self._words)
    except (KeyError, Unknown):  # a Lark grammar, or a schema that is not known
      return None

  def too_long(self, grammar: Any, budget: int) -> int | None:
    """The tokens of a shortest text without its stop token, if it is known not to fit."""
    with self._lock:
      known = self._known(_text(np.asarray(grammar)))
      if known is None or known.within(known.start, budget + 1):
        return None
      if (least := known.distance(known.start)) == INFINITE:
        raise ValueError("json_schema: no text of this form can be said in tokens.")
      return int(least) - 1

  def closing(self, grammar: Any, text: Sequence[int], budget: int) -> int | None:
    """The first place of a text at which its budget forbade what the grammar allows, if one did."""
    rules, said = _text(np.asarray(grammar)), np.asarray(text, np.int32)
    n = len(said)
    chain = [np.array([0, *said]), np.arange(-1, n).clip(0), np.ones(n + 1, bool)]
    rows = np.full((2, n + 1, self.words), -1, np.int32)
    with self._lock:
      for row, left in zip(rows, (budget, INT32), strict=True):
        self._walk(rules, said[:0], left, chain, row)
    return next(iter(np.flatnonzero((rows[0] != rows[1]).any(1)[:n]).tolist()), None)

  def check(self, grammar: str) -> None:
    """Raises ValueError, in the engine's words, for a grammar that it refuses."""
    wrong, said = self._engine.LLMatcher.validate_grammar_with_warnings(grammar, self._tokens)
    if wrong:
      raise ValueError(" ".join(" ".join(said).split()).rstrip(". "))
    row = np.zeros((1, self.words), np.int32)
    first = self._parse(grammar.encode())
    self._allow(first, row[0])
    if not first.is_accepting() and (row[0] == self._ending).all():
      raise ValueError("no text of this form can be said in tokens")

  def _allow(self, matcher: Any, row: np.ndarray) -> None:
    """Sets the bits of row i32[W] to the tokens that may follow.

    A stop token may where the text is complete, and where nothing else may: at a dead end of the
    vocabulary, or past the limits of the engine.
    """
    self._engine.numpy.fill_next_token_bitmask(matcher, row[None])
    row &= ~self._ending
    if matcher.is_accepting() or not row.any():
      row |= self._ending

  def _allow_end(
    self, known: Distances | None, matcher: Any, said: Sequence[int], left: int, row: np.ndarray
  ) -> None:
    """Leaves in row i32[W] what an end fits behind, into the `left` tokens after what was said."""
    if known is not None and known.free(left):
      return
    state = NOTHING if known is None else functools.reduce(known.read, said, known.start)
    if known is None or state == NOTHING:
      self._allow_short_end(matcher, said, left, row)
      return
    allowed = self._bits(known.tokens_after(state) != NOTHING)
    if (allowed != row & ~self._ending).any():  # it is not what the engine reads
      self._allow_short_end(matcher, said, left, row)
    elif (fitting := known.fitting(state, left)) is not None:
      row &= self._bits(fitting) | self._ending

  def _bits(self, tokens: np.ndarray) -> np.ndarray:
    """i32[W] of bool[V]."""
    padded = np.pad(tokens, (0, 32 * self.words - len(tokens)))
    return np.packbits(padded, bitorder="little").view(np.int32)

  def _allow_short_end(self, matcher: Any, said: Sequence[int], left: int, row: np.ndarray) -> None:
    """`_allow_end` of a grammar whose distances are not known, see `closing`."""
    bits = np.zeros_like(row)

    def allows(matcher: Any) -> Callable[[int], bool]:
      self._engine.numpy.fill_next_token_bitmask(matcher, bits[None])
      return lambda token: bool(bits[token >> 5] >> (token & 31) & 1)

    ids = closing.due(matcher, said, left, self._said, allows)
    if ids is not None:
      row[:] = 0 if ids else self._ending
      row |= self._bits(np.isin(np.arange(32 * self.words), ids[:1]))

  def _ended(self, text: np.ndarray) -> bool:
    return bool(np.isin(text, self._stop).any())

  def _read(self, grammar: bytes, text: np.ndarray) -> Any:
    """A matcher that has read the text i32[n], which is no longer kept; None if it cannot be."""
    written = text.tobytes()
    seen = max(
      (key for key in self._kept if key[0] == grammar and written.startswith(key[1])),
      key=lambda key: len(key[1]),
      default=None,
    )
    matcher = self._parsed(grammar).deep_copy() if seen is None else self._kept.pop(seen)
    rest = text[0 if seen is None else len(seen[1]) // text.itemsize :].tolist()
    return matcher if matcher.try_consume_tokens(rest) == len(rest) else None

  def _keep(self, grammar: bytes, text: np.ndarray, matcher: Any) -> None:
    if not matcher.is_error():
      self._kept[grammar, text.tobytes()] = matcher
    if len(self._kept) > KEPT:
      del self._kept[next(iter(self._kept))]  # the one that was read longest ago

  def _walk(
    self,
    grammar: bytes,
    text: np.ndarray,
    budget: int,
    draft: Sequence[np.ndarray],
    out: np.ndarray,
  ) -> None:
    """Fills out i32[N, W] for the nodes that can be reached of one row's draft; see `masks`.

    `budget` tokens may be said after the text.
    """
    tokens, parent, valid = (x.tolist() for x in draft)
    if self._ended(text):
      return
    if (matcher := self._read(grammar, text)) is None:
      out[0] = self._ending
      return
    known, said = self._known(grammar), text.tolist()
    if known is not None and not known.within(known.start, budget + len(said)):
      # The shortest texts of a budget that is one too short for the stop token do without it.
      least = known.distance(known.start)
      budget = max(budget, int(least) - len(said)) if least < INFINITE else budget
    self._allow(matcher, out[0])
    self._allow_end(known, matcher, said, budget, out[0])
    children: list[list[int]] = [[] for _ in tokens]
    path: list[list[int]] = [[] for _ in tokens]
    for node in range(len(tokens) - 1, 0, -1):
      if valid[node]:
        children[parent[node]].append(node)
    left, depth, read = list(children[0]), [0] * len(tokens), 0
    while left:  # depth first, so that little is read twice
      node = left.pop()
      above, token = parent[node], tokens[node]
      matcher.rollback(read - depth[above])
      read = depth[above]
      allowed = out[above, token >> 5] >> (token & 31) & 1
      if not allowed or token in self._stop:
        continue
      if not matcher.try_consume_tokens([token]):  # past the limits of the engine
        out[node] = self._ending
        continue
      read = depth[node] = depth[above] + 1
      self._allow(matcher, out[node])
      path[node] = [*path[above], token]
      self._allow_end(known, matcher, [*said, *path[node]], budget - read, out[node])
      left += children[node]
    matcher.rollback(read)
    self._keep(grammar, text, matcher)

  def masks(
    self, grammar: Any, text: Any, length: Any, left: Any, tokens: Any, parent: Any, valid: Any
  ) -> np.ndarray:
    """u32[B, N, W]: bit t of a node says that token t may follow it.

    All bits are set where nothing follows: at and below a stop token, below a token that is
    forbidden or not valid, and for a text that has ended. Those of stop tokens alone are set where
    the engine cannot read the text. A row whose grammar is zeros is allowed everything. A token is
    forbidden if no end fits into what is left after it, see `distances`; where these do not know
    the grammar, a text that has few tokens left has to take a short end, see `closing`.

    Args:
      grammar: u8[B, G], of each row; see `schemas`.
      text: i32[B, S], what has been said, of which length i32[B] tokens count.
      left: i32[B], the tokens that may be said after it.
      tokens, parent, valid: of a draft, see `base.Draft`.
    """
    said, n, rest, *draft = (np.asarray(x) for x in (text, length, left, tokens, parent, valid))
    rules = [_text(row) for row in np.asarray(grammar)]
    out = np.full((*draft[0].shape, self.words), -1, np.int32)
    done: dict[tuple[bytes, ...], int] = {}
    with self._lock:
      for b in range(len(said)):
        if not rules[b]:
          continue
        own = said[b, : n[b]]
        key = (rules[b], own.tobytes(), *(x[b].tobytes() for x in (rest, *draft)))
        if key in done:  # equal rows, as at the beginning of equal prompts
          out[b] = out[done[key]]
        else:
          done[key] = b
          self._walk(rules[b], own, int(rest[b]), [x[b] for x in draft], out[b])
    return out.view(np.uint32)

  def forced(self, grammar: Any, text: Any, length: Any, depth: int) -> np.ndarray:
    """i32[B, D]: the tokens with which every text of the grammar goes on, -1 behind the last.

    Where bytes are forced, but their last ones may be a part of a longer token, these are left
    out. Where nothing but the end is left, it is forced.

    Args:
      grammar, text, length: as in `masks`.
      depth: D.
    """
    said, n, rules = np.asarray(text), np.asarray(length), _text(np.asarray(grammar))
    out = np.full((len(said), depth), -1, np.int32)
    with self._lock:
      for b in range(len(said)):
        own = said[b, : n[b]]
        if self._ended(own) or (matcher := self._read(rules, own)) is None:
          continue
        ids = matcher.compute_ff_tokens()[:depth]
        ids = ids[: matcher.try_consume_tokens(ids)]
        ending = [self._stop[0]] if matcher.is_stopped() else []
        matcher.rollback(len(ids))
        self._keep(rules, own, matcher)
        chain = (ids + ending)[:depth]
        out[b, : len(chain)] = chain
    return out


@functools.lru_cache(16)
def matchers(tokenizer: Tokenizer, vocab_size: int, stop: tuple[int, ...]) -> Matchers:
  """The one `Matchers` of a model, so that equal methods are compiled once."""
  return Matchers(tokenizer, vocab_size, stop)
