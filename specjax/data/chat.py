"""Conversations as tokens, with the mask of what the model itself says."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol


class Encoder(Protocol):
  """What a template needs of a tokenizer."""

  def encode(self, text: str) -> list[int]: ...


@dataclasses.dataclass(frozen=True)
class Template:
  """How turns are written. `{}` stands for the content.

  Every turn is tokenised by itself, so the mask is exact and a prompt has the same ids in
  training and in decoding.

  Attributes:
    user, assistant: text around a turn's content. The part of `assistant` before `{}` belongs to
      the prompt; the content and all after it is what the model must say.
    system: text around a system message, or None where the format has none.
    start: text before the first turn.
  """

  user: str
  assistant: str
  system: str | None = None
  start: str = ""


TEMPLATES = {
  "qa": Template("Question: {}\n", "Answer: {}<|end|>"),
  "vicuna": Template("USER: {} ", "ASSISTANT: {}</s>", "{} ", "<s>"),
  "chatml": Template(
    "<|im_start|>user\n{}<|im_end|>\n",
    "<|im_start|>assistant\n{}<|im_end|>\n",
    "<|im_start|>system\n{}<|im_end|>\n",
  ),
  "llama3": Template(
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n{}<|eot_id|>",
    "<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>",
    "<|begin_of_text|>",
  ),
}


def encode_chat(
  template: Template, tokenizer: Encoder, turns: Sequence[Mapping[str, str]]
) -> tuple[list[int], list[bool]]:
  """Turns as ids and a mask that is True where the assistant speaks, its end marker included.

  Args:
    turns: dicts with "role" ("system", "user" or "assistant") and "content".

  Raises:
    ValueError: an unknown role, or a system turn in a format without one.
  """
  ids = tokenizer.encode(template.start) if template.start else []
  mask = [False] * len(ids)
  for turn in turns:
    role = turn["role"]
    pattern = {
      "user": template.user, "assistant": template.assistant, "system": template.system
    }.get(role)  # fmt: skip
    if pattern is None:
      raise ValueError(f"role={role!r}: this template has user, assistant"
                       f"{', system' if template.system else ''} turns.")  # fmt: skip
    if role == "assistant":
      before, after = pattern.split("{}")
      header = tokenizer.encode(before.rstrip(" "))
      said = tokenizer.encode(before[len(before.rstrip(" ")) :] + turn["content"] + after)
      ids += header + said
      mask += [False] * len(header) + [True] * len(said)
    else:
      said = tokenizer.encode(pattern.format(turn["content"]))
      ids += said
      mask += [False] * len(said)
  return ids, mask


def encode_prompt(
  template: Template, tokenizer: Encoder, turns: Sequence[Mapping[str, str]]
) -> list[int]:
  """The ids after which the assistant is to speak."""
  header = template.assistant.split("{}")[0].rstrip(" ")
  return encode_chat(template, tokenizer, turns)[0] + tokenizer.encode(header)
