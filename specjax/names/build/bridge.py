"""Draft models of another vocabulary, from names: the bridge to the target's."""

import functools
import sys
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from specjax.base import Params
from specjax.data import bridge, vocabulary
from specjax.drafters.models.by_text import Text, Words, codes
from specjax.models.common_tokens import Bridge
from specjax.names import grammar
from specjax.names.build.drafters import BRIDGES
from specjax.names.grammar import Part
from specjax.names.load import Model

THIN = 0.25  # of the smaller vocabulary


def _vocabulary(model: Model) -> bridge.Vocabulary:
  if model.tokenizer is None:
    raise ValueError(
      f"{model.name} must have a tokenizer, since the draft model's vocabulary is another."
    )
  return bridge.Vocabulary(model.tokenizer, model.config.vocab_size, model.start, model.stop)


@functools.lru_cache(maxsize=4)
def _spelling(model: Model, small: Model) -> bridge.Spelling:
  """How `small` reads the tokens of `model`. A line on stderr says where they share few."""
  ours, theirs = _vocabulary(model), _vocabulary(small)
  found = bridge.spelling(ours, theirs)
  least, common = min(ours.size, theirs.size), len(found.ours)
  if not common:
    raise ValueError(f"{small.name} must share tokens with {model.name}, got none that both have.")
  if common < THIN * least:
    print(
      f"{small.name} has {common} of {model.name}'s {ours.size} tokens, which is few: it may draft "
      "badly.",
      file=sys.stderr,
    )
  return found


def bridge_of(model: Model, small: Model, part: Part, found: Mapping[str, Part]) -> str | None:
  """The name of the bridge between two models; None where they need none and the name has none.

  A line on stderr says where the name has none and one is needed.

  Raises:
    ValueError: it cannot be beside another decoration.
  """
  ours, theirs = model.tokenizer, small.tokenizer
  if "bridge" in found:
    name, _ = grammar.bind("drafter", found["bridge"], {})
  elif (
    small is model or ours is None or theirs is None or vocabulary.difference(theirs, ours) is None
  ):
    return None
  else:
    name = next(iter(BRIDGES))
    print(
      f"{small.name} has another vocabulary than {model.name}: it drafts the tokens that both have "
      f"(/{name}; /by_text is the other way).",
      file=sys.stderr,
    )
  if "vocabulary" in found:
    raise ValueError(
      f"drafter={grammar.show([part])!r}: {found['vocabulary'].name} must be left out for a model "
      f"with another vocabulary than {model.name}."
    )
  return name


def between(model: Model, small: Model, weights: Params) -> Bridge:
  """The params of `common_tokens` for the draft model `small` with these weights."""
  return Bridge(weights, *map(jnp.asarray, _spelling(model, small)))


def text_between(model: Model, small: Model, weights: Params) -> Text:
  """The params of `by_text` for the draft model `small` with these weights."""
  said, size = bridge.said_by(_vocabulary(small))
  of_target, sizes = bridge.said_by(_vocabulary(model))
  text = np.flatnonzero(sizes)
  code = np.asarray(codes(jnp.asarray(of_target)))[text, sizes[text] - 1]
  order = np.argsort(code, kind="stable")
  # Of several tokens with one hash, as those that say the same, the first is found.
  order = order[np.flatnonzero(np.diff(code[order].astype(np.int64), prepend=-1))]
  ids = text[order].astype(np.int32)
  words = Words(*map(jnp.asarray, (code[order], ids, of_target[ids], sizes[ids])))
  return Text(between(model, small, weights), jnp.asarray(said), jnp.asarray(size), words)
