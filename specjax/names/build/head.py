"""Trained heads from names: with a tree, with shared pseudo rows, or rescored."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.base import Drafter, Params, Target
from specjax.checkpoints import formats
from specjax.checkpoints.files import read_config
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.trained_for import checked
from specjax.data import ngram as bigrams
from specjax.data import sources
from specjax.drafters.stateless import none
from specjax.heads import HEADS, draft_vocabulary, drafting
from specjax.heads.adaptive_head import adaptive_head
from specjax.heads.pseudo_rows import PseudoRows
from specjax.models import sharding
from specjax.names import grammar
from specjax.names.build.draft_length import build_draft_length
from specjax.names.build.drafters import (
  DEFAULT_NODES,
  OF_HEADS,
  RESCORINGS,
  ROWS,
  UNITS,
  Built,
  bind,
  either,
  load_small,
  refuse,
)
from specjax.names.build.tree import build_tree, chain
from specjax.names.build.vocabulary import trim_head
from specjax.names.grammar import Part
from specjax.names.load import Model, companion, resolve
from specjax.trees import Dynamic, Static, Tree
from specjax.trees.static import best_first


def load_head(model: Model, part: Part) -> tuple[str, LoadedHead]:
  """Any trained head, also one of your own with its file before the bracket.

  It raises ValueError for no such head, and for one in a Python file that the part does not name.

  Returns (its path, the head); by default the head is the zoo's for the model.

  Measured: 2.77 tokens per pass as `medusa` (heads_gsm8k)
  Train: python -m specjax.train.heads --model gsm8k-7m --data questions.jsonl --out runs/my-head
  my_file.py:my_head
  """
  if part.name in HEADS:
    path = part.text or companion(model, part.name, "train.heads")
  else:
    path = grammar.text_of(part, "a trained head")
  directory = resolve(path)
  with checked(path, read_config(directory), target=model.identity):
    loaded = formats.load(
      directory, model.config, model.dtype, part.name, target_params=model.params
    )
  if part.name in HEADS and part.name != loaded.head.name:
    raise ValueError(f"drafter={grammar.show([part])!r}: {path} is a head of {loaded.head.name}.")
  return path, loaded._replace(params=sharding.place_head(loaded.params))


def build_head(model: Model, part: Part, tree: Any, draft_length: Any) -> Built:
  """A trained head with its tree, or rescored."""
  found = grammar.decorations(part, OF_HEADS)
  length = either(part, found, "draft_length", draft_length)
  found.pop("draft_length", None)
  rows, vocabulary = found.pop("pseudo rows", None), found.pop("vocabulary", None)
  tree = either(part, found, "tree", tree)
  name, arguments = bind(part)
  if rows is not None and (found or tree is not None):
    raise ValueError(
      f"drafter={grammar.show([part])!r}: rows are shared out to the nodes of the "
      "head's own tree, without another tree or a rescoring."
    )
  if arguments and (found or tree is not None):
    raise ValueError(f"drafter={grammar.show([part])!r}: its tree or rescoring decides the nodes.")
  path, loaded = load_head(model, part)
  if vocabulary is not None:
    label, loaded = trim_head(model, loaded, vocabulary)
    name = f"{name}/{label}"
  if length is not None:
    if found or tree is not None or rows is not None:
      raise ValueError(
        f"drafter={grammar.show([part])!r}: a draft length ends a chain, without a "
        "tree, a rescoring or shared rows."
      )
    nodes = _of_chain(path, loaded, arguments)
    label, policy, _ = build_draft_length(
      length, model.config.width, nodes - 1, target=model.identity
    )
    return f"{name}/{label}", adaptive_head(loaded.head, policy, nodes), loaded.params
  if "rescoring" in found:
    refuse(part.name, tree, None)
    return _rescored(model, name, loaded, found["rescoring"])
  if loaded.tree is not None and tree is None and rows is None:  # as the published code drafts
    nodes = arguments.get("nodes", loaded.tree.nodes)
    shape: Tree = Dynamic(nodes, min(loaded.tree.depth, nodes - 1), loaded.tree.beam)
    return name, drafting.drafter(loaded.head, shape), loaded.params
  if tree is None:
    nodes = arguments.get("nodes", DEFAULT_NODES)
    choices = loaded.choices or chain(loaded.head.depth)  # in order of worth
    if loaded.hit_rates is not None:
      choices = best_first(np.asarray(loaded.hit_rates), nodes)
    if arguments and nodes > len(choices) + 1:
      raise ValueError(
        f"`nodes` must be at most {len(choices) + 1}, the nodes of the tree of {path}, got {nodes}."
      )
    if rows is not None:
      if rows.name in UNITS:
        nodes = _of_chain(path, loaded, arguments)
      name, drafter = _with_rows(name, path, loaded, nodes, rows)
      return name, drafter, loaded.params
    return name, drafting.drafter(loaded.head, Static(choices[: nodes - 1])), loaded.params
  suffix, shape = build_tree(tree)
  if shape.depth == 0:
    return "none", none(), ()
  return name + suffix, drafting.drafter(loaded.head, shape), loaded.params


def _of_chain(path: str, loaded: LoadedHead, arguments: Mapping[str, Any]) -> int:
  """The nodes of a head's chain."""
  deepest = loaded.head.depth
  nodes = arguments.get("nodes", min(DEFAULT_NODES, 1 + deepest))
  if nodes > 1 + deepest:
    raise ValueError(
      f"`nodes` must be at most {deepest + 1} for {path}, which guesses {deepest} tokens ahead, "
      f"got {nodes}."
    )
  return nodes


