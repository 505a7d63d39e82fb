"""Rows of text about every part that has a name, and about the zoo."""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from specjax.base import Drafter
from specjax.checkpoints.formats import format_of
from specjax.diffusion.policies import ADDED, GUIDED, POLICIES
from specjax.draft_length import DRAFT_LENGTHS
from specjax.drafters import DRAFTERS
from specjax.heads import HEADS
from specjax.models.caches import CACHES
from specjax.models.config import Config
from specjax.models.denoiser import denoiser as network
from specjax.models.skipping import SKIPPINGS
from specjax.models.transformer import target
from specjax.names import grammar, spelling
from specjax.names.build import denoising, draft_length, drafters, head, processors
from specjax.names.build.denoising import DECORATIONS
from specjax.names.build.tree import fields
from specjax.names.build.verifier import REFLECTIONS
from specjax.names.load import ZOO
from specjax.processors import PROCESSORS
from specjax.trees import TREES, has_paths
from specjax.trees import build as build_tree
from specjax.verifiers import VERIFIERS

_LABEL = re.compile(r"\b(?:GREEDY-EXACT|EXACT|LOSSY)\b")
_SOURCE = re.compile(r"\d{4}\.\d{5}")
_FIGURE = re.compile(r"^Measured: (.+) \((\w+)\)$", re.MULTILINE)
_TRAIN = re.compile(r"^Train: (.+(?:\n.+)*)", re.MULTILINE)

# Arguments of a search that options of the command set, and no name.
SEARCH_OPTIONS = "max_new_tokens", "max_new_bytes", "temperature", "seed", "first"

_CONFIG = Config(8, 8, 4, 1, 1, 8, 8)
_SEES_BOTH = dataclasses.replace(_CONFIG, causal=False)
_TARGET = target(_CONFIG)
_EXAMPLES = {
  "draft_model": (_TARGET,),
  "denoiser": (network(_SEES_BOTH, 7, False),),
  "forced": (lambda *_, **__: None,),
}


class Row(NamedTuple):
  """What a part's docstring says of it.

  Attributes:
    name: what is typed, with what it takes in brackets.
    parameters: with their defaults.
    label: the exactness, or how a drafter proposes; "" where neither is said.
    source: the number on arXiv, or "".
    sentence: the first one, without the label.
    figures: (what was measured, the folder of `benchmarks/results`), of lines
      "Measured: 1.91 tokens per pass (gsm8k)".
    train: the command that trains it, of a line "Train: ..", or "".
  """

  name: str
  parameters: str
  label: str
  source: str
  sentence: str
  figures: tuple[tuple[str, str], ...]
  train: str


Rows = dict[str, tuple[Callable, Mapping[str, Any], str]]


def _row(name: str, builder: Callable, known: Mapping[str, Any], label: str, prefix: str) -> Row:
  says = inspect.getdoc(builder) or ""
  found = _LABEL.search(says)
  about, *_ = says.partition("\n\nArgs:\n")
  source = _SOURCE.search(about) or _SOURCE.search(inspect.getmodule(builder).__doc__ or "")
  brackets = f"[{grammar.BRACKETS[name]}]" if name in grammar.BRACKETS else ""
  sentence = says.split("\n")[0].removeprefix(f"{found[0]}: " if found else "")
  train = _TRAIN.search(says)
  return Row(
    f"{prefix}{name}{brackets}",
    ", ".join(f"{key}={value}".rstrip("=") for key, value in known.items()),
    label or (found[0] if found else ""),
    source[0] if source else "",
    sentence[:1].upper() + sentence[1:],
    tuple(_FIGURE.findall(says)),
    " ".join(train[1].split()) if train else "",
  )


def _example(name: str, build: Callable[..., Drafter]) -> Drafter:
  return build(*_EXAMPLES.get(name, ()), *drafters.target_of(build, _TARGET))


