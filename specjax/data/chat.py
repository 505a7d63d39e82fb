"""Conversations as tokens, with the mask of what the assistant says."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from specjax import checks
from specjax.data.tokenizer import Tokenizer

# Each with the text "role", and the "content": a text, or a list of parts as OpenAI's messages have
# it, such as {"type": "text", "text": ..}. It may be None where one of `INSTEAD` is there.
Turns = Sequence[Mapping[str, Any]]
INSTEAD = "tool_calls", "function_call", "refusal", "reasoning_content"  # of a content
TEXTS = "text", "input_text", "output_text"  # types of parts
BEGUN = "begun"  # of an answer: the part of its content, at the beginning, that is not learned
EMPTY: Mapping[str, Any] = types.MappingProxyType({})


class ChatTemplate(Protocol):
  """How a model reads a conversation: `Template`, or `jinja_chat.JinjaTemplate`.

  Both methods raise ValueError for a turn without role or content, and for a conversation that the
  template refuses.

  Attributes:
    roles: whose turns it writes.
    source: its text, "" where it has none.
    variables: what it reads besides the turns, such as `tools` or `enable_thinking`.
  """

  @property
  def roles(self) -> tuple[str, ...]: ...

  @property
  def source(self) -> str: ...

  @property
  def variables(self) -> frozenset[str]: ...

  def encode(self, tokenizer: Tokenizer, turns: Turns) -> tuple[list[int], list[bool]]:
    """Turns as ids and a mask that is True where the assistant speaks, its end marker included."""
    ...

  def prompt(
    self, tokenizer: Tokenizer, turns: Turns, values: Mapping[str, Any] = EMPTY
  ) -> list[int]:
    """The ids after which the assistant is to speak; `values` are of `variables`."""
    ...

  def untrained(self, tokenizer: Tokenizer, turns: Turns) -> int:
    """The number of tokens of answers that `encode` writes otherwise than the assistant says them.

    They are not True in its mask.
    """
    ...


def checked(turns: Turns, name: str = "turns") -> Turns:
  """The turns; ValueError where one has no text as its role, or no content."""
  for i, turn in enumerate(checks.sequence(name, turns, "a list of turns")):
    named = isinstance(turn, Mapping) and "role" in turn
    if not named or ("content" not in turn and silent(turn)):
      checks.refuse(f"{name}[{i}]", turn, "a dict with the texts role and content")
    checks.text(f"{name}[{i}]: role", turn["role"])
    content = turn.get("content")
    if silent(turn):
      checks.text(f"{name}[{i}]: content", content)
    if isinstance(content, list | tuple):
      if not all(map(_is_part, content)):
        checks.refuse(
          f"{name}[{i}]: content", content, 'text, or parts {"type": "text", "text": ..}'
        )
    elif content is not None:
      checks.text(f"{name}[{i}]: content", content)
  return turns


def in_roles(turns: Turns, roles: Sequence[str]) -> list[dict[str, Any]]:
  """The turns, a developer's as the system's where a template has no developer."""
  system = {} if "developer" in roles else {"developer": "system"}
  return [{**turn, "role": system.get(turn["role"], turn["role"])} for turn in turns]


def with_known_roles(turns: Turns, roles: Sequence[str]) -> Turns:
  """The turns, in roles that a template has.

  Raises:
    ValueError: there is no turn, or one of a role that the template does not have.
  """
  if not len(checked(turns)):
    checks.refuse("turns", turns, "a list of one turn or more")
  found = in_roles(turns, roles)
  for i, turn in enumerate(found):
    if turn["role"] not in roles:
      raise ValueError(
        f"turns[{i}]: role={turns[i]['role']!r}: this template has turns of {', '.join(roles)}."
      )
  return found


def silent(turn: Mapping[str, Any]) -> bool:
  """Whether a turn has neither a content nor what may stand in its place."""
  return turn.get("content") is None and not any(turn.get(key) for key in INSTEAD)


def _is_part(part: Any) -> bool:
  kind = part.get("type") if isinstance(part, Mapping) else None
  return isinstance(kind, str) and (kind not in TEXTS or isinstance(part.get("text"), str))


def content_of(turn: Mapping[str, Any]) -> str:
  """The content of a turn as one text, "" where it has none.

  Raises:
    ValueError: a part of it is no text.
  """
  content = turn.get("content")
  if not isinstance(content, list | tuple):
    return content or ""
  for part in content:
    if part["type"] not in TEXTS:
      checks.refuse("content: type", part["type"], f"one of {', '.join(TEXTS)}")
  return "".join(part["text"] for part in content)


def plain(turns: Turns) -> list[dict[str, Any]]:
  """The turns for templates that write texts alone; a content that is None is ""."""
  return [{**turn, "content": content_of(turn)} for turn in turns]


def question(turns: Turns) -> Turns:
  """The turns without the answer at their end; ValueError where nothing is left."""
  asked = [i for i, turn in enumerate(checked(turns)) if turn["role"] != "assistant"]
  if not asked:
    checks.refuse("turns", turns, "a list with a turn that is not the assistant's")
  return turns[: asked[-1] + 1]


def questions(turns: Turns) -> list[Turns]:
  """The turns of each question of a conversation; only answers before the first stay.

  Raises:
    ValueError: nothing is asked, or a turn is what a tool says, which the assistant had called.
  """
  whole = question(turns)
  if tools := [turn["role"] for turn in whole if turn["role"] in ("tool", "function")]:
    checks.refuse("role", tools[0], "no tool's where every turn is answered anew")
  said = [turn["role"] == "assistant" for turn in whole]
  ends = [i + 1 for i in range(len(whole)) if not said[i] and (said[i + 1 : i + 2] or [True])[0]]
  pieces = [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]
  later = ([turn for turn in piece if turn["role"] != "assistant"] for piece in pieces[1:])
  return [pieces[0], *later]


@dataclasses.dataclass(frozen=True)
class Template:
  """The text around the turns of a conversation; `{}` stands for a turn's content.

  Every turn is tokenised by itself, so the mask is exact and a prompt has the same ids in training
  and in decoding. The part of `assistant` before `{}` belongs to the prompt; the model says the
  content and the end marker after it, but no white space after the marker; what a turn has in
  `begun` is not in the mask. `system` is None where
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

  source, variables = "", frozenset[str]()

  def encode(self, tokenizer: Tokenizer, turns: Turns) -> tuple[list[int], list[bool]]:
    """See `ChatTemplate`; roles are user and assistant, and system where the format has it.

    It has no place for tool calls; a turn that has nothing else is empty and not trained.
    """
    pieces = [(self.start, False)]
    for i, turn in enumerate(plain(in_roles(checked(turns), self.roles))):
      pieces += self._pieces(turn, i)
    ids: list[int] = []
    mask: list[bool] = []
    for text, said in pieces:
      new = tokenizer.encode(text) if text else []
      ids += new
      mask += [said] * len(new)
    return ids, mask

  def prompt(
    self, tokenizer: Tokenizer, turns: Turns, values: Mapping[str, Any] = EMPTY
  ) -> list[int]:
    """See `ChatTemplate`; it has no variables."""
    header = self.assistant.split("{}")[0].rstrip(" ")
    return self.encode(tokenizer, turns)[0] + tokenizer.encode(header)

  def untrained(self, tokenizer: Tokenizer, turns: Turns) -> int:
    """See `ChatTemplate`: none."""
    return 0

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
    silent = not content and any(turn.get(key) for key in INSTEAD)
    begun = checks.text(f"turns[{i}]: {BEGUN}", turn.get(BEGUN) or "")
    if not content.startswith(begun):
      checks.refuse(f"turns[{i}]: {BEGUN}", begun, "the beginning of the content")
    n = len(before) - len(header) + len(begun) if begun else 0
    learned = (said[n:], not silent)
    return [(header, False), (said[:n], False), learned, (after[len(end) :], False)]


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
