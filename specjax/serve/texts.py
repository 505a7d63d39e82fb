"""The text of an answer while its ids come, cut at the first stop word."""

from collections.abc import Sequence

from specjax.decoding.model import Model


class Text:
  """One answer's text, of which nothing that was shown is taken back.

  It is what `Decoder(stop_words=..)` gives: it ends with the first token that completes a stop
  word, and is cut before it. A character of which only the first bytes have come waits for the
  others, and the beginning of what may be a stop word waits for its end.

  Attributes:
    ids: those that the text has so far, up to the one that completed a stop word.
    shown: the text so far.
    stopped: whether a stop word was said.
  """

  ids: list[int]
  shown: str
  stopped: bool

  def __init__(self, model: Model, stop_words: Sequence[str] = ()):
    self.ids, self.shown, self.stopped = [], "", False
    self._model, self._words = model, tuple(stop_words)

  def add(self, new: Sequence[int]) -> str:
    """What can be shown now that these ids have come."""
    if self.stopped:
      return ""
    before, self.ids = len(self.ids), [*self.ids, *new]
    text = self._whole()
    if not self._place(text):
      return self._show(text[: len(text) - self._held(text)])
    for count in range(before + 1, len(self.ids) + 1):
      text = self._whole(count)
      if places := self._place(text):
        break
    self.ids, self.stopped = self.ids[:count], True
    return self._show(text[: min(places)])

  def end(self) -> str:
    """What is left to show when no more ids come."""
    return "" if self.stopped else self._show(self._model.decode(self.ids))

  def _whole(self, count: int | None = None) -> str:
    """The text of the first `count` ids, without the beginning of a character at its end."""
    return self._model.decode(self.ids[:count]).rstrip("\ufffd")

  def _place(self, text: str) -> list[int]:
    """Where the stop words begin that are in a text."""
    return [text.find(word) for word in self._words if word in text]

  def _held(self, text: str) -> int:
    """How many characters at the end of a text begin a stop word."""
    return max((n for word in self._words for n in range(1, len(word)) if text.endswith(word[:n])),
               default=0)  # fmt: skip

  def _show(self, text: str) -> str:
    new = text[len(self.shown) :]
    self.shown += new
    return new
