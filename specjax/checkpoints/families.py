"""Model families: how a config.json becomes a network, by its `model_type`.

A new family is a file that defines the functions of a `Family`, and a row of FAMILIES.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from specjax.base import Params, Target
from specjax.checkpoints import hf_config
from specjax.checkpoints.hf_layout import (
  HF,
  LLADA,
  LLADA2,
  MIMO,
  MIXTRAL,
  Layout,
  Names,
  layout,
  spare,
)
from specjax.models import transformer
from specjax.models.config import Config


class Family(NamedTuple):
  """One kind of network.

  Attributes:
    config: class of its configs, hashable, with vocab_size, width, max_length and causal.
    from_json: config.json -> config; ValueError where it describes no such network.
    layout: config -> its parameters by path, and the tensors on disk that make each of them.
    target: config -> Target.
    init: (config, key) -> random parameters.
    spare: config -> names of tensors that may be on disk and are not read.
    check_keys: (config.json, config, name of the file, keys that `hf.load` reads) -> None;
      ValueError for a key that could change the output and that nothing reads.
  """

  config: type
  from_json: Callable[..., Any]
  layout: Callable[[Any], Layout]
  target: Callable[[Any], Target]
  init: Callable[[Any, Array], Params]
  spare: Callable[[Any], frozenset[str]] = lambda config: frozenset()
  check_keys: Callable[..., None] = lambda *given: None


def _llama(names: Names) -> Family:
  return Family(
    Config,
    hf_config.from_json,
    functools.partial(layout, names=names),
    transformer.target,
    transformer.init,
    functools.partial(spare, names=names),
    hf_config.check_keys,
  )


_OTHERS = {"llada": LLADA, "mixtral": MIXTRAL, "llada2_moe": LLADA2, "mimo": MIMO}
FAMILIES: dict[str, Family] = {name: _llama(_OTHERS.get(name, HF)) for name in hf_config.FAMILIES}


def family_of(config: Any) -> Family:
  """The family that has configs of this class."""
  return next(family for family in FAMILIES.values() if type(config) is family.config)


def target(config: Any) -> Target:
  """The network of a config of any family."""
  return family_of(config).target(config)
