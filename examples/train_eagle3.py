"""An EAGLE-3 head for a model, trained on its own answers, and what it saves.

    python examples/train_eagle3.py --data gsm8k_train.jsonl --steps 400 --out runs/example

The run continues where it was killed. `python -m specjax.train.heads` has every option.
"""

import dataclasses
import pathlib
import sys

import specjax
from specjax import command_line
from specjax.heads.eagle3 import Eagle3Config
from specjax.train import heads
from specjax.train.recipe.config import Training


@dataclasses.dataclass(frozen=True)
class Config:
  """What is trained."""

  data: str  # questions, one JSON object per line
  out: str = "runs/eagle3"  # directory of the run
  model: str = "gsm8k-7m"  # name of the zoo, directory or GGUF file
  questions: int = 200  # of which the first tenth is held out
  steps: int = 400  # of the optimiser


def main(config: Config) -> None:
  held_out = max(1, config.questions // 10)
  heads.main(
    heads.Config(
      model=config.model,
      data=config.data,
      out=config.out,
      questions=config.questions,
      held_out=held_out,
      max_new_tokens=64,
      head=Eagle3Config(hidden_layers=(2, 4, 6)),
      draft_vocab=512,
      training=Training(steps=config.steps),
    )
  )
  model = specjax.load(config.model)
  head = pathlib.Path(config.out) / "model"
  (answer,) = specjax.Decoder(model, f"eagle3-8[{head}]")([model.chat("What is 3 times 12?")], 48)
  print(f"{answer.text.strip()}\n{answer.emitted / answer.passes:.2f} tokens per pass")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
