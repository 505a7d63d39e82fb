"""The text of an answer while its ids come, cut at the first stop word."""

from collections.abc import Sequence

from specjax.names.load import Model


def cut(text: str, stop_words: Sequence[str]) -> str:
  """A text up to the first of these words."""
  return text[: min((text.find(word) for word in stop_words if word in text), default=len(text))]


class Text:
  """One answer's text, of which nothing that was shown is taken back.

  It is what `Decoder(stop_words=..)` gives: it ends with the first token that completes a stop
  word, and is cut before it. A character of which only the first bytes have come waits for the
  others, and the beginning of what may be a stop word waits for its end.

  Args:
    model: has a tokenizer.
    after: the ids of the prompt, which the text goes on from.
    least: ids that the text has at least, among which no stop word ends it.

  Attributes:
    ids: those that the text has so far, up to the one that completed a stop word.
    shown: the text so far.
    stopped: whether a stop word was said.
  """

  ids: list[int]
  shown: str
  stopped: bool

  def __init__(
    self, model: Model, stop_words: Sequence[str] = (), after: Sequence[int] = (), least: int = 0
  ):
    assert model.tokenizer is not None
    self.ids, self.shown, self.stopped = [], "", False
    self._stream, self._words, self._text = model.tokenizer.stream(after), tuple(stop_words), ""
    self._least = least

  def add(self, new: Sequence[int]) -> str:
    """What can be shown now that these ids have come."""
    if self.stopped:
      return ""
    for i in new:
      before = len(self._text)
      self.ids.append(i)
      self._text += self._stream.add([i])
      places = (self._text.find(word, max(0, before - len(word))) for word in self._words)
      said = [place for place in places if place >= 0]
      if said and len(self.ids) > self._least:
        self.stopped = True
        return self._show(min(said))
    return self._show(len(self._text) - self._held())

  def end(self) -> str:
    """What is left to show when no more ids come."""
    if self.stopped:
      return ""
    self._text += self._stream.end()
    return self._show(len(self._text))

  def _held(self) -> int:
    """How many characters at the end of the text begin a stop word."""
    begun = (
      n for word in self._words for n in range(1, len(word)) if self._text.endswith(word[:n])
    )
    return max(begun, default=0)

  def _show(self, end: int) -> str:
    new = self._text[len(self.shown) : end]
    self.shown += new
    return new
