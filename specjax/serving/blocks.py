"""A conversation with a denoiser: answers that come block by block, from one row of its loop."""

from collections.abc import Iterator, Sequence

from specjax.decoding.conversation import Piece, Text, asked
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.serving.denoised import DenoisedHalf, DenoiseRows
from specjax.serving.ticket import Ticket

LEAST = 256  # slots of the first canvas; each growth compiles anew


class BlockConversation:
  """One text that prompts and answers continue, see `decoding.conversation.Conversation`.

  An answer has the tokens that a new `DiffusionDecoder` gives after the whole prompt, which is read
  anew in every turn.

  Attributes:
    decoder: the method.
    label: its name.
    stop_words: none.
    ids: the text so far: the last prompt, and what has been said of its answer.
  """

  decoder: DiffusionDecoder
  label: str
  stop_words: Sequence[str] = ()
  ids: list[int]

  def __init__(self, decoder: DiffusionDecoder):
    self.decoder, self.label, self.ids = decoder, decoder.name, []
    self._half = DenoisedHalf(decoder, decoder.model.config.max_length)
    *shorter, longest = self._half.lengths
    self._rows = DenoiseRows(decoder, [*(n for n in shorter if n >= LEAST), longest], 1)
    self._number = 0  # of this conversation among all requests, which decides its noise

  def reset(self) -> None:
    """Forgets the text; what follows is another request, whose noise is its own."""
    self._number, self.ids = self._number + 1, []

  def ask(self, prompt: Text, max_new_tokens: int = 128) -> Iterator[Piece]:
    """The answer, a block or a few at a time, as of a `Conversation`; mask tokens are refused."""
    ids, budget = asked(self.decoder.model, prompt, max_new_tokens)
    settings = self.decoder.sampling, None, self._number, None, frozenset[int]()
    self._half.checked(ids, budget, settings[0], None, None, ())
    return self._answer(Ticket(ids, budget, *settings, lambda: None, lambda ticket: None))

  def _answer(self, ticket: Ticket) -> Iterator[Piece]:
    self.ids, passes = list(ticket.ids), 0
    self._rows.admit(0, ticket)
    try:
      done = False
      while not done:
        seen = self._rows.look({0: ticket}, 1)[0]
        done = seen.done
        ticket.add(seen.new)
        self.ids += seen.new
        if seen.new:
          yield Piece(seen.new, 0, seen.passes - passes)
          passes = seen.passes
    finally:
      self._rows.free(0)
