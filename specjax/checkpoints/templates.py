"""The chat template of a Hugging Face directory: its own in Jinja, or one that has a name here."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from specjax import checks
from specjax.data.chat import TEMPLATES, ChatTemplate
from specjax.data.jinja_chat import JinjaTemplate

_FILE = "chat_template.jinja"


def source(name: str, value: Any) -> str:
  """`chat_template` of tokenizer_config.json: a text, or named texts, of which one is default."""
  if not isinstance(value, list):
    return checks.text(name, value)
  wanted = {"name": checks.text, "template": checks.text}
  for i, each in enumerate(value):
    if not isinstance(each, dict):
      checks.refuse(f"{name}[{i}]", each, "an object with name and template")
    held = checks.fields_of(each, wanted, f"{name}[{i}]", needed=wanted)
    if held["name"] == "default":
      return held["template"]
  raise ValueError(f"{name} lists no template with the name 'default'.")


def read(directory: pathlib.Path, names: Mapping[str, str]) -> JinjaTemplate | None:
  """The template that a directory brings, or None.

  `names` holds bos_token, eos_token and chat_template of tokenizer_config.json, as far as it has
  them. A file that is no text and a template that is no Jinja raise ValueError.
  """
  file, given = directory / _FILE, names.get("chat_template")
  try:
    if file.exists():
      given = checks.contents(file).decode()
    if given is None:
      return None
    return JinjaTemplate(given, names.get("bos_token", ""), names.get("eos_token", ""))
  except UnicodeDecodeError:
    raise ValueError(f"{file} is no UTF-8.") from None
  except ValueError as error:
    raise ValueError(f"{directory}: {error}") from None


def named(given: str, bos: str = "", eos: str = "") -> ChatTemplate:
  """A template by its name in `data.chat.TEMPLATES`, or that of a file in Jinja.

  `bos` and `eos` are the texts of the tokens that Jinja knows by these names.

  Raises:
    ValueError: there is no such name or file, or the file is no template.
  """
  if given in TEMPLATES:
    return TEMPLATES[given]
  if not given or not os.path.isfile(given):
    checks.refuse("template", given, f"one of {', '.join(TEMPLATES)}, or a file in Jinja")
  try:
    return JinjaTemplate(checks.contents(given).decode(), bos, eos)
  except UnicodeDecodeError:
    raise ValueError(f"{given} is no UTF-8.") from None


def known(template: ChatTemplate | None) -> str | None:
  """The name of a template in `data.chat.TEMPLATES`; None for one in Jinja, else ValueError."""
  if template is None or isinstance(template, JinjaTemplate):
    return None
  for name, each in TEMPLATES.items():
    if each == template:
      return name
  accepted = f"a JinjaTemplate, or of chat.TEMPLATES one of {', '.join(TEMPLATES)}"
  checks.refuse("template", template, accepted)


def write(directory: pathlib.Path, template: ChatTemplate | None) -> dict[str, str]:
  """Writes a template in Jinja, or removes the file of an earlier one.

  It returns the special tokens that the template uses, for tokenizer_config.json.
  """
  (directory / _FILE).unlink(missing_ok=True)
  if not isinstance(template, JinjaTemplate):
    return {}
  (directory / _FILE).write_bytes(template.source.encode())
  tokens = {"bos_token": template.bos_token, "eos_token": template.eos_token}
  return {key: token for key, token in tokens.items() if token}
