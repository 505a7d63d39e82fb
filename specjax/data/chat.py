"""Conversations as tokens, with the mask of what the assistant says."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from specjax import checks
from specjax.data.tokenizer import Tokenizer

Turns = Sequence[Mapping[str, Any]]  # each with the texts "role" and "content"


class ChatTemplate(Protocol):
  """How a model reads a conversation: `Template`, or `jinja_chat.JinjaTemplate`.

  Both methods raise ValueError for a turn without role or content, and for a conversation that the
  template refuses.

  Attributes:
    roles: whose turns it writes.
  """

  @property
  def roles(self) -> tuple[str, ...]: ...

  def encode(self, tokenizer: Tokenizer, turns: Turns) -> tuple[list[int], list[bool]]:
    """Turns as ids and a mask that is True where the assistant speaks, its end marker included."""
    ...

  def prompt(self, tokenizer: Tokenizer, turns: Turns) -> list[int]:
    """The ids after which the assistant is to speak."""
    ...


def checked(turns: Turns) -> Turns:
  """The turns; ValueError where one has no text as its role or content."""
  for i, turn in enumerate(checks.sequence("turns", turns, "a list of turns")):
    for key in ("role", "content"):
      if not isinstance(turn, Mapping) or key not in turn:
        checks.refuse(f"turns[{i}]", turn, "a dict with the texts role and content")
      checks.text(f"turns[{i}]: {key}", turn[key])
  return turns


def with_known_roles(turns: Turns, roles: Sequence[str]) -> Turns:
  """The turns, in roles that a template has; OpenAI's newer name of the system is understood.

  Raises:
    ValueError: there is no turn, or one of a role that the template does not have.
  """
  if not len(checked(turns)):
    checks.refuse("turns", turns, "a list of one turn or more")
  found = []
  for i, turn in enumerate(turns):
    role = turn["role"]
    role = "system" if role == "developer" and role not in roles else role
    if role not in roles:
      raise ValueError(f"turns[{i}]: role={turn['role']!r}: this template has turns of "
                       f"{', '.join(roles)}.")  # fmt: skip
    found.append({**turn, "role": role})
  return found


def question(turns: Turns) -> Turns:
  """The turns without the answer at their end; ValueError where nothing is left."""
  asked = [i for i, turn in enumerate(checked(turns)) if turn["role"] != "assistant"]
  if not asked:
    checks.refuse("turns", turns, "a list with a turn that is not the assistant's")
  return turns[: asked[-1] + 1]


@dataclasses.dataclass(frozen=True)
class Template:
  """The text around the turns of a conversation; `{}` stands for a turn's content.

  Every turn is tokenised by itself, so the mask is exact and a prompt has the same ids in training
  and in decoding. The part of `assistant` before `{}` belongs to the prompt; the model says the
  content and the end marker after it, but no white space after the marker. `system` is None where
  the format has no system message, and `start` is the text before the first turn.
  """

  user: str
  assistant: str
  system: str | None = None
  start: str = ""

  @property
  def roles(self) -> tuple[str, ...]:
    """See `ChatTemplate`."""
    return ("user", "assistant", *(() if self.system is None else ("system",)))

  def encode(self, tokenizer: Tokenizer, turns: Turns) -> tuple[list[int], list[bool]]:
    """See `ChatTemplate`; roles are user and assistant, and system where the format has it."""
    pieces = [(self.start, False)]
    for i, turn in enumerate(checked(turns)):
      pieces += self._pieces(turn, i)
    ids: list[int] = []
    mask: list[bool] = []
    for text, said in pieces:
      new = tokenizer.encode(text) if text else []
      ids += new
      mask += [said] * len(new)
    return ids, mask

  def prompt(self, tokenizer: Tokenizer, turns: Turns) -> list[int]:
    """See `ChatTemplate`."""
    header = self.assistant.split("{}")[0].rstrip(" ")
    return self.encode(tokenizer, turns)[0] + tokenizer.encode(header)

  def _pieces(self, turn: Mapping[str, Any], i: int) -> list[tuple[str, bool]]:
    """The texts of turn `i`, each with whether the assistant says it."""
    role, content = turn["role"], turn["content"]
    patterns = {"user": self.user, "assistant": self.assistant, "system": self.system}
    pattern = patterns.get(role)
    if pattern is None:
      accepted = ", ".join(self.roles)
      raise ValueError(f"turns[{i}]: role={role!r}: this template has turns of {accepted}.")
    if role != "assistant":
      return [(pattern.format(content), False)]
    before, after = pattern.split("{}")
    header, end = before.rstrip(" "), after.rstrip()
    said = before[len(header) :] + content + end
    return [(header, False), (said, True), (after[len(end) :], False)]


def _tagged(turn: str, start: str = "", system: bool = True) -> Template:
  """The template of a format whose turns are alike: `turn` has {role}, and {} for the content."""
  user, assistant, said = (turn.replace("{role}", x) for x in ("user", "assistant", "system"))
  return Template(user, assistant, said if system else None, start)


_IM = "<|im_start|>{role}\n{}<|im_end|>\n"
_HEADER = "<|start_header_id|>{role}<|end_header_id|>\n\n{}<|eot_id|>"
_DREAM_START = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
TEMPLATES = {
  "plain": Template("{}", "{}<|end|>"),
  "continued": Template("{}", " {}<|end|>"),
  "qa": Template("Question: {}\n", "Answer: {}<|end|>"),
  "vicuna": Template("USER: {} ", "ASSISTANT: {}</s>", "{} ", "<s>"),
  "chatml": _tagged(_IM),
  "llama3": _tagged(_HEADER, "<|begin_of_text|>"),
  "llada": _tagged(_HEADER, "<|startoftext|>"),
  "dream": _tagged(_IM, _DREAM_START, system=False),
}
