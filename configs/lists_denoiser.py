"""The zoo's denoiser: 3M parameters on operations on lists of names, and GSM8K text beside them.

    python -m specjax.configs.lists_denoiser --data gsm8k_train.jsonl

There are two runs, in OUT and OUT-second; the second starts from the model of the first. Without
--data, GSM8K comes from the TFDS catalogue (needs a network).
"""

import dataclasses
import json
import pathlib
import sys

from specjax.data import lists
from specjax.data.sources import open_source
from specjax.train.denoiser import Config, main
from specjax.train.recipe import options
from specjax.train.recipe.config import Network, Training

CONFIG = Config(
  data="tfds:gsm8k:train",
  out="runs/lists-3m",
  template="continued",
  vocab_size=2048,
  length=24,
  network=Network(width=256, layers=3, heads=8, kv_heads=8, head_dim=32, mlp_width=768),
  training=Training(batch=64, steps=7000, rate=2e-3, warmup=200, decay=0.1, save_every=250),
)
SECOND = {"steps": 4000, "rate": 1e-3, "warmup": 100, "seed": 1}
RECORDS = 400_000
TEXTS = 1000  # with more of them, the model learns the lists thousands of steps later


def mixture(source: str, file: pathlib.Path) -> None:
  """Writes questions about lists, and GSM8K's questions and answers as plain text."""
  gsm8k = open_source(source)
  texts = [
    {"text": f"{r['question']}\n{r['answer']}"}
    for r in map(gsm8k.__getitem__, range(min(TEXTS, len(gsm8k))))
  ]
  unfinished = file.with_suffix(".tmp")
  with unfinished.open("w") as sink:
    for record in [*texts, *lists.records(0, RECORDS)]:
      sink.write(json.dumps(record) + "\n")
  unfinished.replace(file)


def both(config: Config) -> None:
  """The two runs."""
  file = pathlib.Path(config.out) / "data.jsonl"
  if not file.exists():
    file.parent.mkdir(parents=True, exist_ok=True)
    mixture(config.data, file)
  first = dataclasses.replace(config, data=str(file))
  main(first)
  main(
    dataclasses.replace(
      first,
      start=f"{config.out}/model",
      out=f"{config.out}-second",
      training=dataclasses.replace(config.training, **SECOND),
    )
  )


if __name__ == "__main__":
  sys.exit(options.command(both, Config, __doc__, default=CONFIG))
