"""Drafters from names: of one part, or of several that are joined."""

import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specjax import checks, switches
from specjax.base import Drafter, Params
from specjax.checkpoints.trained_for import checked
from specjax.data import datastore, trigrams
from specjax.drafters import fallback, forced, union
from specjax.drafters.combine.by_load import by_load
from specjax.drafters.layers import skipped_layers
from specjax.drafters.layers.dynamic_exit import unseen
from specjax.drafters.layers.over_cache import over_cache
from specjax.drafters.layers.self_speculative import self_speculative
from specjax.drafters.layers.swift import begin
from specjax.drafters.models.denoiser import denoiser
from specjax.drafters.retrieval.history import empty
from specjax.drafters.retrieval.token_recycling import nothing, part_of_published, token_recycling
from specjax.drafters.stateless import none
from specjax.heads import drafting
from specjax.heads.base import Head
from specjax.heads.few_bits import narrow
from specjax.models.compressed import drafting as drafting_target
from specjax.names import grammar as spec
from specjax.names.build.cache import config_of, make_cache
from specjax.names.build.draft_model import build_draft_model
from specjax.names.build.drafters import (
  DEFAULT_NODES,
  OF_OWN_LAYERS,
  OF_RECYCLING,
  OF_SOURCES,
  Built,
  bind,
  builder_of,
  either,
  is_head,
  load_small,
  parameters,
  refuse,
  target_of,
)
from specjax.names.build.head import build_head
from specjax.names.build.tree import build_tree, chain
from specjax.names.grammar import Part
from specjax.names.load import Model, is_companion
from specjax.processors import schemas
from specjax.processors.matchers import matchers
from specjax.trees import Static

(PRUNED,) = map(Part, OF_SOURCES)


@switches.hold
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
    sources = [spec.parse("drafter", text) for text in spec.alternatives(given)]
    if len(sources) == 1 == len(sources[0]) and PRUNED not in sources[0][0].decorations:
      return _single(model, sources[0][0], tree, draft_length)
    refuse(given, tree, draft_length)
    built = [_union(model, parts) for parts in sources]
    if len(built) == 1:
      return built[0]
    names, drafters, weights = zip(*built, strict=True)
    return "|".join(names), fallback(*drafters), weights
  if isinstance(given, Model):
    return build_draft_model(model, Part("draft_model"), tree, draft_length, given=given)
  part, own = spec.with_weights("drafter", given, Drafter, Head)
  if isinstance(part, Drafter):
    refuse(part.name, tree, draft_length)
    return part.name, part, own
  refuse(part.name, None, draft_length)
  suffix, shape = build_tree(chain(part.depth) if tree is None else tree)
  return part.name + suffix, drafting.drafter(part, shape), own


def _union(model: Model, parts: tuple[Part, ...]) -> Built:
  """Parts that are joined by +, one of several drafters or the whole."""
  pruned = tuple(i for i, part in enumerate(parts) if PRUNED in part.decorations)
  bare = [
    part._replace(decorations=tuple(x for x in part.decorations if x != PRUNED)) for part in parts
  ]
  built = [_single(model, part, joined=True) for part in bare]
  if len(built) == 1 and not pruned:
    return built[0]
  names, drafters, weights = zip(*built, strict=True)
  shown = (f"{name}/{PRUNED.name}" if i in pruned else name for i, name in enumerate(names))
  return "+".join(shown), union(*drafters, pruned=pruned), weights


def _single(
  model: Model, part: Part, tree: Any = None, draft_length: Any = None, joined: bool = False
) -> Built:
  """A drafter of one part with its decorations, which may be `joined` to others."""
  if is_head(part.name):
    name, drafter, params = build_head(model, part, tree, draft_length)
    return name, drafter, narrow(params, model.weights, model.activations)
  if part.name in OF_PARTS:
    return OF_PARTS[part.name](model, part, tree, draft_length, joined)
  builder = builder_of(part.name)
  refuse(part.name, tree, draft_length)
  spec.decorations(part, {})
  name, arguments = bind(part)
  drafter = builder(*target_of(builder, model.target), **arguments)
  if checks.is_own_file(part.name):
    return name, *spec.with_weights("drafter", drafter, Drafter)
  weights = WEIGHTS.get(part.name, lambda *_: ())
  return name, drafter, weights(model, part, parameters(part.name) | arguments)


def _self_speculative(model: Model, part: Part, tree: Any, draft_length: Any, _: bool) -> Built:
  """The target's own layers, all or those of a file, over its cache or a smaller one."""
  refuse(part.name, tree, draft_length)
  if not part.decorations:
    name, arguments = bind(part)
    return name, self_speculative(model.target, **arguments), _skipped_layers(model, part)
  label, kind = make_cache(spec.decorations(part, OF_OWN_LAYERS)["cache"])
  name, arguments = bind(part)
  config = config_of(model, f"{name}/{label}")
  drafter = self_speculative(drafting_target(config, kind), **arguments)
  every = jnp.ones((config.layers, 2), bool)
  weights = every if part.text is None else _skipped_layers(model, part)
  return f"{name}/{label}", over_cache(drafter, config, kind), weights


def _datastore(model: Model, part: Part, arguments: Mapping[str, Any]) -> datastore.Datastore:
  file = spec.text_of(part, "a datastore", "FILE.npz")
  return datastore.load(file, model.config.vocab_size, model.identity.tokens)


def _suffixes(model: Model, part: Part, arguments: Mapping[str, Any]) -> Params:
  return tuple(map(jnp.asarray, _datastore(model, part, arguments)))


