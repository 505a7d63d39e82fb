"""Names of parts: one grammar, one parser, one printer.

    medusa-16                     a part, and the first of its parameters
    prompt_lookup-8,longest=4     the other parameters by their names
    medusa/static-4-2-1           the children of a node at each depth of a tree
    medusa-16[runs/my-head]       [..] says where its weights or its file are, or what text it takes
    draft_model-8[lm]/adaedl-0.7  a/b: b decorates a
    eagle+prompt_lookup           a+b: a and b together; / binds tighter
    prompt_lookup|eagle           a|b: b where a has nothing to say; + binds tighter
    my_file.py:my_head-16[run]    a head of one's own: its file and function, and its weights

Parameters are the arguments of a builder whose default is a number: the signature is their only
table.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from specjax import checks
from specjax.heads import HEADS
from specjax.names.spelling import nearest

Number = int | float

# What a name takes in brackets; heads, filters and students have a default, the zoo's.
BRACKETS = {
  "auto": "DRAFTER", "draft_model": "MODEL", "denoiser": "MODEL",
  "rest": "FILE.npz", "aded": "FILE.npz",
  "history": "FILE.npz", "trie": "FILE.npz", "suffix_decoding": "FILE.npz",
  "aggressive": "FILE.txt", "self_speculative": "FILE.json",
  "ngram": "FILE.jsonl", "trimmed": "FILE.jsonl",
  "local": "MODEL", "ensemble": "MODEL", "tree": "FILE.json", "specdecpp": "HEAD",
  "judge": "HEAD", "head": "HEAD", "reflective": "TEXT",
  "reflective_once": "TEXT", "constraint": "REGEX", "json_schema": "SCHEMA",
  "grammar": "FILE.lark", "forced": "SCHEMA", "stop_text": "TEXT", "penalties": "BIASES",
  "end_last": "TOKEN", "end_suppressed": "TOKEN",
  "learned": "FILTER", "adaptive": "DELIMITER", "reweighted": "MODEL", "student": "MODEL",
  "guided": "MODEL", "first": "ROUTERS", "duo": "ROUTERS",
  "switching": "MODEL", "superposed": "FILE.npz",
} | dict.fromkeys(HEADS, "HEAD")  # fmt: skip
_NUMBER = r"-(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_LABELLED = rf",([a-z]\w*)={_NUMBER[1:]}"
_HEAD = re.compile(rf"([^\[\]+:]+\.py:[A-Za-z_]\w*|[a-z]\w*)((?:{_NUMBER})*)((?:{_LABELLED})*)")


class Part(NamedTuple):
  """A part as it is named.

  Attributes:
    name: a key of one of the tables of parts, or FILE.py:FUNCTION.
    numbers: its first parameter, or the children of a node at each depth of a tree.
    text: what stands in brackets, None without.
    decorations: what follows with a slash.
    labelled: its other parameters, by name.
  """

  name: str
  numbers: tuple[Number, ...] = ()
  text: str | None = None
  decorations: tuple["Part", ...] = ()
  labelled: tuple[tuple[str, Number], ...] = ()


def parse(what: str, text: str) -> tuple[Part, ...]:
  """The parts of the name `text` that are joined by +; `what` is the argument that holds it.

  Raises:
    ValueError: the text does not follow the grammar.
  """
  terms: list[list[Part]] = [[]]
  at = 0
  while True:
    found = _HEAD.match(text, at)
    if not found:
      raise ValueError(_problem(what, text))
    at, inside = found.end(), None
    if text[at : at + 1] == "[":
      closing = _closing(text, at)
      if closing is None:
        raise ValueError(f"{what}={text!r}: a bracket is not closed.")
      inside, at = text[at + 1 : closing], closing + 1
    numbers = tuple(map(_number, re.findall(_NUMBER, found[2])))
    labelled = tuple((key, _number(value)) for key, value in re.findall(_LABELLED, found[4]))
    terms[-1].append(Part(found[1], numbers, inside, labelled=labelled))
    if at == len(text):
      return tuple(first._replace(decorations=tuple(rest)) for first, *rest in terms)
    if text[at] not in "/+":
      raise ValueError(_problem(what, text))
    if text[at] == "+":
      terms.append([])
    at += 1


def alternatives(text: str) -> list[str]:
  """The names that a name joins by |, outside brackets."""
  depths = itertools.accumulate((c == "[") - (c == "]") for c in text)
  cuts = [i for i, depth in enumerate(depths) if text[i] == "|" and not depth]
  return [text[i + 1 : j] for i, j in itertools.pairwise([-1, *cuts, len(text)])]


def parse_one(what: str, text: str) -> Part:
  """The part of a name that holds one, without decorations; ValueError otherwise."""
  first, *more = parse(what, text)
  if more or first.decorations:
    raise ValueError(f"`{what}` must be one part, without + and /, got {text!r}.")
  return first


def _closing(text: str, opening: int) -> int | None:
  """The index of the bracket that closes the one at `opening`."""
  depths = itertools.accumulate((c == "[") - (c == "]") for c in text[opening:])
  return next((opening + i for i, depth in enumerate(depths) if depth == 0), None)


def _number(text: str) -> Number:
  return int(text) if text.isdigit() else float(text)


def _problem(what: str, text: str) -> str:
  return (
    f"`{what}` must be NAME, NAME-NUMBER or NAME-NUMBER,KEY=NUMBER,.., with [PATH] after it or "
    f"not, / before a decoration and + before a second part, got {text!r}."
  )


def show(parts: Sequence[Part]) -> str:
  """The name that `parse` reads as these parts."""
  return "+".join("/".join(map(_one, (part, *part.decorations))) for part in parts)


def _one(part: Part) -> str:
  inside = "" if part.text is None else f"[{part.text}]"
  labelled = "".join(f",{key}={value!r}" for key, value in part.labelled)
  return "-".join((part.name, *map(repr, part.numbers))) + labelled + inside


def parameters(*builders: Callable, without: Sequence[str] = ()) -> dict[str, Number | None]:
  """What a name sets, with defaults, in order: the number arguments of `builders`.

  Args:
    without: arguments that something else decides.
  """
  found: dict[str, Number | None] = {}
  for builder in builders:
    for key, argument in inspect.signature(builder).parameters.items():
      is_number = isinstance(argument.default, int | float) or argument.annotation == int | None
      if is_number and key not in without:
        found[key] = argument.default
  return found


def bind(what: str, part: Part, known: Mapping[str, Number | None]) -> tuple[str, dict[str, Any]]:
  """(canonical name without decorations, arguments) of a part whose parameters are `known`.

  The name leaves out defaults; the arguments hold what was given, in the type of its default.

  Raises:
    ValueError: a parameter that is not known or given twice, a second number without a name, a
      broken number for a whole one, or brackets that nothing reads.
  """
  refuse_text(what, part)
  name = show([part._replace(decorations=())])
  given: dict[str, Any] = {}
  for key, number in _labels(what, part, known):
    default = known[key]
    kind = int if default is None else type(default)
    if kind is not float and not (isinstance(number, int) and (kind is int or number < 2)):
      accepted = "a whole number" if kind is int else "0 or 1"
      checks.refuse(f"{what}={name!r}: {key}", number, accepted)
    if not abs(number) <= checks.INT32:  # NaN too
      checks.refuse(f"{what}={name!r}: {key}", number, "below 2**31")
    if 0 < number < checks.TINY:
      checks.refuse(f"{what}={name!r}: {key}", number, f"0, or at least {checks.TINY:g}")
    given[key] = kind(number)
  return show([labelled(part.name, known, given, part.text)]), given


def labelled(
  name: str, known: Mapping[str, Any], given: Mapping[str, Any], text: str | None = None
) -> Part:
  """The part with these parameters, the first of `known` without its name, defaults left out."""
  own = {
    key: int(given[key]) if isinstance(given[key], bool) else given[key]
    for key, default in known.items()
    if key in given and given[key] != default
  }
  first = tuple(own.pop(key) for key in [*known][:1] if key in own)
  return Part(name, first, text, labelled=tuple(own.items()))


def _labels(what: str, part: Part, known: Mapping[str, Any]) -> list[tuple[str, Number]]:
  """The parameters of a part with their names, each in `known` and given once."""
  name, keys = show([part._replace(decorations=())]), [*known]
  takes = ", ".join(f"{k}={v}" if isinstance(v, int | float) else k for k, v in known.items())
  if len(part.numbers) > len(keys):
    raise ValueError(f"{what}={name!r}: {part.name} takes {takes or 'no number'}.")
  if len(part.numbers) > 1:
    pairs = (*zip(keys[1:], part.numbers[1:], strict=False), *part.labelled)
    form = part._replace(numbers=part.numbers[:1], decorations=(), labelled=pairs)
    raise ValueError(
      f"`{what}` must have one number without a name, as in {show([form])}, got {name!r}."
    )
  found = [*zip(keys, part.numbers, strict=False), *part.labelled]
  given = [key for key, _ in found]
  for key in given:
    if key not in known:
      raise ValueError(
        f"{what}={name!r}: {part.name} takes {takes or 'no number'}, not {key}{nearest(key, keys)}."
      )
    if given.count(key) > 1:
      raise ValueError(f"`{key}` must be given once, got {name!r}.")
  return found


def check_ranges(what: str, numbers: Mapping[str, Number], table: Callable) -> None:
  """Raises ValueError for a number out of the range of its annotation in `table`, if it has one."""
  for key, kind in get_type_hints(table, include_extras=True).items():
    if key in numbers and hasattr(kind, "__metadata__"):
      check = checks.whole if isinstance(numbers[key], int) else checks.number
      check(f"{what}: {key}", numbers[key], *kind.__metadata__)


def look_up(what: str, part: Part, *tables: Mapping[str, Any]) -> Any:
  """The row of the table that has the name.

  Raises:
    ValueError: no table has it.
  """
  for table in tables:
    if part.name in table:
      return table[part.name]
  names = [name for table in tables for name in table]
  near = nearest(part.name, names)
  accepted = "a name that `specjax list` shows" if near else f"one of {', '.join(names)}"
  raise ValueError(f"`{what}` must be {accepted}, got {part.name!r}{near}.")


def decorations(part: Part, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Part]:
  """The decorations of a part by kind, the key of the table that has their names.

  Raises:
    ValueError: a decoration that no table has, or two of one kind.
  """
  found: dict[str, Part] = {}
  for one in part.decorations:
    kind = next((kind for kind, table in tables.items() if one.name in table), None)
    if kind is None:
      names = ", ".join(name for table in tables.values() for name in table) or "none"
      raise ValueError(f"{part.name}/{one.name}: after {part.name}/ may follow {names}.")
    if kind in found:
      raise ValueError(
        f"{part.name}/{one.name}: `{kind}` must be given once, and {found[kind].name} is one."
      )
    found[kind] = one
  return found


def refuse_text(what: str, part: Part) -> None:
  """Raises ValueError where a part has brackets that nothing reads."""
  if part.text is not None and part.name not in BRACKETS and not checks.is_own_file(part.name):
    raise ValueError(f"{what}={show([part])!r}: {part.name} takes nothing in brackets.")


def text_of(part: Part, what: str, kind: str = "PATH", hint: str = "") -> str:
  """What stands in the brackets of a part; a ValueError that names `what` where there are none."""
  if part.text is None:
    raise ValueError(f"{part.name}: it needs {what}, {part.name}[{kind}]{hint}.")
  return part.text


def with_weights(what: str, given: Any, *kinds: type) -> tuple[Any, Any]:
  """(part, its weights), given as this pair or as the part alone; ValueError for all else."""
  if isinstance(given, kinds):
    return given, ()
  if type(given) is tuple and len(given) == 2 and isinstance(given[0], kinds):
    return given
  names = " or a ".join(kind.__name__ for kind in kinds)
  raise ValueError(
    f"`{what}` must be a name, a {names}, or a pair of one and its weights, got {given!r:.60}."
  )
