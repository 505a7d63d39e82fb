"""A conversation with a denoiser: answers that come block by block, from one row of its loop."""

from collections.abc import Iterator, Mapping, Sequence

from specjax import checks
from specjax.decoding.conversation import Piece
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.serving.denoised import DenoisedHalf
from specjax.serving.ticket import Ticket


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
    self._rows = self._half.rows(1)
    self._number = 0  # of this conversation among all requests, which decides its noise

  def reset(self) -> None:
    """Forgets the text; what follows is another request, whose noise is its own."""
    self._number, self.ids = self._number + 1, []

  def ask(
    self, prompt: Sequence[int] | Sequence[Mapping[str, str]], max_new_tokens: int = 128
  ) -> Iterator[Piece]:
    """The answer, a block or a few at a time. It may be left early.

    An answer is shorter than `max_new_tokens` where the positions of the model end.

    Args:
      prompt: all turns, the new question the last, see `Model.chat`; or all ids.

    Raises:
      ValueError: a prompt that `Model` refuses, or one that leaves no room for an answer.
    """
    model = self.decoder.model
    held = checks.sequence("prompt", prompt, "a list of turns or of token ids")
    turns = len(held) > 0 and isinstance(held[0], Mapping)
    ids = model.encode(model.chat(prompt) if turns else prompt)  # type: ignore[arg-type]
    checks.whole("max_new_tokens", max_new_tokens, 1)
    room = model.config.max_length - len(ids)
    if room < 1:
      raise ValueError(
        f"the conversation is full: it has {len(ids)} tokens, and {model.name} has "
        f"{model.config.max_length} positions; reset it to begin anew."
      )
    budget, sampling = min(max_new_tokens, room), self.decoder.sampling
    self._half.checked(ids, budget, sampling, None, None, ())
    return self._answer(
      Ticket(
        ids, budget, sampling, None, self._number, None, frozenset(), lambda: None, lambda x: None
      )
    )

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
