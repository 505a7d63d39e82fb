"""Draft heads for smollm2-135m, which learn from what the model itself asks and answers.

    python -m specjax.train.prompts --model smollm2-135m --out runs/smollm2-135m/prompts \\
        --questions 2500 --texts 600 --longest-text 224 --join gsm8k_train.jsonl --joined 3500 \\
        --avoid spec_bench.jsonl gsm8k_test.jsonl
    python -m specjax.configs.smollm2_135m eagle3

The first head computes the answers and the target's states, which all share. Every head guesses
among the 6000 most frequent tokens of the answers and learns from the target's distributions.

On one H200 prompts and answers, 0.8 M tokens of them, take 12 minutes, most of them the compiler's,
and the two heads that ship 2 minutes and 1. The others are as in the bake-off, for CPUs.
"""

import dataclasses
import sys
from typing import Any

import tyro

from specjax import command_line
from specjax.heads import HEADS
from specjax.train.heads import Config, main
from specjax.train.recipe.config import Training

_TRAINING = Training(batch=8, steps=600, rate=1e-3, warmup=30, save_every=50, devices=1)
_SAME = Config(
  model="smollm2-135m",
  data="runs/smollm2-135m/prompts/prompts.jsonl",
  out="",
  answers="runs/smollm2-135m/answers.jsonl",
  features="runs/smollm2-135m/features",
  layers=(2, 15, 22, 27, 30),
  questions=100_000,
  held_out=60,
  max_new_tokens=160,
  answer_batch=32,
  length=512,
  draft_vocab=6000,
  points=256,
  training=_TRAINING,
)


# Each guess of these passes through layers of its own or the target's.
def _few(rate: float) -> dict[str, Any]:
  return {"points": 64, "training": dataclasses.replace(_TRAINING, batch=2, rate=rate)}


def _long(steps: int) -> Training:
  return dataclasses.replace(_TRAINING, batch=16, steps=steps, warmup=100)


_FOUR, _SHARED, _SOFT = {"depth": 4}, {"depth": 4, "shared": True}, (0.0, 1.0, 0.0, 0.8)
_ALIKE = (
  "eagle3", "eagle", "mlp_speculator", "redrafter", "blockwise", "clover", "clover2", "chimera",
  "mtp", "jakiro", "griffin",
)  # fmt: skip
# The head of each run, its shape, and the other options that differ.
_RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
  name: (name, _FOUR, {}) for name in _ALIKE
} | {
  "eagle3": ("eagle3", _FOUR, {"training": _long(2000)}),
  "medusa": ("medusa", _SHARED, {"loss": _SOFT, "training": _long(1500)}),
  "hydra": ("hydra", _SHARED, {}),
  "hydra_pp": ("hydra", _SHARED | {"prefix": True, "blocks": 4}, {}),
  "ctc": ("ctc", {"depth": 6}, {}),
  "pard": ("pard", _FOUR, _few(1e-3)),
  "peagle": ("peagle", _FOUR, _few(1e-3)),
  "dflash": ("dflash", _FOUR | {"hidden_layers": (2, 15, 27)}, _few(1e-3)),
  "hidden_transfer": ("hidden_transfer", {"depth": 3, "layers": (22, 22, 22)}, _few(1e-3)),
  "masked_slots": ("masked_slots", _FOUR, _few(3e-3)),
  "ppd": ("ppd", _FOUR, _few(1e-2)),
}
CONFIGS: dict[str, Config] = {
  name: dataclasses.replace(
    _SAME, out=f"runs/smollm2-135m/{name}", head=HEADS[kind][1](**shape), **rest
  )
  for name, (kind, shape, rest) in _RUNS.items()
}

if __name__ == "__main__":
  heads = {name: repr(config.head) for name, config in CONFIGS.items()}
  choice = tyro.extras.subcommand_type_from_defaults(CONFIGS, heads)
  sys.exit(command_line.run(main, choice, __doc__, markers=(tyro.conf.AvoidSubcommands,)))
