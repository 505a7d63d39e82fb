"""The zoo's causal LM: 7.3M parameters on the GSM8K training questions and worked answers.

    python -m specjax.configs.gsm8k_lm --data gsm8k_train.jsonl

Without --data, GSM8K comes from the TFDS catalogue (needs a network).
"""

import sys

from specjax.train.lm import Config, main
from specjax.train.recipe import options
from specjax.train.recipe.config import Network, Training

CONFIG = Config(
  data="tfds:gsm8k:train",
  out="runs/gsm8k-7m",
  vocab_size=4096,
  length=384,
  network=Network(width=256, layers=8, heads=4, kv_heads=2, head_dim=64, mlp_width=768),
  training=Training(batch=8, steps=1200, rate=2e-3, warmup=60, decay=0.1),
)

if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, default=CONFIG))
