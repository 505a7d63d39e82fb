"""What the builders of drafters share: which names there are, their parameters, and small models.

A trained head is built by `build.head`, a draft model by `build.draft_model`, and all others with
their unions and choices by `build.drafter`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from specjax import checks
from specjax.base import Drafter, Params, Target
from specjax.data import vocabulary
from specjax.draft_length import DRAFT_LENGTHS
from specjax.drafters import DRAFTERS
from specjax.drafters.combine.by_load import by_load
from specjax.drafters.combine.rescored import local, ngram
from specjax.drafters.combine.union import agreeing
from specjax.drafters.models.adaptive_model import adaptive_model
from specjax.drafters.models.by_text import by_text
from specjax.drafters.models.masks import masks
from specjax.drafters.models.rapid import rapid
from specjax.drafters.retrieval.recycled import recycled
from specjax.heads import HEADS
from specjax.heads.draft_vocabulary import choose
from specjax.heads.lexical_units import lexical_units
from specjax.heads.named import is_own
from specjax.models.caches import CACHES
from specjax.models.common_tokens import common_tokens
from specjax.models.ensemble import ensemble
from specjax.models.exits import sorted_exits
from specjax.names import grammar
from specjax.names.build.tree import FILE
from specjax.names.grammar import Part
from specjax.names.load import Model, has_few_bits, load, load_quick
from specjax.trees import TREES, Static
from specjax.trees import load as load_tree
from specjax.trees.prompt_token_budget import share_rows

DEFAULT_NODES = 8
MOST_NODES = 4096
ANY_HEAD = "head"  # of the kind that its directory holds
BY_LOAD: dict[str, Callable[..., Drafter]] = {"auto": by_load}
HEAD_NAMES = (*HEADS, ANY_HEAD)
RESCORINGS: dict[str, Callable[..., Drafter]] = {
  "ngram": ngram,
  "local": local,
  "recycled": recycled,
}
UNITS: dict[str, Callable[..., Drafter]] = {"units": lexical_units}
ROWS: dict[str, Callable] = {"rows": share_rows, **UNITS}
VOCABULARIES: dict[str, Callable[..., np.ndarray]] = {"trimmed": choose}
EXITS: dict[str, Callable[..., Target]] = {"sorted": sorted_exits}
ENSEMBLES: dict[str, Callable[..., Target]] = {"ensemble": ensemble}
PROMPTS: dict[str, Callable[..., Drafter]] = {"rapid": rapid}
AT_ONCE: dict[str, Callable[..., Drafter]] = {"masks": masks}
# For a draft model of another vocabulary; the first is taken where a name has none.
BRIDGES: dict[str, Callable] = {"common_tokens": common_tokens, "by_text": by_text}
# What may follow a name with a slash, by kind; nothing may follow the other drafters.
OF_TREES: dict[str, Callable] = {FILE: load_tree, **TREES}
OF_HEADS: dict[str, Mapping[str, Any]] = {
  "tree": OF_TREES, "rescoring": RESCORINGS, "pseudo rows": ROWS, "vocabulary": VOCABULARIES,
  "draft_length": DRAFT_LENGTHS,
}  # fmt: skip
OF_MODELS: dict[str, Mapping[str, Any]] = {
  "ensemble": ENSEMBLES, "tree": OF_TREES, "draft_length": DRAFT_LENGTHS, "prompt": PROMPTS,
  "vocabulary": VOCABULARIES, "exits": EXITS, "bridge": BRIDGES, "masks": AT_ONCE,
}  # fmt: skip
OF_SOURCES: dict[str, Callable] = {"pruned": agreeing}  # of a union, see `union`
OF_OWN_LAYERS: dict[str, Mapping[str, Any]] = {"cache": CACHES}
OF_RECYCLING: dict[str, Mapping[str, Any]] = {"tree": {FILE: load_tree, "static": Static}}

Built = tuple[str, Drafter, Params]


def refuse(name: str, tree: Any, draft_length: Any) -> None:
  for what, given, of in (
    ("tree", tree, "a head or draft_model"),
    ("draft_length", draft_length, "a head or draft_model"),
  ):
    if given is not None:
      raise ValueError(
        f"`{what}` must be left out for drafter={name!r}, as only {of} take it, got {given!r:.40}."
      )


def is_head(name: str) -> bool:
  """Whether a part of this name is a trained head."""
  return name in HEAD_NAMES or (checks.is_own_file(name) and is_own(name))


def parameters(name: str, draft_length: bool = False) -> dict[str, grammar.Number | None]:
  """The parameters of a drafter or a head, `nodes` the first.

  Args:
    draft_length: whether a draft-length policy ends the chain of a draft model.
  """
  if is_head(name) or name in BY_LOAD:
    return {"nodes": DEFAULT_NODES}
  return grammar.parameters(adaptive_model if draft_length else builder_of(name))


def builder_of(name: str) -> Callable[..., Drafter]:
  """What builds a drafter that is not trained; of FILE.py:NAME, the function of that name.

  A Drafter of that name is built already.

  Raises:
    ValueError: nothing has this name, see `checks.own_part`.
  """
  if not checks.is_own_file(name):
    return grammar.look_up("drafter", Part(name), DRAFTERS, HEADS, {ANY_HEAD: None}, BY_LOAD)
  found = checks.own_part("drafter", name)
  if isinstance(found, Drafter):
    return lambda: found
  if not callable(found):
    checks.refuse("drafter", found, f"a Drafter or a function in {name.rpartition(':')[0]}")
  return found


def target_of(builder: Callable[..., Drafter], target: Target) -> tuple[Target, ...]:
  """What a builder in DRAFTERS takes of the target: itself where it has an argument `target`."""
  return (target,) if "target" in inspect.signature(builder).parameters else ()


def bind(part: Part, draft_length: bool = False) -> tuple[str, dict[str, Any]]:
  """(canonical name, arguments of the builder) of a drafter.

  Raises:
    ValueError: a draft of less than 2 nodes, or more than MOST_NODES.
  """
  name, given = grammar.bind("drafter", part, parameters(part.name, draft_length))
  if not 2 <= given.get("nodes", 2) <= MOST_NODES:
    raise ValueError(
      f"`drafter` must have between 2 and {MOST_NODES} nodes, or be 'none', got "
      f"{grammar.show([part])!r}."
    )
  return name, given


def either(part: Part, found: Mapping[str, Part], kind: str, given: Any) -> Any:
  """The part of a kind that the name holds, or else the argument of that kind."""
  if given is not None and kind in found:
    raise ValueError(
      f"drafter={grammar.show([part])!r} has its own {kind}: `{kind}` must be given in one of the "
      f"two places, got {given!r:.40} in the other."
    )
  return found.get(kind, given)


def sharing(model: Model, small: Model, what: str) -> Model:
  """The model `small`, as one that says the tokens of `model`; `what` is its name in messages.

  Where both have a tokenizer, their tokens decide, and files may pad them to different lengths.

  Raises:
    ValueError: their vocabularies differ.
  """
  if small is model:
    return small
  same_size = words(small) == words(model)
  if small.tokenizer is not None and model.tokenizer is not None:
    if found := vocabulary.difference(small.tokenizer, model.tokenizer):
      i, theirs, ours = found[0], *("none" if x is None else repr(x) for x in found[1:])
      raise ValueError(
        f"{what} has another vocabulary than {model.name}, and they must share one: "
        f"id {i} is {theirs} there, and {ours} in {model.name}."
      )
  elif not same_size:
    raise ValueError(
      f"{what} must have the vocabulary of {model.name}, {model.config.vocab_size} tokens, got "
      f"{small.config.vocab_size}."
    )
  if same_size:
    return small
  return dataclasses.replace(small, fit=model.config.vocab_size)


def words(model: Model) -> int:
  """How many tokens a model has without the mask, where that is the last of them."""
  V = model.config.vocab_size
  return V - 1 if model.mask == V - 1 else V


def _loaded(name: str, model: Model, alike: bool) -> Model:
  """See `load_small`."""
  mesh = jax.sharding.get_mesh()
  place = None if mesh.empty else mesh
  if model.weights == "float" and not alike:
    return load_quick(name, model.dtype, place)
  if model.weights == "native" and not has_few_bits(name):
    return load(name, model.dtype, mesh=place, weights="float")
  return load(name, model.dtype, mesh=place, weights=model.weights, activations=model.activations)


def load_small(
  model: Model,
  part: Part,
  given: Model | None = None,
  causal: bool = True,
  bridged: bool = False,
  alike: bool = False,
) -> Model:
  """The model that a part names, loaded as `model` is, whose vocabulary it must share.

  Where `model` keeps the few bits of its file and this one's has none, it has floats. Beside floats
  it is what `load_quick` makes of it. One of both may have a mask token after its last word, which
  it never says.

  Args:
    bridged: whether its vocabulary may be another, see `build.bridge`.
    alike: whether it has floats where `model` has, as the text depends on them.

  Raises:
    ValueError: it does not, or it is of masked diffusion and no denoiser is asked for.
  """
  if given is None:
    name = grammar.text_of(part, "a model", hint=", a zoo name or directory")
    given = model if name == model.name else _loaded(name, model, alike)
  small = given
  if causal and not small.config.causal:
    raise ValueError(
      f"{part.name}[{small.name}] must be a causal model: this one sees both sides of a token "
      "(is_causal is false)."
    )
  return small if bridged else sharing(model, small, f"{part.name}[{small.name}]")
