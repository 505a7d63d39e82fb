"""A model family from outside the package: what one file and one row give it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import specjax
from specjax.base import StatesTarget
from specjax.checkpoints import families
from specjax.checkpoints.hf_layout import Fusion
from specjax.drafters.layers.layerskip import layerskip
from specjax.heads import drafting
from specjax.heads.eagle import EagleConfig, eagle
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.heads.named import built
from specjax.testing import random_table, table_model


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """A table of logits after any two tokens."""

  vocab_size: int
  width: int
  max_length: int = 64
  causal: bool = True


def from_json(raw, where="config.json"):
  return TableConfig(raw["vocab_size"], raw["vocab_size"])


def layout(config):
  V = config.vocab_size
  return {("logits",): [Fusion("after.logits", (V, V, V)), Fusion("start.logits", (1, V, V))]}


def target(config):
  """The table model reads its own params, not a collection of them."""
  table, identity = table_model(config.vocab_size), jnp.eye(config.vocab_size)
  return StatesTarget(
    config.vocab_size,
    lambda params, *rest, **options: table.prefill(params["params"], *rest, **options),
    lambda params, *rest, **options: table.evaluate(params["params"], *rest, **options),
    table.commit, table.head, width=config.vocab_size,
    embed=lambda params, tokens: identity[tokens], lm_head=lambda params: identity,
  )  # fmt: skip


def init(config, key):
  return {"params": random_table(0, config.vocab_size)}


@pytest.fixture
def directory(tmp_path, monkeypatch):
  row = families.Family(TableConfig, from_json, layout, target, init)
  monkeypatch.setitem(families.FAMILIES, "table", row)
  (tmp_path / "config.json").write_text(json.dumps({"model_type": "table", "vocab_size": 7}))
  whole = np.asarray(random_table(0, 7)["logits"])
  tensors = {"start.logits": whole[7:], "after.logits": whole[:7]}
  save_file(tensors, tmp_path / "model.safetensors")
  return tmp_path


@pytest.mark.slow
def test_it_is_loaded_decoded_and_drafted_for_by_name(directory):
  model = specjax.load(str(directory))
  assert model.config == TableConfig(7, 7)
  assert model.params["params"]["logits"].shape == (8, 7, 7)
  prompts = [[1, 2], [3, 4, 5]]
  plain = [r.tokens for r in specjax.Decoder(model)(prompts, 12)]
  looked_up = [r.tokens for r in specjax.Decoder(model, "prompt_lookup")(prompts, 12)]
  head = medusa(model.target, MedusaConfig(depth=2))
  drafter = drafting.drafter(head, ((0,), (1,), (0, 0)))
  params = head.init(jax.random.key(0), model.params)
  drafted = [r.tokens for r in specjax.Decoder(model, (drafter, params))(prompts, 12)]
  assert plain == looked_up == drafted and all(len(tokens) == 12 for tokens in plain)


def test_what_it_does_not_show_is_named(directory):
  model = specjax.load(str(directory))
  with pytest.raises(
    ValueError,
    match=(
      "the target of the head eagle must be a LayeredTarget, which.*got one of type "
      r"StatesTarget\."
    ),
  ):
    built(eagle, model.target, EagleConfig())
  with pytest.raises(
    ValueError,
    match=(
      r"the target of layerskip must be a LayeredTarget, which.*got one of type StatesTarget\."
    ),
  ):
    layerskip(model.target)
