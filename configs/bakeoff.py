"""Every draft head on gsm8k-7m: the same answers, states, steps and draft vocabulary.

    python -m specjax.configs.bakeoff hydra --data gsm8k_train.jsonl
    python benchmarks/speed/bakeoff.py --prompts gsm8k_test.jsonl

The target's answers to the 7473 training questions (100 of them held out) and its states (3.7 GB)
are computed by the first head and shared by all. Every head takes 1500 steps of 8 rows x 256
positions with the loss published for it, guesses among the 512 tokens that make up 99.85 % of the
answers, and reads them out through the target's LM head where the method allows it. Hidden
Transfer, FIRP and PPD, whose guesses cost a pass through the target's own layers each, take 2 rows
a step, and PPD, which takes it from the first layer on, 64 positions of each.
On 2 CPU cores: 40 minutes of answers, 6 of states, then minutes per head, in docs/results.md.
"""

import dataclasses
import sys

import tyro

from specjax import script
from specjax.drafters.blockwise import BlockwiseConfig
from specjax.drafters.clover import CloverConfig
from specjax.drafters.clover2 import Clover2Config
from specjax.drafters.eagle import EagleConfig
from specjax.drafters.eagle3 import Eagle3Config
from specjax.drafters.hidden_transfer import HiddenTransferConfig
from specjax.drafters.hydra import HydraConfig
from specjax.drafters.medusa import MedusaConfig
from specjax.drafters.mlp_speculator import MLPSpeculatorConfig
from specjax.drafters.ppd import PPDConfig
from specjax.drafters.redrafter import ReDrafterConfig
from specjax.train.heads import Config, main
from specjax.train.recipe.config import Training

_TRAINING = Training(batch=8, steps=1500, save_every=250, devices=1)
_FEW = dataclasses.replace(_TRAINING, batch=2)
_SAME = Config(
  model="gsm8k-7m", data="tfds:gsm8k:train", out="",
  answers="runs/bakeoff/answers.jsonl", features="runs/bakeoff/features", layers=(2, 4, 5, 6, 8),
  questions=7473, held_out=100, draft_vocab=512, points=256, training=_TRAINING,
)  # fmt: skip

CONFIGS: dict[str, Config] = {
  name: dataclasses.replace(_SAME, out=f"runs/bakeoff/{name}", head=head, **changes)
  for name, head, changes in (
    ("medusa", MedusaConfig(depth=5, shared=True), {}),
    ("blockwise", BlockwiseConfig(depth=5), {}),
    ("hydra", HydraConfig(depth=5, shared=True), {}),
    ("hydra_pp", HydraConfig(depth=5, shared=True, prefix=True), {}),
    ("mlp_speculator", MLPSpeculatorConfig(depth=5), {}),
    ("redrafter", ReDrafterConfig(depth=5), {}),
    ("clover", CloverConfig(depth=5), {}),
    ("clover2", Clover2Config(depth=5), {}),
    ("eagle", EagleConfig(depth=5), {}),
    ("eagle3", Eagle3Config(depth=5), {}),
    ("hidden_transfer", HiddenTransferConfig(depth=4, layers=(4, 5, 6, 6)), {"training": _FEW}),
    ("firp", HiddenTransferConfig(depth=4), {"training": _FEW}),
    ("ppd", PPDConfig(depth=4), {"points": 64, "training": dataclasses.replace(_FEW, rate=1e-2)}),
  )
}

if __name__ == "__main__":
  heads = {name: repr(config.head) for name, config in CONFIGS.items()}
  choice = tyro.extras.subcommand_type_from_defaults(CONFIGS, heads)
  sys.exit(script.run(main, choice, __doc__, markers=(tyro.conf.AvoidSubcommands,)))
