"""How many tokens it takes to end a text of a language, and which tokens leave room for that.

A token joins what may stand in several parts of a text, so that tokens are counted by a walk
through the states behind them: a breadth-first search from the ends, over all states that can be
reached. Where a language holds itself, as that of a JSON value of any form does, there is no end of
states. Then an end is looked for that is never within more of such languages than `DEEPER` beyond
the fewest that it was within before.

Letters: V vocabulary, Q states.
"""

import functools
from collections.abc import Sequence

import numpy as np

from specjax.processors.languages import NOTHING, Languages
from specjax.processors.measures import INFINITE, Measures

DEEPER = 1


class Vocabulary:
  """The bytes of tokens, those of the longest first.

  Args:
    spoken: the bytes of every token.
    silent: ids that say nothing, such as stop tokens.
  """

  def __init__(self, spoken: Sequence[bytes], silent: Sequence[int]):
    mute = set(silent)
    words = [b"" if i in mute else b for i, b in enumerate(spoken)]
    self.spoken, self.order = words, sorted(range(len(words)), key=lambda i: -len(words[i]))
    self.lengths = np.array([len(words[i]) for i in self.order])
    longest = int(self.lengths.max(initial=0))
    # Byte i of the tokens that have one.
    self.columns = [
      np.array([words[token][i] for token in self.order[: int((self.lengths > i).sum())]])
      for i in range(longest)
    ]
    # Whether a text of n bytes takes n tokens at most.
    self.single = {b for b in words if len(b) == 1} >= {bytes([i]) for i in range(32, 127)}


class Distances:
  """Of one language, over the tokens of one vocabulary.

  Args:
    languages, start: the language.
  """

  def __init__(self, languages: Languages, start: int, words: Vocabulary):
    self.languages, self.start, self._words = languages, start, words
    self._measures = Measures(languages)
    self._table = np.zeros((0, 256), np.int32)  # what is left after a byte; -1 is not known yet
    self._after: dict[int, np.ndarray] = {}
    self._found: dict[int, float] = {}
    self.tokens_after = functools.lru_cache(256)(self._tokens_after)

  def read(self, state: int, token: int) -> int:
    """The state after a token."""
    for byte in self._words.spoken[token]:
      state = self.languages.after(state, byte)
    return state if self._words.spoken[token] else NOTHING

  def _tokens_after(self, state: int) -> np.ndarray:
    """i32[V], the state after each token; 0 where it is forbidden."""
    found = np.full(len(self._words.order), state, np.int32)
    for column in self._words.columns:
      before = found[: len(column)]
      found[: len(column)] = self._step(before, column)
    found[self._words.lengths == 0] = NOTHING
    after = np.empty_like(found)
    after[self._words.order] = found
    return after

  def _step(self, states: np.ndarray, column: np.ndarray) -> np.ndarray:
    """The states i32[n] after bytes u8[n]."""
    if (most := int(states.max(initial=0))) >= len(self._table):
      more = np.full((2 * most + 16 - len(self._table), 256), -1, np.int32)
      self._table = np.concatenate([self._table, more])
      self._table[NOTHING] = NOTHING
    after = self._table[states, column]
    if (new := after < 0).any():
      for pair in np.unique(states[new].astype(np.int64) * 256 + column[new]).tolist():
        self._table[divmod(pair, 256)] = self.languages.after(*divmod(pair, 256))
      after = self._table[states, column]
    return after

  def _next(self, state: int) -> np.ndarray:
    """The states behind a state, each once."""
    if state not in self._after:
      self._after[state] = np.flatnonzero(np.bincount(self._tokens_after(state))[1:]) + 1
    return self._after[state]

  def distance(self, state: int) -> float:
    """The fewest tokens to the end of a text, its stop token included."""
    if state not in self._found:
      self._search(state)
    return self._found[state]

  def _search(self, state: int) -> None:
    depth_of = self._measures.depth
    root = state, depth_of(state) + DEEPER
    before: dict[tuple[int, int], list[tuple[int, int]]] = {root: []}
    waiting = [root]
    while waiting:
      one = waiting.pop()
      for after in self._next(one[0]).tolist():
        if (depth := depth_of(after)) > one[1]:
          continue
        node = after, min(one[1], depth + DEEPER)
        if node not in before:
          before[node] = []
          waiting.append(node)
        before[node].append(one)
    found = dict.fromkeys(before, INFINITE)
    level, steps = [one for one in before if self.languages.ends(one[0])], 1
    while level:
      found |= dict.fromkeys(level, steps)
      behind = (one for after in level for one in before[after])
      level = [one for one in dict.fromkeys(behind) if found[one] == INFINITE]
      steps += 1
    # Other states, if they are within any, would have been searched further than from here.
    own = [root] if any(depth_of(one) for one, _ in before) else before
    self._found |= {one[0]: found[one] for one in own}

  def within(self, state: int, left: int) -> bool:
    """Whether a text can end in so many tokens, its stop token included."""
    near = self._words.single and self._measures.shortest(state) < left
    return near or self.distance(state) <= left

  def free(self, left: int) -> bool:
    """Whether an end surely fits into so many tokens behind any token of any text."""
    return self._words.single and self._measures.longest(self.start) < left - 1

  def fitting(self, state: int, left: int) -> np.ndarray | None:
    """bool[V], the tokens after which an end fits into the `left` tokens; None where all do."""
    after = self.tokens_after(state)
    states = self._next(state).tolist()
    far = [one for one in states if not self.within(one, left - 1)]
    return (after != NOTHING) & ~np.isin(after, far) if far else None
