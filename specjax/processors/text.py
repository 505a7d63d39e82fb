"""Regular expressions and stop words, which consist of characters, become automata over tokens.

They are built once, on the host, for a tokenizer. Letters: V vocabulary, Q states.
"""

from collections.abc import Sequence
from typing import Protocol

import interegular
import jax.numpy as jnp
import numpy as np

from specjax.processors.automaton import Automaton, Measured


class Tokenizer(Protocol):
  """The part of `data.tokenizer.Tokenizer` that is needed."""

  @property
  def joint(self) -> bytes: ...
  def spoken_bytes(self, vocab_size: int) -> Sequence[bytes]: ...


def _run(table: np.ndarray, words: Sequence[Sequence[int] | None]) -> np.ndarray:
  """i32[Q, V]: the state after each of V words of symbols, from each state; -1 for none.

  `table` i32[Q, symbols] is the state after a symbol, -1 for none. An empty word, or None for a
  token that is no text, leads to no state.
  """
  longest = max((len(w) for w in words if w is not None), default=0)
  padded = np.full((len(words), longest), -1)
  for row, word in zip(padded, words, strict=True):
    row[: len(word or ())] = word or ()
  states = np.broadcast_to(np.arange(len(table), dtype=np.int32)[:, None], (len(table), len(words)))
  for symbol in padded.T:
    after = np.where(states < 0, -1, table[states, symbol])
    states = np.where(symbol < 0, states, after)
  nothing = np.array([not w for w in words])
  return np.where(nothing, -1, states).astype(np.int32)


def of_stop_words(words: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> Automaton:
  """The automaton, for `stop_text`, that is final once one of `words` has been said.

  Words are compared byte by byte, so they may end, or begin, in the middle of a token. An empty
  word raises ValueError.
  """
  if not words or not all(words):
    raise ValueError(f"`stop_words` must be words of one character or more, got {list(words)}.")
  wanted = [w.encode() for w in words]
  prefixes = sorted({w[:i] for w in wanted for i in range(len(w))}, key=len)
  number = {prefix: i for i, prefix in enumerate(prefixes)}
  said = len(prefixes)  # the only final state; nothing leads out of it
  table = np.full((said + 1, 256), said, np.int32)
  for prefix, state in number.items():
    for byte in range(256):
      text = prefix + bytes([byte])
      if not text.endswith(tuple(wanted)):
        table[state, byte] = next(
          number[text[i:]] for i in range(len(text) + 1) if text[i:] in number
        )
  spoken = [tokenizer.joint + b if b else b for b in tokenizer.spoken_bytes(vocab_size)]
  after = _run(table, [list(b) for b in spoken])
  silent = np.array([not b for b in spoken])
  after = np.where(silent, np.arange(said + 1)[:, None], after)
  return Automaton(jnp.asarray(after), jnp.arange(said + 1) == said)


def of_regex(pattern: str, tokenizer: Tokenizer, vocab_size: int, stop: Sequence[int]) -> Automaton:
  """The automaton, for `constraint`, of texts that match a regular expression from end to end.

  The pattern is one of `re` without back-references. Where the text matches it, the stop tokens are
  allowed too; behind them is the last state. Tokens that are a part of a character are forbidden,
  for what they say depends on the next one, and so are ids beyond the tokenizer's. It raises
  ValueError where the pattern is no regular expression, or none of its texts can be written in
  tokens.
  """
  try:
    machine = interegular.parse_pattern(pattern).to_fsm().reduce()
  except Exception as error:  # the library raises several unrelated classes
    raise ValueError(f"regex={pattern!r}: no regular expression: {error}.") from error
  states = [machine.initial, *sorted(machine.states - {machine.initial})]
  number = {state: i for i, state in enumerate(states)}
  symbols = sorted(machine.alphabet.by_transition)
  column = {symbol: i for i, symbol in enumerate(symbols)}
  table = np.full((len(states), len(symbols)), -1, np.int32)
  for state, moves in machine.map.items():
    for symbol, after in moves.items():
      table[number[state], column[symbol]] = number[after]

  def symbols_of(spoken: bytes) -> list[int] | None:
    try:
      return [column[machine.alphabet[c]] for c in spoken.decode()]
    except UnicodeDecodeError:
      return None

  following = _run(table, [symbols_of(b) for b in tokenizer.spoken_bytes(vocab_size)])
  matching = np.array([state in machine.finals for state in states])
  # One more state, behind the stop tokens, in which only they go on.
  ended = len(states)
  following = np.pad(following, ((0, 1), (0, 0)), constant_values=-1)
  following[:, list(stop)] = np.where([*matching, True], ended, -1)[:, None]
  # Without stop tokens a text ends where nothing may follow.
  distance = distances(following, [ended] if len(stop) else np.flatnonzero(matching))
  following = np.where(distance[following] < np.inf, following, -1)
  if not np.isfinite(distance[0]):
    raise ValueError(f"regex={pattern!r}: no text of this form can be said in tokens.")
  final = np.array([*matching, False]) & (following < 0).all(1)
  return Automaton(jnp.asarray(following), jnp.asarray(final))


def measured(automaton: Automaton) -> Measured:
  """An automaton of `of_regex` with its distances.

  A text without a stop token ends where nothing may follow, or else with its budget.
  """
  following, final = np.asarray(automaton.following), np.asarray(automaton.final)
  stops = (following[-1] >= 0).any()
  distance = distances(following, [len(following) - 1] if stops else np.flatnonzero(final))
  # Of no use are states that cannot be reached, or all where no text has to end.
  distance = np.where(np.isfinite(distance), distance, 0)
  return Measured(*automaton, jnp.asarray(distance, jnp.int32))


class RegexForm:
  """What an automaton of `of_regex` allows; a `names.build.processors.Form`."""

  def __init__(self, automaton: Measured):
    self._following, distance = np.asarray(automaton.following), np.asarray(automaton.distance)
    self._least = int(distance[0])
    self._stops = int((self._following[-1] >= 0).any())  # the last state is behind a stop token
    # By state, the tokens to the end of a text by way of the token that takes it farthest from it.
    self._most = np.where(self._following >= 0, 1 + distance[self._following], 0).max(1)

  def too_long(self, budget: int) -> int | None:
    """The tokens of a shortest text without its stop token, if they are more than the budget."""
    shortest = self._least - self._stops
    return shortest if shortest > budget else None

  def closing(self, tokens: Sequence[int], budget: int) -> int | None:
    """The first place at which the budget forbade a token that matches, if it did."""
    state, left = 0, max(budget, self._least)
    for i, token in enumerate(tokens):
      if self._most[state] > left - i:
        return i
      state = self._following[state, token]
    return None


def distances(following: np.ndarray, ends: Sequence[int] | np.ndarray) -> np.ndarray:
  """f64[Q]: the fewest steps from each state to one of `ends`, infinite where there are none.

  Args:
    following: i32[Q, V], the state after each token; -1 for none.
  """
  before: list[list[int]] = [[] for _ in following]
  for state, row in enumerate(following):
    for after in np.unique(row[row >= 0]).tolist():
      before[after].append(state)
  found = np.full(len(following), np.inf)
  level, steps = [int(i) for i in ends], 0
  while level:
    found[level] = steps
    behind = (earlier for state in level for earlier in before[state])
    level = [state for state in dict.fromkeys(behind) if found[state] == np.inf]
    steps += 1
  return found
