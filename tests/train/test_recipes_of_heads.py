"""The recipes of heads: the states that the first one keeps are those that all of them read."""

import pytest

from specjax.configs import bakeoff, smollm2_135m
from specjax.heads import HEADS
from specjax.models import transformer
from specjax.models.config import Config

SMOLLM2 = Config(
  vocab_size=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, mlp_width=1536
)
OURS = Config(vocab_size=2048, width=256, layers=8, heads=4, kv_heads=2, head_dim=64, mlp_width=704)
RECIPES = {(m, name): config for m, of in (("smollm2-135m", smollm2_135m), ("gsm8k-7m", bakeoff))
           for name, config in of.CONFIGS.items()}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES, ids="/".join)
def test_the_kept_states_are_those_that_the_head_reads(recipe):
  config = RECIPES[recipe]
  build = next(build for build, kind in HEADS.values() if kind is type(config.head))
  network = {"smollm2-135m": SMOLLM2, "gsm8k-7m": OURS}[recipe[0]]
  head = build(transformer.target(network), config.head)
  assert config.model == recipe[0]
  assert {*head.hidden_layers} <= {*config.layers}
