"""What an engine asks of a decoder: one interface, for causal models and for denoisers.

An engine knows rows that take a request, make rounds, and say what is new in them. Whether a round
drafts tokens and verifies them, or fills slots of a block, is `serving.causal`'s and
`serving.denoised`'s.

Letters: B batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from specjax.decoding.batching import Rounds
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.decoding.scores import Score
from specjax.names.build.processors import Used
from specjax.processors import Penalties
from specjax.sampling import SamplingParams
from specjax.serving.paging import Paging
from specjax.serving.pieces import Pieces
from specjax.serving.ticket import Ticket

# Of a prompt: all of it, or one piece more, or nothing before others give up their memory.
Progress = Literal["read", "more", "waits"]


class Seen(NamedTuple):
  """What a row has after some rounds.

  Attributes:
    new: the ids that its ticket has not yet, none of which will change.
    passes, rounds: see `Ticket`.
    done: whether nothing more will come.
    error: why, where the row has failed.
  """

  new: list[int]
  passes: int
  rounds: Rounds
  done: bool
  error: Exception | None = None


class Rows(Protocol):
  """B rows of one compiled loop, each of which is free or holds a request; all are free at first.

  A request's ids are those that a decoder gives it alone, whoever its neighbours are.
  """

  @property
  def count(self) -> int:
    """B."""

  def admit(self, b: int, ticket: Ticket, following: Ticket | None) -> bool:
    """Puts a request into row b, and says whether its prompt is read; else `read_on` reads it.

    Args:
      following: the request that comes next, which may have the same prompt.
    """

  def read_on(self, b: int, ticket: Ticket, decoding: int) -> Progress:
    """Reads one piece more of the prompt of row b, or of the text with which it was put back.

    Args:
      decoding: how many rows decode. Where none does, nobody waits.
    """

  def prepare(self, held: Mapping[int, Ticket], rounds: int) -> list[int]:
    """Finds memory for so many rounds of the rows that are held and read.

    Returns the rows that were put back for it: each keeps its request, which is to be read anew.
    """

  def look(self, held: Mapping[int, Ticket], rounds: int) -> dict[int, Seen]:
    """Runs `rounds` rounds at most, and says of each row that is held what it has."""

  def free(self, b: int) -> None:
    """Ends row b where it is."""

  def leave(self, ticket: Ticket) -> None:
    """Gives up what a request has besides a row; it has ended, read or not."""

  def take(self, index: Sequence[int]) -> None:
    """Goes on with the rows index[b] of now; a negative one makes a free row."""

  def compile(self) -> None:
    """Runs once what rows of this number run, without a request."""


class Half(Protocol):
  """A decoder as an engine runs it.

  Attributes:
    decoder: the method and the weights, over caches as they are kept here.
    lengths: of prompts, or of texts, for which programs are compiled, rising.
    pieces: what reads prompts in pieces, None where nothing does.
    paging: who has which pages, None without such.
    by_load: whether its rounds depend on how many rows there are.
    names: what decodes, by kind, as `usage` and the server's first line say it.
    stop_words: texts that end every answer.
    lacks: fields of OpenAI's protocol that it cannot follow, and why.
    unscored: why it gives no text's log-probabilities, "" where it gives them.
    examples: (ids, budget) of requests that run every program, one after the other.
  """

  lengths: list[int]
  paging: Paging | None
  by_load: bool
  names: dict[str, str]
  stop_words: Sequence[str]
  lacks: Mapping[str, str]
  unscored: str

  @property
  def decoder(self) -> Decoder | DiffusionDecoder: ...

  @property
  def pieces(self) -> Pieces | None: ...

  @property
  def examples(self) -> list[tuple[list[int], int]]: ...

  def checked(
    self,
    ids: Sequence[int],
    budget: int,
    sampling: SamplingParams,
    json_schema: str | Mapping[str, Any] | None,
    penalties: Penalties | None,
    stop: Sequence[int],
  ) -> Sequence[Used] | None:
    """The processors of a request, None for the decoder's; ValueError where it is not accepted."""

  def time(self, sizes: Sequence[int]) -> None:
    """Times rounds of these numbers of rows, where they depend on that."""

  def rows(self, count: int) -> Rows:
    """So many rows."""

  def reset(self) -> None:
    """Forgets the texts of all rows, for a round has failed; other rows follow."""

  def stopped(self, ticket: Ticket) -> bool:
    """Whether a text that is done ended before its budget, or with a stop at its end."""

  def closing(self, ticket: Ticket) -> int | None:
    """See `Result.closing`."""

  def scores(self, ticket: Ticket, count: int, whole: bool) -> list[Score]:
    """See `Engine.scores`."""
