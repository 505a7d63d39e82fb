"""How a text ends soon of a grammar whose `distances` are not known, such as one of Lark.

A grammar alone lets a model go on in a list or a number until its budget cuts the text. Near the
end of the budget only the tokens of one short end are allowed. Which these are follows from the
text and from what is left of its budget, never from the draft.
"""

import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ZONE = 64  # tokens before the end of the budget in which an end is looked for
MORE = 16  # tokens that an item of a list may take
# Z before z and 1 before 0: readers of times and dates are stricter than grammars.
_LETTERS, _DIGITS = string.ascii_uppercase + string.ascii_lowercase, "1234567890"
_REST = " " + string.punctuation
# What is tried first in a string and elsewhere. The first order never ends what may have any number
# of letters before an @, or of digits before a Z; the others do.
_IN_STRING = (
  '"' + _LETTERS + _DIGITS + _REST,
  '"@:Z' + _LETTERS + _DIGITS + _REST,
  '"@:' + _DIGITS + _LETTERS + _REST,
)
_ELSEWHERE = "}],:" + _DIGITS + '"' + _LETTERS + _REST


# Of a matcher: whether a token may follow.
Allows = Callable[[Any], Callable[[int], bool]]


class Tokens(NamedTuple):
  """What tokens say: the bytes of every one, and those of one character of ASCII."""

  spoken: Sequence[bytes]
  letters: dict[str, int]


def tokens_of(spoken: Sequence[bytes]) -> Tokens:
  """Of a vocabulary, given the bytes of every token."""
  return Tokens(
    spoken, {b.decode(): i for i, b in enumerate(spoken) if len(b) == 1 and b.isascii()}
  )


def in_string(text: bytes) -> bool:
  """Whether a text in JSON stands in a string."""
  inside = escaped = False
  for byte in text:
    if inside and not escaped and byte == ord("\\"):
      escaped = True
      continue
    inside, escaped = inside != (byte == ord('"') and not escaped), False
  return inside


def due(
  matcher: Any, said: Sequence[int], left: int, tokens: Tokens, allows: Allows
) -> list[int] | None:
  """The tokens of a short end, if the `left` tokens are few for it; None where they are not.

  Any other token may lengthen it, such as a comma, behind which an item follows. So few is up to
  twice what it takes with the stop token, and `MORE`.
  """
  if left > ZONE:
    return None
  ids = end(matcher, b"".join(tokens.spoken[i] for i in said), left, tokens, allows)
  return None if ids is None or left > 2 * (len(ids) + 1) + MORE else ids


def end(matcher: Any, text: bytes, most: int, tokens: Tokens, allows: Allows) -> list[int] | None:
  """Tokens after which the text is complete, fewer than `most`; None where none were found.

  Args:
    matcher: of llguidance, which has read the text; it is left as it was.
    text: what was said so far.
  """
  ways = (_end(matcher, text, most, tokens, allows, order) for order in _IN_STRING)
  return next((ids for ids in ways if ids is not None), None)


def _end(
  matcher: Any, text: bytes, most: int, tokens: Tokens, allows: Allows, order: str
) -> list[int] | None:
  """`end` with one order of what is tried in a string."""
  ids: list[int] = []
  while len(ids) < most and not matcher.is_accepting():
    more = matcher.compute_ff_tokens()
    if not more:
      allowed = allows(matcher)
      chars = order if in_string(text) else _ELSEWHERE
      more = [i for c in chars if (i := tokens.letters.get(c)) is not None and allowed(i)][:1]
    read = matcher.try_consume_tokens(more)
    ids += more[:read]
    text += b"".join(tokens.spoken[i] for i in more[:read])
    if not more or read < len(more):
      break
  ended = matcher.is_accepting() and len(ids) < most
  matcher.rollback(len(ids))
  return ids if ended else None