def kinds() -> dict[str, tuple[str, Rows]]:
  """By kind, (what precedes a name in the list, {name: (builder, parameters, label)})."""
  return {
    "drafters": ("", {
      name: (build, drafters.parameters(name), _example(name, build).proposal)
      for name, build in DRAFTERS.items()
    }),
    "drafters by load": ("", {
      name: (build, drafters.parameters(name), "deterministic")
      for name, build in drafters.BY_LOAD.items()
    }),
    "heads": ("", {
      name: (HEADS[name][0] if name in HEADS else head.load_head, drafters.parameters(name), "")
      for name in drafters.HEAD_NAMES
    }),
    "trees, after a head or draft_model": ("/", {
      name: (tree, _fields(name), _proposal(name)) for name, tree in drafters.OF_TREES.items()
    }),
    "draft lengths, after a head or draft_model": ("/", {
      name: (build, draft_length.parameters(name), "truncated" if build().drops else "chain")
      for name, build in DRAFT_LENGTHS.items()
    }),
    "ensembles, after draft_model": ("/", _plain(drafters.ENSEMBLES)),
    "exits, after draft_model": ("/", _plain(drafters.EXITS)),
    "prompts, after draft_model": ("/", _plain(drafters.PROMPTS)),
    "passes, after draft_model": ("/", _plain(drafters.AT_ONCE)),
    "bridges, after draft_model": ("/", _plain(drafters.BRIDGES)),
    "vocabularies, after a head or draft_model": ("/", _plain(drafters.VOCABULARIES)),
    "caches, of --cache or after self_speculative": ("/", _plain(CACHES)),
    "skipping, of --skipping": ("", _plain(SKIPPINGS)),
    "sources, of a union": ("/", _plain(drafters.OF_SOURCES)),
    "rescoring, after a head": ("/", _plain(drafters.RESCORINGS)),
    "pseudo rows, after hidden_transfer, ppd or masked_slots": ("/", _plain(drafters.ROWS)),
    "verifiers": ("", {
      name: (build, grammar.parameters(build), build().exactness)
      for name, build in VERIFIERS.items()
    }),
    "reflection, after a verifier": ("/", _plain(REFLECTIONS)),
    "processors": ("", {
      name: (build, processors.parameters(name), "") for name, build in PROCESSORS.items()
    }),
    "denoising policies": ("", _plain(POLICIES | GUIDED)),
    "any-subset decoding, in place of a policy": ("", _plain(denoising.ANY_SUBSET)),
    "additions to a policy": ("+", _plain(ADDED)),
    **{f"{kind}, after a policy": ("/", _plain(table)) for kind, table in DECORATIONS.items()},
  }  # fmt: skip


def parts() -> dict[str, list[Row]]:
  """The rows of all parts by kind."""
  return {
    title: [_row(name, *row, prefix) for name, row in rows.items()]
    for title, (prefix, rows) in kinds().items()
  }


def searches(table: Mapping[str, Callable]) -> dict[str, list[Row]]:
  """The rows of `search.SEARCHES`, functions that take models and no name of a part."""
  rows = [
    _row(name, call, grammar.parameters(call, without=SEARCH_OPTIONS), "", "")
    for name, call in table.items()
  ]
  return {"searches, of the command search": rows}


def only(every: Mapping[str, list[Row]], what: str, others: Sequence[str]) -> dict[str, list[Row]]:
  """The rows of one kind, or those of one name; all where nothing is asked for.

  Raises:
    ValueError: `what` is neither, nor "zoo" or one of the `others`.
  """
  if not what:
    return dict(every)
  kinds = {title.split(",")[0]: title for title in every}
  if what in kinds:
    return {kinds[what]: every[kinds[what]]}
  named = {
    title: [row for row in rows if re.sub(r"^[/+]|\[.*", "", row[0]) == what]
    for title, rows in every.items()
  }
  found = {title: rows for title, rows in named.items() if rows}
  if not found and what != "zoo":
    names = [re.sub(r"^[/+]|\[.*", "", row[0]) for rows in every.values() for row in rows]
    near = spelling.nearest(what, [*kinds, *names, *others])
    raise ValueError(
      f"the part must be a name, or one of the kinds {', '.join(kinds)}, zoo, got {what!r}{near}."
    )
  return found


def _fields(tree: str) -> dict[str, Any]:
  """What the numbers of a tree's name set: its fields, or how many children a node has."""
  if tree not in TREES:
    return {}
  if has_paths(tree):
    return {"children of a node at each depth": ""}
  return {key: "" if value is None else value for key, value in fields(tree).items()}


def _proposal(tree: str) -> str:
  if tree not in TREES:
    return "its file's"
  needed = [key for key, value in _fields(tree).items() if value == ""]
  small = [2, 2] if has_paths(tree) else dict(zip(needed, (4, 2, 2), strict=False))
  return build_tree(tree, small).proposal


def _plain(table: Mapping[str, Callable]) -> Rows:
  return {name: (build, denoising.parameters(build), "") for name, build in table.items()}


def zoo() -> list[tuple[str, str]]:
  """(name, kind) of everything that ships with the package."""
  rows = []
  for path in sorted(ZOO.glob("*/config.json")):
    raw = json.loads(path.read_text())
    kind = "model" if raw.get("is_causal", True) else "masked diffusion model"
    if (form := format_of(raw)) is not None:
      kind = f"{raw.get('head', form)} head"
    elif raw.get("policy") == "learned":
      kind = "filter of the policy learned"
    rows.append((path.parent.name, kind))
  return rows


def heads(model: str) -> list[str]:
  """The trained heads that ship for a model, by the names that decode with it."""
  own, ending = f"{model}-", " head"
  return [k.removesuffix(ending) for n, k in zoo() if n.startswith(own) and k.endswith(ending)]
