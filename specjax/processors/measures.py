"""How long the texts of a language are, and how deep it lies within languages that have names."""

from typing import Any

from specjax.processors.languages import Languages

INFINITE = float("inf")


class Measures:
  """Of the languages of one object."""

  def __init__(self, languages: Languages):
    self._languages = languages
    self._depth: dict[int, int] = {}
    self._shortest: dict[int, float] = {}
    self._longest: dict[int, float] = {}

  def depth(self, language: int) -> int:
    """How many named languages a text is within, or has to begin."""
    if language not in self._depth:
      self._depth[language] = self._depth_of(*self._languages.key(language))
    return self._depth[language]

  def _depth_of(self, kind: str, *key: Any) -> int:
    match kind:
      case "deeper":
        return 1 + self.depth(key[0])
      case "joined" | "both":
        return max(self.depth(key[0]), self.depth(key[1]))
      case "either":
        return max(map(self.depth, key[0]))
      case "without":
        return self.depth(key[0])
      case "named":
        return 1
      case _:
        return 0

  def shortest(self, language: int) -> float:
    """No fewer bytes than the shortest text has; infinite where that takes a walk to know."""
    if language not in self._shortest:
      known = set(self._shortest)
      if named := self._languages.key(language)[0] == "named":
        self._shortest[language] = INFINITE  # within itself, where it is not shortest
      found = self._shortest_of(*self._languages.key(language))
      if named:  # what was found within it may be too long
        self._shortest = {one: self._shortest[one] for one in known}
      self._shortest[language] = found
    return self._shortest[language]

  def _shortest_of(self, kind: str, *key: Any) -> float:
    match kind:
      case "bytes":
        return len(key[0])
      case "set":
        return 1
      case "joined":
        return self.shortest(key[0]) + self.shortest(key[1])
      case "either":
        return min(map(self.shortest, key[0]))
      case "repeated":
        return key[1] * self.shortest(key[0]) if key[1] else 0
      case "named":
        return self.shortest(self._languages.rule(key[0]))
      case "deeper":
        return self.shortest(key[0])
      case "machine":
        # A character takes six bytes at most, as in \\u001f.
        machine, state, quoted = key
        steps = self._languages.steps(machine)[state]
        return 6 * steps + 1 if quoted else steps
      case _:
        return INFINITE

  def longest(self, language: int) -> float:
    """No fewer than `shortest` of all that may be left behind any bytes of a text."""
    if language not in self._longest:
      self._longest[language] = INFINITE
      self._longest[language] = self._longest_of(*self._languages.key(language))
    return self._longest[language]

  def _longest_of(self, kind: str, *key: Any) -> float:
    match kind:
      case "bytes":
        return len(key[0])
      case "set":
        return 1
      case "joined":
        return max(self.longest(key[0]) + self.shortest(key[1]), self.longest(key[1]))
      case "either":
        return max(map(self.longest, key[0]))
      case "repeated":
        rest = (key[1] - 1) * self.shortest(key[0]) if key[1] > 1 else 0
        return self.longest(key[0]) + rest
      case "named":
        return self.longest(self._languages.rule(key[0]))
      case "deeper":
        return self.longest(key[0])
      case "machine":
        most = max(self._languages.steps(key[0]).values())
        return 6 * most + 1 if key[2] else most
      case _:
        return INFINITE
