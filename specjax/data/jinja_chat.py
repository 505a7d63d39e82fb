"""Chat templates in Jinja, as checkpoints bring them, rendered in a sandbox.

A template sees what transformers documents for its own: `messages`, `add_generation_prompt`,
`tools` and `documents` (None here), `bos_token` and `eos_token`; `raise_exception`,
`strftime_now`, the filter `tojson`, `break` and `continue`; and the block `{% generation %}`.
"""

import dataclasses
import datetime
import functools
import json
import re
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from specjax import checks
from specjax.data.chat import Turns, checked
from specjax.data.tokenizer import Tokenizer

# These characters enclose what a generation block writes. As lone surrogates they are in no UTF-8
# text, so no turn holds them.
_OPEN, _CLOSE = "\ud800", "\udfff"
_MARKS = f"([{_OPEN}{_CLOSE}])"


class _Generation(jinja2.ext.Extension):
  """`{% generation %}...{% endgeneration %}`: what the assistant says."""

  tags = {"generation"}  # noqa: RUF012  jinja2's own declaration

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    next(parser.stream)
    body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
    ends = [jinja2.nodes.Output([jinja2.nodes.TemplateData(mark)]) for mark in (_OPEN, _CLOSE)]
    return [ends[0], *body, ends[1]]


def _raise_exception(message: str) -> NoReturn:
  raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
  return datetime.datetime.now().strftime(pattern)


def _tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
  """JSON as it is: the filter that jinja2 brings escapes it for HTML."""
  return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _sandbox() -> jinja2.Environment:
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
  )
  environment.filters["tojson"] = _tojson
  environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
  return environment


def _reason(error: Exception) -> str:
  return " ".join(str(error).split()).rstrip(".") or type(error).__name__


@functools.lru_cache(16)
def _compiled(source: str) -> jinja2.Template:
  try:
    return _sandbox().from_string(source)
  except jinja2.TemplateSyntaxError as error:
    raise ValueError(f"the chat template has an error in line {error.lineno}: "
                     f"{_reason(error)}.") from None  # fmt: skip
  except Exception as error:  # whatever a constant expression raises, which jinja2 works out
    raise ValueError(f"the chat template cannot be compiled: {_reason(error)}.") from error


@dataclasses.dataclass(frozen=True)
class JinjaTemplate:
  """A chat template in Jinja, a `chat.ChatTemplate`.

  The rendered text is tokenised as a whole, markers in it as special tokens, and nothing is put
  before it: the ids are those of transformers' `apply_chat_template`.

  What the assistant says is what the template writes in `{% generation %}`, else what a turn adds
  to the turns before it with the generation prompt, without the white space at its end. A turn
  that the template writes otherwise once others follow, as some do to leave out its thinking, is
  not trained.

  Attributes:
    source: the template.
    bos_token, eos_token: texts of these tokens for the template, "" where there is none.

  Raises:
    ValueError: the template is no Jinja.
  """

  source: str
  bos_token: str = ""
  eos_token: str = ""

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      checks.text(f"chat template: {field.name}", getattr(self, field.name))
    _compiled(self.source)

  def encode(self, tokenizer: Tokenizer, turns: Turns) -> tuple[list[int], list[bool]]:
    """See `ChatTemplate`; a conversation without a turn that can be trained is refused too."""
    pieces = re.split(_MARKS, self._render(turns))
    texts, marks = pieces[::2], ["", *pieces[1::2]]
    whole = "".join(texts)
    if len(marks) > 1:
      said = [mark == _OPEN for mark, text in zip(marks, texts, strict=True) for _ in text]
    else:
      said = self._added(whole, turns)
    ids, spans = tokenizer.encode_spans(whole)
    return ids, [any(said[start:end]) for start, end in spans]

  @functools.cached_property
  def roles(self) -> tuple[str, ...]:
    """See `ChatTemplate`: the usual ones, and texts that the template compares something with."""
    found = ["user", "assistant", "system"]
    for node in _sandbox().parse(self.source).find_all(jinja2.nodes.Compare):
      for side in (node.expr, *(operand.expr for operand in node.ops)):
        each = side.items if isinstance(side, jinja2.nodes.List | jinja2.nodes.Tuple) else [side]
        found += [x.value for x in each if isinstance(x, jinja2.nodes.Const)]
    return tuple(dict.fromkeys(role for role in found if isinstance(role, str)))

  def prompt(self, tokenizer: Tokenizer, turns: Turns) -> list[int]:
    """See `ChatTemplate`; a conversation of which the template leaves out a turn is refused too."""
    text = self._text(turns, prompt=True)
    for i, turn in enumerate(turns):
      usual = turn["role"] in ("user", "assistant") and (turn["content"] or "").strip() in text
      if not usual and self._leaves_out(turns, i, text):
        raise ValueError(f"turns[{i}]: role={turn['role']!r}: the chat template leaves this turn "
                         "out.")  # fmt: skip
    return tokenizer.encode(text)

  def _leaves_out(self, turns: Turns, i: int, text: str) -> bool:
    """Whether the prompt's text is the same whatever turn i says."""
    other = {**turns[i], "content": f"{turns[i]['content'] or ''}x"}
    try:
      return self._text([*turns[:i], other, *turns[i + 1 :]], prompt=True) == text
    except ValueError:
      return False

  def _added(self, whole: str, turns: Turns) -> list[bool]:
    """For each character of the conversation whether an assistant's turn adds it."""
    said = [False] * len(whole)
    assistants = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    for i in assistants:
      before = self._text(turns[:i], prompt=True)
      after = self._text(turns[: i + 1]).rstrip()
      # Some templates write a last token after all turns, which no turn in the middle has.
      for end in (after, after.removesuffix(self.eos_token).rstrip()):
        if end.startswith(before) and whole.startswith(end):
          said[len(before) : len(end)] = [True] * (len(end) - len(before))
          break
    if assistants and not any(said):
      raise ValueError("the chat template has no {% generation %}, and its assistant's turns do "
                       "not go on from its generation prompt: they cannot be "
                       "trained.")  # fmt: skip
    return said

  def _text(self, turns: Turns, prompt: bool = False) -> str:
    return re.sub(_MARKS, "", self._render(turns, prompt))

  def _render(self, turns: Turns, prompt: bool = False) -> str:
    known = checked(turns)
    messages = [{k: v for k, v in turn.items() if v is not None} for turn in known]
    try:
      return _compiled(self.source).render(
        messages=messages, tools=None, documents=None, add_generation_prompt=prompt,
        bos_token=self.bos_token, eos_token=self.eos_token,
      )  # fmt: skip
    except Exception as error:  # whatever the template's own expressions raise
      raise ValueError(f"the chat template refuses the turns: {_reason(error)}.") from error
