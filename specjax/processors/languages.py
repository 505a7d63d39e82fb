"""Languages of bytes, and what is left of them after a byte.

A language is a number, equal for equal expressions, and so a state of an automaton that is made as
it is walked: what is left after a byte is a language again, its derivative (Brzozowski 1964). With
names for languages that hold themselves, the automaton may be infinite.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import interegular

NOTHING, EMPTY = 0, 1  # no text, and the empty text alone
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
            "\t": "\\t"}  # fmt: skip
_CONTROL = [chr(i) for i in (*range(32), 127)]
_FOREIGN = "\u00e9"  # stands for the characters beyond ASCII


class Languages:
  """Makes languages; those of one object go together."""

  def __init__(self) -> None:
    self._keys: list[tuple[Any, ...]] = [("nothing",), ("bytes", b"")]
    self._numbers = {key: i for i, key in enumerate(self._keys)}
    self._rules: dict[Any, Callable[[], int]] = {}
    self._machines: list[Any] = []
    self._to_end: dict[int, dict[Any, int]] = {}
    self._after: dict[tuple[int, int], int] = {}

  def _number(self, *key: Any) -> int:
    if key not in self._numbers:
      self._numbers[key] = len(self._keys)
      self._keys.append(key)
    return self._numbers[key]

  def key(self, language: int) -> tuple[Any, ...]:
    """The kind of a language, and what it is made of."""
    return self._keys[language]

  def rule(self, name: Any) -> int:
    """What a name stands for."""
    return self._rules[name]()

  def text(self, text: bytes) -> int:
    """One text."""
    return self._number("bytes", text)

  def one_of(self, chars: Iterable[int]) -> int:
    """One byte of these."""
    return self._number("set", frozenset(chars))

  def joined(self, *parts: int) -> int:
    """A text of each part, in order."""
    first, *rest = parts
    if not rest:
      return first
    behind = self.joined(*rest)
    if NOTHING in (first, behind):
      return NOTHING
    if first == EMPTY or behind == EMPTY:
      return max(first, behind)
    key = self._keys[first]
    if key[0] == "joined":
      return self.joined(key[1], self.joined(key[2], behind))
    return self._number("joined", first, behind)

  def either(self, *parts: int) -> int:
    """A text of any part."""
    each = set[int]()
    for part in parts:
      key = self._keys[part]
      each |= set(key[1]) if key[0] == "either" else {part}
    each.discard(NOTHING)
    if len(each) < 2:
      return each.pop() if each else NOTHING
    return self._number("either", tuple(sorted(each)))

  def repeated(self, part: int, least: int = 0, most: int | None = None) -> int:
    """`least` texts of a part that is never empty, or more, up to `most`."""
    return EMPTY if most == 0 else self._number("repeated", part, least, most)

  def both(self, one: int, other: int) -> int:
    """The texts that are in both."""
    return NOTHING if NOTHING in (one, other) else self._number("both", one, other)

  def without(self, part: int, texts: frozenset[bytes]) -> int:
    """A part but for some texts."""
    if part == EMPTY and b"" in texts:
      return NOTHING
    return self._number("without", part, texts) if texts and part != NOTHING else part

  def named(self, name: Any, make: Callable[[], int]) -> int:
    """What `make` makes once it is needed; it holds no empty text, and may hold itself."""
    self._rules.setdefault(name, functools.cache(make))
    return self._number("named", name)

  def matching(self, pattern: str, quoted: bool = False) -> int:
    """The texts of a regular expression, or their JSON strings from behind the first quote on.

    Raises:
      ValueError: it is none, or names characters beyond ASCII.
    """
    try:
      machine = interegular.parse_pattern(pattern).to_fsm().reduce()
    except Exception as error:  # the library raises several unrelated classes
      raise ValueError(f"no regular expression: {error}") from error
    if any(isinstance(c, str) and not c.isascii() for c in machine.alphabet):
      raise ValueError("characters beyond ASCII")
    self._machines.append(machine)
    return self._at(len(self._machines) - 1, machine.initial, quoted)

  def steps(self, machine: int) -> dict[Any, int]:
    """Of the states of a machine from which a text can end, the fewest characters to its end."""
    if machine not in self._to_end:
      found, moves = dict.fromkeys(self._machines[machine].finals, 0), self._machines[machine].map
      while True:
        more = {
          state: 1 + min(found[after] for after in each.values() if after in found)
          for state, each in moves.items()
          if state not in found and not found.keys().isdisjoint(each.values())
        }
        if not more:
          break
        found |= more
      self._to_end[machine] = found
    return self._to_end[machine]

  def _at(self, machine: int, state: Any, quoted: bool) -> int:
    live = state in self.steps(machine)
    return self._number("machine", machine, state, quoted) if live else NOTHING

  def _spoken(self, machine: int, state: Any, char: str, quoted: bool) -> int:
    found = self._machines[machine]
    return self._at(machine, found.map.get(state, {}).get(found.alphabet[char]), quoted)

  def characters(self, least: int = 0, most: int | None = None) -> int:
    """JSON strings of `least` characters or more, from behind the first quote on."""
    return self.joined(self.repeated(self.character, least, most), self.text(b'"'))

  def keys(self) -> int:
    """JSON strings, from behind the first quote on, with all characters as \\uxxxx too."""
    digit = self.one_of(b"0123456789abcdefABCDEF")
    low = self.joined(self.text(b"\\u"), self.one_of(b"dD"), self.one_of(b"cdefCDEF"), digit, digit)
    pairs = self.joined(self.one_of(b"dD"), self.one_of(b"89abAB"), digit, digit, low)
    others = self.joined(self.one_of(b"dD"), self.one_of(b"01234567"), digit, digit)
    plain = self.joined(self.one_of(b"0123456789abcefABCEF"), digit, digit, digit)
    code = self.joined(self.text(b"\\u"), self.either(pairs, others, plain))
    part = self.either(self.character, code)
    return self.joined(self.repeated(part), self.text(b'"'))

  @functools.cached_property
  def _foreign(self) -> dict[int, int]:
    """By their first byte, the rest of the characters beyond ASCII in UTF-8."""
    tail = self.one_of(range(0x80, 0xC0))
    rest = {
      first: [range(0x80, 0xC0)] * n
      for n, firsts in (
        (1, range(0xC2, 0xE0)),
        (2, range(0xE0, 0xF0)),
        (3, range(0xF0, 0xF5)),
      )
      for first in firsts
    }
    for first, own in ((0xE0, range(0xA0, 0xC0)), (0xED, range(0x80, 0xA0)),
                       (0xF0, range(0x90, 0xC0)), (0xF4, range(0x80, 0x90))):  # fmt: skip
      rest[first][0] = own
    return {
      first: self.joined(self.one_of(each[0]), *[tail] * (len(each) - 1))
      for first, each in rest.items()
    }

  def _escapes(self, goes_on: Callable[[str], int]) -> int:
    """What may follow a backslash in a string; `goes_on` says what follows a character."""
    short = [self.joined(self.text(_ESCAPES[c][1:].encode()), goes_on(c)) for c in _ESCAPES]
    long = [self.joined(*map(self._digit, f"u{ord(c):04x}"), goes_on(c)) for c in _CONTROL]
    return self.either(*short, *long)

  def _digit(self, c: str) -> int:
    return self.one_of({ord(c), ord(c.upper())} if c in "abcdef" else {ord(c)})

  @functools.cached_property
  def character(self) -> int:
    """A character of a JSON string, as it is or escaped."""
    plain = self.one_of(i for i in range(32, 127) if chr(i) not in '"\\')
    firsts: dict[int, list[int]] = {}
    for first, rest in self._foreign.items():
      firsts.setdefault(rest, []).append(first)
    foreign = [self.joined(self.one_of(each), rest) for rest, each in firsts.items()]
    low = self.joined(self.one_of(b"01"), self.one_of(b"0123456789abcdefABCDEF"))
    code = self.joined(self.text(b"u00"), self.either(low, self.joined(*map(self._digit, "7f"))))
    escaped = self.either(self.one_of(ord(x[1]) for x in _ESCAPES.values()), code)
    return self.either(plain, self.joined(self.text(b"\\"), escaped), *foreign)

  def ends(self, language: int) -> bool:
    """Whether it holds the empty text."""
    kind, *key = self._keys[language]
    match kind:
      case "bytes":
        return not key[0]
      case "joined" | "both":
        return self.ends(key[0]) and self.ends(key[1])
      case "either":
        return any(map(self.ends, key[0]))
      case "repeated":
        return key[1] == 0
      case "without":
        return self.ends(key[0]) and b"" not in key[1]
      case "deeper":
        return self.ends(key[0])
      case "machine":
        return not key[2] and key[1] in self._machines[key[0]].finals
      case _:
        return False

  def after(self, language: int, byte: int) -> int:
    """What may follow a byte."""
    found = self._after.get((language, byte))
    if found is None:
      found = self._after[language, byte] = self._derived(language, byte)
    return found

  def _derived(self, language: int, byte: int) -> int:
    kind, *key = self._keys[language]
    match kind:
      case "bytes":
        return self.text(key[0][1:]) if key[0][:1] == bytes([byte]) else NOTHING
      case "set":
        return EMPTY if byte in key[0] else NOTHING
      case "joined":
        first = self.joined(self.after(key[0], byte), key[1])
        return self.either(first, self.after(key[1], byte)) if self.ends(key[0]) else first
      case "either":
        return self.either(*(self.after(part, byte) for part in key[0]))
      case "repeated":
        part, least, most = key
        rest = self.repeated(part, max(least - 1, 0), None if most is None else most - 1)
        return self.joined(self.after(part, byte), rest)
      case "both":
        return self.both(self.after(key[0], byte), self.after(key[1], byte))
      case "without":
        texts = frozenset(text[1:] for text in key[1] if text[:1] == bytes([byte]))
        return self.without(self.after(key[0], byte), texts)
      case "named":
        return self._deeper(self.after(self._rules[key[0]](), byte))
      case "deeper":
        return self._deeper(self.after(key[0], byte))
      case "machine":
        return self._of_machine(byte, *key)
      case _:
        return NOTHING

  def _deeper(self, language: int) -> int:
    return language if language in (NOTHING, EMPTY) else self._number("deeper", language)

  def _of_machine(self, byte: int, machine: int, state: Any, quoted: bool) -> int:
    goes_on = functools.partial(self._spoken, machine, state, quoted=quoted)
    if not quoted:
      return goes_on(chr(byte)) if byte < 128 else NOTHING
    if byte == ord('"'):
      return EMPTY if state in self._machines[machine].finals else NOTHING
    if byte == ord("\\"):
      return self._escapes(goes_on)
    if byte < 128:
      return goes_on(chr(byte)) if 32 <= byte < 127 else NOTHING
    return self.joined(self._foreign.get(byte, NOTHING), goes_on(_FOREIGN))
