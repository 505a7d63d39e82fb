"""`specjax chat`: questions from the terminal or a pipe, answers as they are accepted."""

import contextlib
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console

from specjax import checks, command_line
from specjax.cli.arguments import Chat
from specjax.cli.terminal import follow, show, summary
from specjax.decoding.conversation import Conversation, Piece
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.names.load import Model
from specjax.serving import POLICY
from specjax.serving.blocks import BlockConversation

HELP = {
  "/drafter NAME": "guesses in another way; the text so far is read again",
  "/temperature T": "draws at another temperature; 0 takes the likeliest token",
  "/policy NAME": "fills blocks in another way, with a denoiser",
  "/reset": "forgets what was said",
  "/help": "shows this list",
  "/quit": "ends the chat, as Ctrl-D does; Ctrl-C ends an answer",
}
PLAIN_TOKENS = 32  # whose decoding gives the rate of plain decoding


class Session:
  """A chat with one model.

  The speed-up of an answer is its tokens/s over those of plain decoding, which is timed once, after
  the first answer: it decodes 32 tokens after the same prompt twice and in the same way, round by
  round. The first time compiles; the second counts, without its first round.

  Args:
    model: has a chat template.
    options: the command line's.

  Raises:
    ValueError: an option that is not accepted, or a model or a template that does not fit.
  """

  def __init__(self, model: Model, options: Chat):
    checks.whole("max_new_tokens", options.max_new_tokens, 1)
    self.model, self.options = model, options
    self.start = [{"role": "system", "content": options.system}] if options.system else []
    model.chat([*self.start, _user("?")])
    self.plain: float | None = None  # tokens/s
    own = {"drafter": options.drafter, "policy": options.policy}
    self.begin(**own, temperature=options.temperature)
    self.reset()

  def begin(self, **settings: Any) -> None:
    """Answers with another drafter, policy or temperature from now on, if they are accepted."""
    settings = getattr(self, "settings", {}) | settings
    self.conversation: Conversation | BlockConversation
    if self.model.config.causal:
      self.conversation = Conversation(self._decoder(settings))
    else:
      self.conversation = BlockConversation(self._denoiser(settings))
    self.settings = settings

  def _decoder(self, settings: Mapping[str, Any]) -> Decoder:
    options, own = self.options, dict(settings)
    if (policy := own.pop("policy")) is not None:
      checks.refuse("policy", policy, f"left out for {self.model.name}, which is causal")
    return Decoder(
      self.model, seed=options.seed, stop=options.stop, stop_words=options.stop_words, **own
    )

  def _denoiser(self, settings: Mapping[str, Any]) -> DiffusionDecoder:
    options = self.options
    for name, value, none in (
      ("drafter", settings["drafter"], "none"), ("stop_words", options.stop_words, ()),
    ):  # fmt: skip
      if value != none:
        checks.refuse(name, value, f"left out for {self.model.name}, which is a denoiser")
    temperature, policy = settings["temperature"], settings["policy"] or POLICY
    return DiffusionDecoder(
      self.model, policy, seed=options.seed, stop=options.stop, temperature=temperature
    )

  def reset(self) -> None:
    """Forgets what was said."""
    self.turns = list(self.start)
    self.conversation.reset()

  def answer(self, question: str) -> str:
    """Shows the answer to a question; its line of figures."""
    turns = [*self.turns, _user(question)]
    asked, words = self.model.chat(turns), self.conversation.stop_words
    with _until_interrupted(self.conversation.ask(turns, self.options.max_new_tokens)) as pieces:
      answer = show(self.model, pieces, asked, words)
      rate = self._plain(turns) if self.settings["drafter"] != "none" else 0.0
    self.turns = [*turns, self._assistant(turns, self.model.decode(answer.tokens, asked))]
    times = [f"{answer.rate / rate:.2f} times plain decoding"] if answer.rate and rate else []
    return summary(answer, *times, self.conversation.label)

  def _assistant(self, turns: list[dict[str, str]], text: str) -> dict[str, str]:
    """The turn of the answer, spelled so that the template gives back the very ids, if it can."""
    spellings = [{"role": "assistant", "content": x} for x in (text.strip(), text)]
    ids = self.conversation.ids
    for turn in spellings:
      if self.model.chat([*turns, turn, _user("?")])[: len(ids)] == ids:
        return turn
    return spellings[0]

  def _plain(self, turns: list[dict[str, str]]) -> float:
    """Tokens/s of plain decoding, 0 where it says one token."""
    if not self.plain:
      plain = Conversation(self._decoder(self.settings | {"drafter": "none"}))
      for _ in range(2):
        self.plain = follow(plain.ask(turns, PLAIN_TOKENS)).rate
        plain.reset()
    return self.plain or 0.0

  def command(self, line: str) -> None:
    """Runs a line that begins with a slash, other than /quit."""
    name, _, value = line.partition(" ")
    if name == "/drafter":
      self.begin(drafter=value.strip())
    elif name == "/policy":
      self.begin(policy=value.strip())
    elif name == "/temperature":
      self.begin(temperature=_number(value))
    elif name == "/reset":
      self.reset()
    elif name == "/help":
      print("\n".join(f"{command:16}{what}" for command, what in HELP.items()))
    else:
      checks.refuse("command", name, f"one of {', '.join(x.split()[0] for x in HELP)}")


def _user(text: str) -> dict[str, str]:
  return {"role": "user", "content": text}


def _number(text: str) -> float | str:
  try:
    return float(text)
  except ValueError:
    return text  # which the decoder refuses


@contextlib.contextmanager
def _until_interrupted(pieces: Iterable[Piece]) -> Iterator[Iterator[Piece]]:
  """The pieces up to the round in which Ctrl-C was pressed; that round is finished."""
  pressed: list[int] = []

  def some() -> Iterator[Piece]:
    for piece in pieces:
      yield piece
      if pressed:
        return

  before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
  try:
    yield some()
  finally:
    signal.signal(signal.SIGINT, before)


def _lines() -> Iterator[str]:
  """The lines of stdin, without those that are empty; Ctrl-C drops one that is being typed."""
  asks = sys.stdin.isatty()
  if asks:
    with contextlib.suppress(ImportError):
      import readline  # noqa: F401  gives `input` its history
  while True:
    try:
      line = input("> " if asks else "").strip()
    except KeyboardInterrupt:
      print()
    except EOFError:
      return
    else:
      if line:
        yield line


def chat(model: Model, options: Chat) -> None:
  """Answers line after line; a line that is refused says why on stderr, and the chat goes on."""
  session, console = Session(model, options), Console(highlight=False, markup=False, soft_wrap=True)
  for line in _lines():
    if line == "/quit":
      return
    try:
      if line.startswith("/"):
        session.command(line)
      else:
        console.print(session.answer(line), style="dim")
    except ValueError as error:
      print(command_line.sentence(error), file=sys.stderr)
