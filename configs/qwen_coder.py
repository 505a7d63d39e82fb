"""An EAGLE-3 head for qwen2.5-coder-1.5b, which learns from what the model itself asks and answers.

    python -m specjax.train.prompts --model qwen2.5-coder-1.5b --out runs/qwen_coder/prompts \\
        --questions 2000 --texts 0 --join gsm8k_train.jsonl --joined 2000 \\
        --avoid spec_bench.jsonl gsm8k_test.jsonl
    python -m specjax.configs.qwen_coder

The head has 59.8 M parameters, 25.2 M of them in its LM head over 16384 tokens. On one H200 prompts
take 2 minutes, and answers and training 9, of which 2.5 are the 1600 steps. Expected on its 100
held-out answers: 2.69 tokens a pass with 4 nodes, 3.24 with 8, 3.51 with 16.
"""

import sys

import tyro

from specjax.heads.eagle3 import Eagle3Config
from specjax.train.heads import Config, main
from specjax.train.recipe import options
from specjax.train.recipe.config import Training

CONFIG = Config(
  model="qwen2.5-coder-1.5b",
  data="runs/qwen_coder/prompts/prompts.jsonl",
  out="runs/qwen_coder/eagle3",
  dtype="bfloat16",
  online=True,
  questions=100_000,
  held_out=100,
  max_new_tokens=200,
  answer_batch=32,
  length=512,
  draft_vocab=16_384,
  points=128,
  judge_every=200,
  head=Eagle3Config(depth=5, mlp_width=4096),
  training=Training(batch=16, steps=1600, rate=6e-4, warmup=100, save_every=400, devices=1),
)

if __name__ == "__main__":
  markers = (tyro.conf.OmitSubcommandPrefixes,)
  sys.exit(options.command(main, Config, __doc__, default=CONFIG, markers=markers))
