"""The zoo's denoiser: 3M parameters on operations on lists of names, and GSM8K text beside them.

    python -m specjax.configs.lists_denoiser --data gsm8k_train.jsonl

Without --data, GSM8K comes from the TFDS catalogue (needs a network).
"""

import dataclasses
import json
import pathlib

import tyro

from specjax.data import lists
from specjax.data.sources import open_source
from specjax.train.denoiser import Config, main

CONFIG = Config(
  data="tfds:gsm8k:train", out="runs/lists-3m", template="continued", vocab_size=2048,
  width=192, layers=6, heads=6, kv_heads=6, head_dim=32, mlp_width=512,
  length=32, batch=64, steps=6000, rate=2e-3, warmup=200, save_every=250,
)  # fmt: skip
RECORDS = 400_000


def mixture(source: str, file: pathlib.Path) -> None:
  """Writes questions about lists, and GSM8K's questions with answers as plain text."""
  gsm8k = open_source(source)
  texts = [
    {"text": f"{r['question']}\n{r['answer']}"} for r in map(gsm8k.__getitem__, range(len(gsm8k)))
  ]
  unfinished = file.with_suffix(".tmp")
  with unfinished.open("w") as sink:
    for record in [*texts, *lists.records(0, RECORDS)]:
      sink.write(json.dumps(record) + "\n")
  unfinished.replace(file)


if __name__ == "__main__":
  config = tyro.cli(Config, default=CONFIG, description=__doc__)
  file = pathlib.Path(config.out) / "data.jsonl"
  if not file.exists():
    file.parent.mkdir(parents=True, exist_ok=True)
    mixture(config.data, file)
  main(dataclasses.replace(config, data=str(file)))