def _trigrams(model: Model, part: Part, arguments: Mapping[str, Any]) -> Params:
  texts = _datastore(model, part, arguments).tokens
  return jax.tree.map(jnp.asarray, trigrams.count(texts, model.config.vocab_size))


def _source(model: Model, part: Part, arguments: Mapping[str, Any]) -> Params:
  """The ids of a text in a file; () is the prompt."""
  if part.text is None:
    return ()
  try:
    text = pathlib.Path(part.text).read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(f"{spec.show([part])} must name a file of text ({error}).") from error
  if not text:
    raise ValueError(f"{spec.show([part])}: the file has no text.")
  return jnp.asarray(model.encode(text), jnp.int32)


def _history(model: Model, part: Part, arguments: Mapping[str, Any]) -> Params:
  """The newest texts of a datastore; without one nothing yet."""
  nothing = empty(int(arguments["kept"]))
  if part.text is None:
    return nothing
  newest = _datastore(model, part, arguments).tokens[-len(nothing) :]
  return nothing.at[len(nothing) - len(newest) :].set(newest)


def _skipped_layers(model: Model, part: Part) -> Params:
  file = spec.text_of(part, "a set of layers to skip", "FILE.json")
  about = checks.read_json(file).get("about") or {}
  with checked(file, {"target": about.get("model")}, target=model.identity):
    return jnp.asarray(skipped_layers.load(file, model.config.layers))


# What a drafter that is not trained begins with: what it searches, skips or has learned.
WEIGHTS: dict[str, Callable[[Model, Part, Mapping[str, Any]], Params]] = {
  "rest": _suffixes,
  "aded": _trigrams,
  "aggressive": _source,
  "history": _history,
  "trie": _history,
  "suffix_decoding": _history,
  "swift": lambda model, part, arguments: begin(model.config.layers),
  "del": lambda model, part, arguments: unseen(model.config.layers, int(arguments["every"])),
}  # fmt: skip


def _denoiser(model: Model, part: Part, tree: Any, draft_length: Any, _: bool) -> Built:
  """A masked diffusion model with the vocabulary of the target."""
  refuse(part.name, tree, draft_length)
  spec.decorations(part, {})
  name, arguments = bind(part)
  small = load_small(model, part, causal=False)
  return name, denoiser(small.denoiser, model.target, **arguments), small.params


def _forced(model: Model, part: Part, tree: Any, draft_length: Any, _: bool) -> Built:
  """What a JSON Schema, or the Lark grammar of a file *.lark, leaves no choice about."""
  refuse(part.name, tree, draft_length)
  spec.decorations(part, {})
  name, arguments = bind(part)
  given = spec.text_of(part, "the schema of the text", "SCHEMA", ", or the file of a Lark grammar")
  if model.tokenizer is None:
    raise ValueError(f"drafter={name!r}: {model.name} has no tokenizer.")
  own = matchers(model.tokenizer, model.config.vocab_size, model.stop)
  read = schemas.of_lark if given.endswith(".lark") else schemas.of_json_schema
  return name, forced(own.forced, **arguments), read(given, own)


def _token_recycling(model: Model, part: Part, tree: Any, draft_length: Any, _: bool) -> Built:
  """Token Recycling with the published tree, or a static one."""
  refuse(part.name, None, draft_length)
  tree = either(part, spec.decorations(part, OF_RECYCLING), "tree", tree)
  name, arguments = bind(part)
  suffix, shape = ("", None) if tree is None else build_tree(tree)
  if tree is not None and arguments:
    raise ValueError(f"drafter={spec.show([part])!r}: its tree decides the nodes.")
  if shape is not None and not isinstance(shape, Static):
    raise ValueError(f"drafter={name + suffix!r} has no probabilities: it takes a static tree.")
  if shape is not None and shape.depth == 0:
    return "none", none(), ()
  drafter = token_recycling(model.target, **arguments, tree=shape)
  if drafter.keep is None:
    return name + suffix, drafter, ()
  shape = shape or part_of_published(drafter.nodes)
  return name + suffix, drafter, nothing(model.config.vocab_size, shape)


def _auto(model: Model, part: Part, tree: Any, draft_length: Any, joined: bool) -> Built:
  """A drafter in drafts of several sizes, of which each round has one, or none."""
  refuse(part.name, tree, draft_length)
  spec.decorations(part, {})
  if joined:
    raise ValueError("drafter='auto': it chooses for the whole round; do not join it to another.")
  name, arguments = bind(part)
  if part.text is None:
    inner = Part("eagle3" if is_companion(model, "eagle3") else "prompt_lookup")
  else:
    inner = spec.parse_one("drafter", part.text)
  if inner.numbers or inner.name == part.name:
    raise ValueError(f"drafter={name!r}: its brackets must hold another drafter, without a number.")
  nodes = arguments.get("nodes", DEFAULT_NODES)
  sizes = [*itertools.takewhile(nodes.__gt__, (2 << i for i in itertools.count())), nodes]
  built = [_single(model, inner._replace(numbers=(size,))) for size in sizes]
  drafter = by_load(*(drafter for _, drafter, _ in built))
  name = spec.show([Part("auto", (nodes,), spec.show([inner]))])
  return name, drafter, built[-1][2]


# Drafters that are made of more than a target and numbers.
OF_PARTS: dict[str, Callable[[Model, Part, Any, Any, bool], Built]] = {
  "draft_model": build_draft_model,
  "token_recycling": _token_recycling,
  "self_speculative": _self_speculative,
  "denoiser": _denoiser,
  "forced": _forced,
  "auto": _auto,
}
