"""Drafters from names: heads with trees, draft models, unions, rescored heads."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.base import Drafter, Params, Target
from specjax.checkpoints import formats
from specjax.checkpoints.heads import Loaded
from specjax.data import ngram as bigrams
from specjax.data import sources
from specjax.decoding import spec
from specjax.decoding.builders.draft_length import build_draft_length
from specjax.decoding.builders.tree import FILE, build_tree, chain
from specjax.decoding.model import Model, load, resolve
from specjax.decoding.spec import Part
from specjax.draft_length import DRAFT_LENGTHS
from specjax.drafters import DRAFTERS, HEADS, draft_vocabulary, drafting
from specjax.drafters.adaptive_model import adaptive_model
from specjax.drafters.base import Head
from specjax.drafters.draft_tree import draft_tree
from specjax.drafters.named import is_file
from specjax.drafters.rescored import local, ngram
from specjax.drafters.stateless import none
from specjax.drafters.token_recycling import token_recycling
from specjax.drafters.union import union
from specjax.models.ensemble import ensemble
from specjax.trees import IID, TREES, Static
from specjax.trees import load as load_tree
from specjax.trees.prompt_token_budget import allocate
from specjax.trees.static import Choices

DEFAULT_NODES = 8
MOST_NODES = 4096
ANY_HEAD = "head"  # of the kind that its directory holds
HEAD_NAMES = (*HEADS, ANY_HEAD)
RESCORINGS: dict[str, Callable[..., Drafter]] = {"ngram": ngram, "local": local}
ROWS: dict[str, Callable[..., tuple[int, ...]]] = {"rows": allocate}
ENSEMBLES: dict[str, Callable[..., Target]] = {"ensemble": ensemble}
# What may follow a name with a slash, by kind; nothing may follow the other drafters.
OF_TREES: dict[str, Callable] = {FILE: load_tree, **TREES}
OF_HEADS: dict[str, Mapping[str, Any]] = {
  "tree": OF_TREES, "rescoring": RESCORINGS, "pseudo rows": ROWS,
}  # fmt: skip
OF_MODELS: dict[str, Mapping[str, Any]] = {
  "ensemble": ENSEMBLES, "tree": OF_TREES, "draft_length": DRAFT_LENGTHS,
}  # fmt: skip
OF_RECYCLING: dict[str, Mapping[str, Any]] = {"tree": {FILE: load_tree, "static": Static}}

Built = tuple[str, Drafter, Params]


def make_drafter(
  model: Model, drafter: Any, *, tree: Any = None, draft_length: Any = None
) -> tuple[Drafter, Params]:
  """A drafter for `model`, and its weights; see `Decoder` for the arguments.

  Raises:
    ValueError: an unknown name, a missing part, or a draft that does not fit the model.
  """
  return build_drafter(model, drafter, tree, draft_length)[1:]


def build_drafter(model: Model, given: Any, tree: Any = None, draft_length: Any = None) -> Built:
  """(canonical name, drafter, weights), otherwise as `make_drafter`."""
  if isinstance(given, str):
    parts = spec.parse("drafter", given)
    if len(parts) == 1:
      return _single(model, parts[0], tree, draft_length)
    _refuse(given, tree, draft_length)
    names, drafters, weights = zip(*(_single(model, p, joined=True) for p in parts), strict=True)
    return "+".join(names), union(*drafters), weights
  if isinstance(given, Model):
    return _draft_model(model, Part("draft_model"), tree, draft_length, given)
  part, own = spec.with_weights("drafter", given, Drafter, Head)
  if isinstance(part, Drafter):
    _refuse(part.name, tree, draft_length)
    return part.name, part, own
  _refuse(part.name, None, draft_length)
  suffix, shape = build_tree(chain(part.depth) if tree is None else tree)
  return part.name + suffix, drafting.drafter(part, shape), own


def _refuse(name: str, tree: Any, draft_length: Any) -> None:
  for what, given, of in (("tree", tree, "a head or draft_model"),
                          ("draft_length", draft_length, "draft_model")):  # fmt: skip
    if given is not None:
      raise ValueError(f"drafter={name!r}, {what}={given!r:.40}: accepted for {of} only.")


def is_head(name: str) -> bool:
  """Whether a part of this name is a trained head."""
  return name in HEAD_NAMES or is_file(name)


def knobs(name: str, draft_length: bool = False) -> dict[str, spec.Number | None]:
  """The knobs of a drafter or a head, `nodes` the first.

  Args:
    draft_length: whether a draft-length policy ends the chain of a draft model.
  """
  if is_head(name):
    return {"nodes": DEFAULT_NODES}
  found = spec.knobs(adaptive_model if draft_length else DRAFTERS[name])
  depth = found.pop("depth", None)  # a builder counts tokens, a name nodes, the root included
  return found if depth is None else {"nodes": 1 + int(depth), **found}


def _settle(part: Part, draft_length: bool = False) -> tuple[str, dict[str, Any]]:
  """(canonical name, arguments of the builder) of a drafter.

  Raises:
    ValueError: a draft of less than 2 nodes, or more than MOST_NODES.
  """
  name, given = spec.settle("drafter", part, knobs(part.name, draft_length))
  if (nodes := given.pop("nodes", None)) is not None:
    if not 2 <= nodes <= MOST_NODES:
      raise ValueError(f"drafter={spec.show([part])!r}: a draft has 2 to {MOST_NODES} nodes; for "
                       "none use drafter='none'.")  # fmt: skip
    key, count = ("nodes", nodes) if part.name == "token_recycling" else ("depth", nodes - 1)
    given = {key: count, **given}
  return name, given


def _single(
  model: Model, part: Part, tree: Any = None, draft_length: Any = None, joined: bool = False
) -> Built:
  """A drafter of one part with its decorations, which may be `joined` to others."""
  if is_head(part.name):
    return _head(model, part, tree, draft_length)
  builder = spec.look_up("drafter", part, DRAFTERS, HEADS, {ANY_HEAD: load_head})
  if part.name == "draft_model":
    return _draft_model(model, part, tree, draft_length, joined=joined)
  if part.name == "token_recycling":
    return _token_recycling(model, part, tree, draft_length)
  _refuse(part.name, tree, draft_length)
  spec.decorations(part, {})
  name, arguments = _settle(part)
  if part.name != "denoiser":
    return name, builder(*arguments.values()), ()
  small = load_small(model, part)
  made = builder(small.denoiser, model.target, *arguments.values())
  return name, made, small.params


def _either(part: Part, found: Mapping[str, Part], kind: str, given: Any) -> Any:
  """The part of a kind that the name holds, or else the argument of that kind."""
  if given is not None and kind in found:
    raise ValueError(f"drafter={spec.show([part])!r}, {kind}={given!r:.40}: accepted is one of the "
                     "two.")  # fmt: skip
  return found.get(kind, given)


def load_head(model: Model, part: Part) -> tuple[str, Loaded]:
  """A trained head that a part names, by default the zoo's for the model: (its path, the head).

  It raises ValueError for no such head, and for one in a Python file that the part does not name.
  """
  if part.name in HEADS:
    path = part.text or f"{pathlib.Path(model.name).name}-{part.name}"
  else:
    path = spec.text_of(part, "a trained head")
  loaded = formats.load(resolve(path), model.config, model.dtype, part.name)
  if part.name in HEADS and part.name != loaded.head.name:
    raise ValueError(f"drafter={spec.show([part])!r}: {path} is a head of {loaded.head.name}.")
  return path, loaded


def _head(model: Model, part: Part, tree: Any, draft_length: Any) -> Built:
  """A trained head with its tree, or rescored."""
  _refuse(part.name, None, draft_length)
  found = spec.decorations(part, OF_HEADS)
  rows = found.pop("pseudo rows", None)
  tree = _either(part, found, "tree", tree)
  name, arguments = _settle(part)
  if rows is not None and (found or tree is not None):
    raise ValueError(f"drafter={spec.show([part])!r}: rows are shared out to the nodes of the "
                     "head's own tree, without another tree or a rescoring.")  # fmt: skip
  if arguments and (found or tree is not None):
    raise ValueError(f"drafter={spec.show([part])!r}: its tree or rescoring decides the nodes.")
  path, loaded = load_head(model, part)
  if "rescoring" in found:
    _refuse(part.name, tree, None)
    return _rescored(model, name, loaded, found["rescoring"])
  if tree is None:
    depth = arguments.get("depth", DEFAULT_NODES - 1)
    choices = loaded.choices or chain(loaded.head.depth)  # in order of worth
    if arguments and depth > len(choices):
      raise ValueError(f"nodes={depth + 1}: {path} has a tree of {len(choices) + 1} nodes at most.")
    if rows is not None:
      name, counts = _shared_rows(name, path, loaded, choices[:depth], rows)
      return name, drafting.drafter(loaded.head, Static(choices[:depth]), counts), loaded.params
    return name, drafting.drafter(loaded.head, Static(choices[:depth])), loaded.params
  suffix, shape = build_tree(tree)
  if shape.depth == 0:
    return "none", none(), ()
  return name + suffix, drafting.drafter(loaded.head, shape), loaded.params


def _shared_rows(
  name: str, path: str, loaded: Loaded, choices: Choices, part: Part
) -> tuple[str, tuple[int, ...]]:
  """(name, pseudo rows of each node), by the hit rates of the head."""
  label, budget = spec.settle("drafter", part, spec.knobs(allocate))
  if loaded.head.pseudo is None or loaded.hit_rates is None:
    raise ValueError(f"{name}/{label}: {path} has no pseudo rows, or no hit rates by which they "
                     "are shared out: accepted after hidden_transfer and ppd.")  # fmt: skip
  return f"{name}/{label}", allocate(choices, loaded.hit_rates, **budget)


def _rescored(model: Model, name: str, loaded: Loaded, part: Part) -> Built:
  """A trained head whose guesses a bigram table or a small LM rescores."""
  builder = RESCORINGS[part.name]
  label, arguments = spec.settle("drafter", part, spec.knobs(builder))
  if part.name == "local":
    small = load_small(model, part)
    drafter = builder(loaded.head, small.target, **arguments)
    return f"{name}/{label}", drafter, {"head": loaded.params, "lm": small.params}
  source = sources.open_source(spec.text_of(part, "texts", "FILE.jsonl"))
  texts = [model.encode(sources.text_of(source[i], "text", i)) for i in range(len(source))]
  ids = draft_vocabulary.ids(loaded.params)
  vocabulary = None if ids is None else np.asarray(ids)
  table = bigrams.bigram(texts, model.config.vocab_size, vocabulary)
  weights = {"head": loaded.params, "ngram": jnp.asarray(table)}
  return f"{name}/{label}", builder(loaded.head, **arguments), weights


def _token_recycling(model: Model, part: Part, tree: Any, draft_length: Any) -> Built:
  """Token Recycling with the published tree, or a static one."""
  _refuse(part.name, None, draft_length)
  tree = _either(part, spec.decorations(part, OF_RECYCLING), "tree", tree)
  name, arguments = _settle(part)
  if tree is None:
    return name, token_recycling(model.target, **arguments), ()
  if arguments:
    raise ValueError(f"drafter={spec.show([part])!r}: its tree decides the nodes.")
  suffix, shape = build_tree(tree)
  if not isinstance(shape, Static):
    raise ValueError(f"drafter={name + suffix!r} has no probabilities: it takes a static tree.")
  if shape.depth == 0:
    return "none", none(), ()
  return name + suffix, token_recycling(model.target, tree=shape), ()


def load_small(model: Model, part: Part, given: Model | None = None) -> Model:
  """The model that a part names, loaded as `model` is, whose vocabulary it must share.

  Raises:
    ValueError: it does not, or it is of masked diffusion and no denoiser is asked for.
  """
  if given is None:
    name = spec.text_of(part, "a model", hint=", a zoo name or directory")
    given = load(name, model.dtype, weights=model.weights)
  small = given
  if part.name != "denoiser" and not small.config.causal:
    raise ValueError(f"{part.name}[{small.name}] sees both sides of a token (is_causal is false): "
                     "accepted is a causal model.")  # fmt: skip
  if small.config.vocab_size != model.config.vocab_size:
    raise ValueError(
      f"{part.name}[{small.name}] has a vocabulary of {small.config.vocab_size}, "
      f"{model.name} one of {model.config.vocab_size}: they must share one."
    )
  return small


def _draft_model(
  model: Model, part: Part, tree: Any, draft_length: Any, given: Model | None = None,
  joined: bool = False,
) -> Built:  # fmt: skip
  """A small LM, or two as one, with a chain, a tree, or a chain that a policy ends."""
  found = spec.decorations(part, OF_MODELS)
  tree = _either(part, found, "tree", tree)
  length = _either(part, found, "draft_length", draft_length)
  small = load_small(model, part, given)
  name, arguments = _settle(part._replace(text=small.name), length is not None)
  if tree is not None and (arguments or length is not None):
    raise ValueError(f"drafter={spec.show([part])!r}: accepted is one of nodes, a tree, or a draft "
                     "length with nodes as its most.")  # fmt: skip
  target, weights, width = small.target, small.params, small.config.width
  if "ensemble" in found:
    second = found["ensemble"]
    other = load_small(model, second)
    label, knob = spec.settle("drafter", second, spec.knobs(ensemble))
    target = ensemble(target, other.target, **knob)
    name, weights, width = f"{name}/{label}", (weights, other.params), model.config.vocab_size
  depth = arguments.get("depth", int(knobs(part.name, length is not None)["nodes"] or 0) - 1)
  if tree is not None:
    suffix, shape = build_tree(tree)
    if shape.depth == 0:
      return "none", none(), ()
    return name + suffix, draft_tree(target, shape), weights
  if length is not None:
    label, policy, own = build_draft_length(length, width, depth)
    return f"{name}/{label}", adaptive_model(target, policy, depth), (weights, own)
  if joined:  # a union takes sources that write nothing while they draft
    return name, draft_tree(target, IID(chain(depth))), weights
  return name, DRAFTERS[part.name](target, depth), weights
