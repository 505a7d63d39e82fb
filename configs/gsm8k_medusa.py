"""The zoo's Medusa heads: four tokens ahead of gsm8k-7m, trained on its own answers.

    python -m specjax.configs.gsm8k_medusa --data gsm8k_train.jsonl

Without --data, GSM8K comes from the TFDS catalogue (needs a network).
"""

import sys

import tyro

from specjax.heads.medusa import MedusaConfig
from specjax.train.heads import Config, main
from specjax.train.recipe import options
from specjax.train.recipe.config import Training

CONFIG = Config(
  model="gsm8k-7m",
  data="tfds:gsm8k:train",
  out="runs/gsm8k-7m-medusa",
  questions=2000,
  held_out=100,
  max_new_tokens=160,
  head=MedusaConfig(depth=4),
  points=128,
  training=Training(batch=8, steps=1500, save_every=250),
)

if __name__ == "__main__":
  markers = (tyro.conf.OmitSubcommandPrefixes,)
  sys.exit(options.command(main, Config, __doc__, default=CONFIG, markers=markers))
