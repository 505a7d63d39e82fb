"""Every draft head on gsm8k-7m: the same answers, states, steps and draft vocabulary.

    python -m specjax.configs.bakeoff hydra --data gsm8k_train.jsonl
    python benchmarks/speed/bakeoff.py --prompts gsm8k_test.jsonl

The target's answers to the 7473 training questions (100 of them held out) and its states (3.7 GB)
are computed by the first head and shared by all. Every head takes 1500 steps of 8 rows x 256
positions with the loss published for it, guesses among the 512 tokens that make up 99.85 % of the
answers, and reads them out through the target's LM head where the method allows it. Hidden
Transfer, FIRP, PPD and masked slots, each of whose guesses passes through layers of the target,
take 2 rows a step, and the last two, whose guesses pass through all layers, 64 positions of each.
DFlash, PARD and P-EAGLE, whose blocks pass through their layers whole, do as these.
On 2 CPU cores answers take 40 minutes and states 6; benchmarks/results/heads_gsm8k has the minutes
of each head.
"""

import dataclasses
import sys
from typing import Any

import tyro

from specjax import command_line
from specjax.heads import HEADS
from specjax.train.heads import Config, main
from specjax.train.recipe.config import Training

_TRAINING = Training(batch=8, steps=1500, save_every=250, devices=1)
_FEW = dataclasses.replace(_TRAINING, batch=2)
_SAME = Config(
  model="gsm8k-7m",
  data="tfds:gsm8k:train",
  out="",
  answers="runs/bakeoff/answers.jsonl",
  features="runs/bakeoff/features",
  layers=(2, 4, 5, 6, 8),
  questions=7473,
  held_out=100,
  draft_vocab=512,
  points=256,
  training=_TRAINING,
)

# The head of each run, its shape, and the other options that differ.
_ALIKE = (
  "blockwise", "mlp_speculator", "redrafter", "clover", "clover2", "eagle", "eagle3", "mtp",
  "jakiro", "griffin", "chimera",
)  # fmt: skip
_FIVE, _SHARED = {"depth": 5}, {"depth": 5, "shared": True}
_RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
  name: (name, _FIVE, {}) for name in _ALIKE
} | {
  "medusa": ("medusa", _SHARED, {}),
  "ctc": ("ctc", {"depth": 6}, {}),
  "hydra": ("hydra", _SHARED, {}),
  "hydra_pp": ("hydra", _SHARED | {"prefix": True}, {}),
  "hidden_transfer": ("hidden_transfer", {"depth": 4, "layers": (4, 5, 6, 6)}, {"training": _FEW}),
  "firp": ("hidden_transfer", {"depth": 4}, {"training": _FEW}),
  "pard": ("pard", _FIVE, {"points": 64, "training": _FEW}),
  "peagle": ("peagle", _FIVE, {"points": 64, "training": _FEW}),
  "dflash": ("dflash", {"depth": 5, "hidden_layers": (2, 4, 6)}, {"points": 64, "training": _FEW}),
  "masked_slots": (
    "masked_slots",
    {"depth": 4},
    {"points": 64, "training": dataclasses.replace(_FEW, rate=3e-3)},
  ),
  "ppd": ("ppd", {"depth": 4}, {"points": 64, "training": dataclasses.replace(_FEW, rate=1e-2)}),
}
CONFIGS: dict[str, Config] = {
  name: dataclasses.replace(_SAME, out=f"runs/bakeoff/{name}", head=HEADS[kind][1](**shape), **rest)
  for name, (kind, shape, rest) in _RUNS.items()
}

if __name__ == "__main__":
  heads = {name: repr(config.head) for name, config in CONFIGS.items()}
  choice = tyro.extras.subcommand_type_from_defaults(CONFIGS, heads)
  sys.exit(command_line.run(main, choice, __doc__, markers=(tyro.conf.AvoidSubcommands,)))
