"""The zoo's Medusa heads: four tokens ahead of gsm8k-7m, trained on its own answers.

    python -m specjax.configs.gsm8k_medusa --data gsm8k_train.jsonl

Without --data, GSM8K comes from the TFDS catalogue (needs a network).
"""

import sys

from specjax import script
from specjax.drafters.medusa import MedusaConfig
from specjax.train.heads import Config, main

CONFIG = Config(
  model="gsm8k-7m", data="tfds:gsm8k:train", out="runs/gsm8k-7m-medusa",
  questions=2000, held_out=100, max_new_tokens=160, head=MedusaConfig(depth=4),
  batch=8, points=128, steps=1500, rate=1e-3, warmup=50, save_every=250,
)  # fmt: skip

if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__, default=CONFIG))
