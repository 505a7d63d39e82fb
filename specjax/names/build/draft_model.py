"""Draft models from names: with a chain, a tree, or a chain that a policy ends."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.base import Drafter, Params
from specjax.drafters import draft_model
from specjax.drafters.models.adaptive_model import adaptive_model
from specjax.drafters.models.by_text import by_text
from specjax.drafters.models.draft_tree import draft_tree
from specjax.drafters.models.masks import masks
from specjax.drafters.models.rapid import rapid
from specjax.drafters.stateless import none
from specjax.models.common_tokens import common_tokens
from specjax.models.ensemble import ensemble
from specjax.models.exits import sorted_exits
from specjax.models.trimmed import trim, trimmed
from specjax.names import grammar
from specjax.names.build.bridge import between, bridge_of, text_between
from specjax.names.build.draft_length import build_draft_length
from specjax.names.build.drafters import (
  OF_MODELS,
  Built,
  bind,
  either,
  load_small,
  parameters,
  sharing,
)
from specjax.names.build.tree import build_tree, chain
from specjax.names.build.vocabulary import chosen
from specjax.names.grammar import Part
from specjax.names.load import Model
from specjax.trees import IID


def build_draft_model(
  model: Model,
  part: Part,
  tree: Any,
  draft_length: Any,
  joined: bool = False,
  given: Model | None = None,
) -> Built:
  """A small LM, or two as one, with a chain, a tree, or a chain that a policy ends.

  It reads the prompt, or what `rapid` leaves of it. One of another vocabulary is bridged.
  """
  found = grammar.decorations(part, OF_MODELS)
  tree = either(part, found, "tree", tree)
  length = either(part, found, "draft_length", draft_length)
  small = load_small(model, part, given, bridged=True)
  over = bridge_of(model, small, part, found)
  if over is None:
    small = sharing(model, small, f"{part.name}[{small.name}]")
  name, arguments = bind(part._replace(text=small.name), length is not None)
  if tree is not None and (arguments or length is not None):
    raise ValueError(
      "`drafter` must have nodes, a tree, or a draft length with nodes as its most, got "
      f"{grammar.show([part])!r}."
    )
  target, weights, width = small.drafting, small.params, small.config.width
  if "vocabulary" in found:
    shared = np.arange(min(small.config.vocab_size, model.config.vocab_size))
    label, ids = chosen(model, found["vocabulary"], shared)
    target, weights = trimmed(target), trim(target, weights, jnp.asarray(ids))
    name = f"{name}/{label}"
  if "exits" in found:
    label, numbers = grammar.bind("drafter", found["exits"], grammar.parameters(sorted_exits))
    target, name = sorted_exits(target, **numbers), f"{name}/{label}"
  if over is not None:
    name = f"{name}/{over}"
    if over == "common_tokens":
      target = common_tokens(target, model.config.vocab_size)
      weights = between(model, small, weights)
  if "ensemble" in found:
    second = found["ensemble"]
    other = load_small(model, second)
    label, numbers = grammar.bind("drafter", second, grammar.parameters(ensemble))
    target = ensemble(target, other.drafting, **numbers)
    name, weights, width = f"{name}/{label}", (weights, other.params), model.config.vocab_size

  def built(suffix: str, drafter: Drafter, weights: Params) -> Built:
    if "prompt" in found:
      label, numbers = grammar.bind("drafter", found["prompt"], grammar.parameters(rapid))
      suffix, drafter = f"{suffix}/{label}", rapid(drafter, **numbers)
    if over is not None:  # a prompt's tokens have rows of several lengths
      drafter = drafter._replace(by_pieces=False)
    return name + suffix, drafter, weights

  draws: Callable[..., Drafter] = draft_tree
  if "masks" in found:
    if small.mask is None or over is not None or length is not None or "ensemble" in found:
      raise ValueError(
        f"drafter={grammar.show([part])!r}: /masks is for one draft model of the target's "
        "vocabulary, whose config.json has a pard_token; it takes no draft length."
      )
    draws = functools.partial(masks, mask=small.mask)
    name = f"{name}/masks"
  nodes = arguments.get("nodes", int(parameters(part.name, length is not None)["nodes"] or 0))
  if over == "by_text":
    if tree is not None or length is not None or "ensemble" in found:
      raise ValueError(
        f"drafter={grammar.show([part])!r}: by_text drafts one chain of one model; leave out its "
        "tree, draft length or ensemble, or take common_tokens."
      )
    return built("", by_text(target, nodes), text_between(model, small, weights))
  if tree is not None:
    suffix, shape = build_tree(tree)
    if shape.depth == 0:
      return "none", none(), ()
    return built(suffix, draws(target, shape), weights)
  if length is not None:
    models = {"target": model.identity} | ({} if "ensemble" in found else {"draft": small.identity})
    label, policy, own = build_draft_length(length, width, nodes - 1, **models)
    return built(f"/{label}", adaptive_model(target, policy, nodes), (weights, own))
  if joined or "masks" in found:  # a union takes sources that write nothing while they draft
    return built("", draws(target, IID(chain(nodes - 1))), weights)
  return built("", draft_model(target, nodes), weights)
