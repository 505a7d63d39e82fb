"""A text in a terminal as it is accepted, and the line that follows it."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from specjax.decoding.conversation import Piece
from specjax.decoding.texts import Text
from specjax.names.load import Model

DRAFTED, PLAIN = "\x1b[36m", "\x1b[0m"  # terminal codes: cyan for accepted drafts, and its end


class Answer(NamedTuple):
  """One answer.

  Attributes:
    tokens: its ids.
    passes: of the model.
    rate: tokens/s after the first piece, which may include compiling; 0 if there is no other.
  """

  tokens: list[int]
  passes: int
  rate: float


def follow(pieces: Iterable[Piece], tell: Callable[[Piece], None] = lambda piece: None) -> Answer:
  """The answer that the pieces make, each of which goes to `tell` when it comes."""
  tokens: list[int] = []
  passes, first, begin = 0, None, time.perf_counter()
  for piece in pieces:
    tell(piece)
    tokens += piece.tokens
    passes += piece.passes
    if first is None:
      first, begin = len(tokens), time.perf_counter()
  later = len(tokens) - (first or 0)
  return Answer(tokens, passes, later / (time.perf_counter() - begin) if later else 0.0)


def show(
  model: Model, pieces: Iterable[Piece], after: Sequence[int] = (), stop_words: Sequence[str] = ()
) -> Answer:
  """Writes an answer to stdout as it comes, with colour for what was drafted in a terminal.

  It goes on from the text of the ids `after`, and ends before the first stop word.
  """
  text = None if model.tokenizer is None else Text(model, stop_words, after)
  colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

  def write(more: list[int], codes: tuple[str, str]) -> None:
    if new := "".join(f"{i} " for i in more) if text is None else text.add(more):
      print(codes[0], new, codes[1], sep="", end="", flush=True)

  def tell(piece: Piece) -> None:
    write(piece.tokens[: piece.drafted], (DRAFTED, PLAIN) if colour else ("", ""))
    write(piece.tokens[piece.drafted :], ("", ""))

  answer = follow(pieces, tell)
  print(text.end() if text else "")
  return answer


def summary(answer: Answer, *more: str) -> str:
  """Tokens, tokens per pass, tokens/s and more about an answer, in one line."""
  said = [f"{len(answer.tokens)} tokens"]
  if answer.passes:
    said.append(f"{len(answer.tokens) / answer.passes:.2f} per pass")
  if answer.rate:
    said.append(f"{answer.rate:.0f} tokens/s")
  return ", ".join([*said, *more])