def _with_rows(
  name: str, path: str, loaded: LoadedHead, nodes: int, part: Part
) -> tuple[str, Drafter]:
  """A trained head whose nodes share pseudo rows, by its hit rates, or whose last node has all."""
  builder = ROWS[part.name]
  label, arguments = grammar.bind("drafter", part, grammar.parameters(builder))
  if not isinstance(loaded.head, PseudoRows) or loaded.hit_rates is None:
    raise ValueError(
      f"{name}/{label} must follow hidden_transfer, ppd or masked_slots: {path} has no pseudo "
      "rows, or no hit rates by which they are shared out."
    )
  if part.name in UNITS:
    return f"{name}/{label}", builder(loaded.head, nodes, **arguments)
  tree, counts = builder(np.asarray(loaded.hit_rates), nodes, **arguments)
  return f"{name}/{label}", drafting.drafter(loaded.head, tree, counts)


def _rescored(model: Model, name: str, loaded: LoadedHead, part: Part) -> Built:
  """A trained head whose guesses a bigram table, a memory or a small LM rescores."""
  builder = RESCORINGS[part.name]
  label, arguments = grammar.bind("drafter", part, grammar.parameters(builder))
  fixed, weights = RESCORERS.get(part.name, _alone)(model, loaded, part)
  return f"{name}/{label}", builder(loaded.head, *fixed, **arguments), weights


def _alone(model: Model, loaded: LoadedHead, part: Part) -> tuple[tuple[Target, ...], Params]:
  return (), loaded.params


def _local(model: Model, loaded: LoadedHead, part: Part) -> tuple[tuple[Target, ...], Params]:
  small = load_small(model, part)
  return (small.drafting,), {"head": loaded.params, "lm": small.params}


def _ngram(model: Model, loaded: LoadedHead, part: Part) -> tuple[tuple[Target, ...], Params]:
  source = sources.open_source(grammar.text_of(part, "texts", "FILE.jsonl"))
  texts = [model.encode(sources.text_of(source[i], "text", i)) for i in range(len(source))]
  ids = draft_vocabulary.ids(loaded.params)
  vocabulary = None if ids is None else np.asarray(ids)
  table = bigrams.bigram(texts, model.config.vocab_size, vocabulary)
  return (), {"head": loaded.params, "ngram": jnp.asarray(table)}


# (what a rescoring takes beside the head, the weights of both), where it is not the head's alone.
RESCORERS: dict[str, Callable[[Model, LoadedHead, Part], tuple[tuple[Target, ...], Params]]] = {
  "local": _local,
  "ngram": _ngram,
}
