"""Conversations as tokens, with the mask of what the assistant says."""

import dataclasses
from collections.abc import Mapping, Sequence

from specjax import checks
from specjax.data.tokenizer import Tokenizer


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


def _pieces(template: Template, turn: Mapping[str, str], i: int) -> list[tuple[str, bool]]:
  """The texts of turn `i`, each with whether the assistant says it."""
  for key in ("role", "content"):
    if not isinstance(turn, Mapping) or key not in turn:
      checks.refuse(f"turns[{i}]", turn, "a dict with the texts role and content")
  role = checks.text(f"turns[{i}]: role", turn["role"])
  content = checks.text(f"turns[{i}]: content", turn["content"])
  patterns = {"user": template.user, "assistant": template.assistant, "system": template.system}
  pattern = patterns.get(role)
  if pattern is None:
    accepted = ", ".join(name for name, text in patterns.items() if text is not None)
    raise ValueError(f"turns[{i}]: role={role!r}: this template has turns of {accepted}.")
  if role != "assistant":
    return [(pattern.format(content), False)]
  before, after = pattern.split("{}")
  header, end = before.rstrip(" "), after.rstrip()
  said = before[len(header) :] + content + end
  return [(header, False), (said, True), (after[len(end) :], False)]


def encode_chat(
  template: Template, tokenizer: Tokenizer, turns: Sequence[Mapping[str, str]]
) -> tuple[list[int], list[bool]]:
  """Turns as ids and a mask that is True where the assistant speaks, its end marker included.

  Turns are dicts with "role" ("system", "user" or "assistant") and "content". Others raise
  ValueError, as does a system turn where the template has none.
  """
  pieces = [(template.start, False)]
  for i, turn in enumerate(checks.sequence("turns", turns, "a list of turns")):
    pieces += _pieces(template, turn, i)
  ids: list[int] = []
  mask: list[bool] = []
  for text, said in pieces:
    new = tokenizer.encode(text) if text else []
    ids += new
    mask += [said] * len(new)
  return ids, mask


def encode_prompt(
  template: Template, tokenizer: Tokenizer, turns: Sequence[Mapping[str, str]]
) -> list[int]:
  """The ids after which the assistant is to speak."""
  header = template.assistant.split("{}")[0].rstrip(" ")
  return encode_chat(template, tokenizer, turns)[0] + tokenizer.encode(header)
