"""Chat templates in Jinja, as checkpoints bring them, rendered in a sandbox.

A template sees what transformers documents for its own: `messages`, `add_generation_prompt`,
`bos_token` and `eos_token`, `tools` and `documents` (None where none are given); `raise_exception`,
`strftime_now`, the filter `tojson`, `break` and `continue`; and the block `{% generation %}`.
"""

import dataclasses
import datetime
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from specjax import checks
from specjax.data.chat import EMPTY, Turns, checked, content_of, in_roles, plain
from specjax.data.tokenizer import Tokenizer

# These characters enclose what a generation block writes. As lone surrogates they are in no UTF-8
# text, so no turn holds them.
_OPEN, _CLOSE = "\ud800", "\udfff"
_MARKS = f"([{_OPEN}{_CLOSE}])"

# What every template is given, besides functions.
GIVEN = {"messages", "add_generation_prompt", "bos_token", "eos_token"} | {
  "raise_exception", "strftime_now",
}  # fmt: skip


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


def _lost(turns: Turns, text: str) -> bool:
  """Whether a list of parts was written as Python writes it."""
  contents = (turn.get("content") for turn in turns)
  return any(str(x) in text for x in contents if isinstance(x, list | tuple))


@functools.lru_cache(16)
def _compiled(source: str) -> jinja2.Template:
  try:
    return _sandbox().from_string(source)
  except jinja2.TemplateSyntaxError as error:
    raise ValueError(
      f"the chat template has an error in line {error.lineno}: {_reason(error)}."
    ) from None
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
  not trained; `untrained` counts it.

  A template is handed the messages as they are, a developer's as the system's unless it names that
  role; where it takes a list of parts, or None, for a text, as a text.

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

  @functools.cached_property
  def variables(self) -> frozenset[str]:
    """See `ChatTemplate`."""
    found = jinja2.meta.find_undeclared_variables(_sandbox().parse(self.source))
    return frozenset(found) - GIVEN

  def prompt(
    self, tokenizer: Tokenizer, turns: Turns, values: Mapping[str, Any] = EMPTY
  ) -> list[int]:
    """See `ChatTemplate`; a template that leaves out a turn of a role of its own is refused too.

    A line on stderr says where it leaves out one of the user's or of the assistant's.
    """
    text = self._text(turns, prompt=True, values=values)
    for i, turn in enumerate(turns):
      usual = turn["role"] in ("user", "assistant")
      if (usual and content_of(turn).strip() in text) or not self._leaves_out(
        turns, i, text, values
      ):
        continue
      said = f"turns[{i}]: role={turn['role']!r}: the chat template leaves this turn out."
      if not usual:
        raise ValueError(said)
      print(said, file=sys.stderr)
    return tokenizer.encode(text)

  def _leaves_out(self, turns: Turns, i: int, text: str, values: Mapping[str, Any]) -> bool:
    """Whether the prompt's text is the same whatever turn i says."""
    other = {**turns[i], "content": f"{content_of(turns[i])}x"}
    try:
      return self._text([*turns[:i], other, *turns[i + 1 :]], True, values) == text
    except ValueError:
      return False

  def untrained(self, tokenizer: Tokenizer, turns: Turns) -> int:
    """See `ChatTemplate`: of turns that the template writes otherwise once others follow."""
    marked = self._render(turns)
    if _OPEN in marked:
      return 0
    answers = [
      after[len(before) :]
      for before, after, there in self._answers(marked, turns)
      if there is None and after.startswith(before)
    ]
    return sum(len(tokenizer.encode(text)) for text in answers)

  def _added(self, whole: str, turns: Turns) -> list[bool]:
    """For each character of the conversation whether an assistant's turn adds it."""
    said = [False] * len(whole)
    answers = list(self._answers(whole, turns))
    for before, _, end in answers:
      if end is not None:
        said[len(before) : len(end)] = [True] * (len(end) - len(before))
    if answers and not any(after.startswith(before) for before, after, _ in answers):
      raise ValueError(
        "the chat template has no {% generation %}, and its assistant's turns do "
        "not go on from its generation prompt: they cannot be "
        "trained."
      )
    return said

  def _answers(self, whole: str, turns: Turns) -> Iterator[tuple[str, str, str | None]]:
    """For each turn of the assistant what is written before it, and after it where it is the last.

    The third is what the whole conversation begins with up to the turn's end, None where that is
    not so.
    """
    for i, turn in enumerate(turns):
      if turn["role"] == "assistant":
        before = self._text(turns[:i], prompt=True)
        after = self._text(turns[: i + 1]).rstrip()
        # Some templates write a last token after all turns, which no turn in the middle has.
        ends = (after, after.removesuffix(self.eos_token).rstrip())
        there = (end for end in ends if end.startswith(before) and whole.startswith(end))
        yield before, after, next(there, None)

  def _text(self, turns: Turns, prompt: bool = False, values: Mapping[str, Any] = EMPTY) -> str:
    return re.sub(_MARKS, "", self._render(turns, prompt, values))

  def _render(self, turns: Turns, prompt: bool = False, values: Mapping[str, Any] = EMPTY) -> str:
    known = in_roles(checked(turns), self.roles)
    simple = plain(known)
    if simple == known:
      return self._rendered(known, prompt, values)
    try:
      text = self._rendered(known, prompt, values)
    except ValueError:
      return self._rendered(simple, prompt, values)
    if not _lost(known, text) and "None" not in text:
      return text
    other = self._rendered(simple, prompt, values)
    wrote_none = text.replace("None", "") == other.replace("None", "")
    return other if _lost(known, text) or wrote_none else text

  def _rendered(self, turns: Turns, prompt: bool, values: Mapping[str, Any]) -> str:
    messages = [
      {k: v for k, v in turn.items() if v is not None or k == "content"} for turn in turns
    ]
    try:
      return _compiled(self.source).render(
        messages=messages,
        add_generation_prompt=prompt,
        bos_token=self.bos_token,
        eos_token=self.eos_token,
        **{"tools": None, "documents": None, **values},
      )
    except Exception as error:  # whatever the template's own expressions raise
      raise ValueError(f"the chat template refuses the turns: {_reason(error)}.") from error
