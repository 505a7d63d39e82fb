"""smollm2-135m as a denoiser that is causal over blocks of 8, and a student of it that is faster.

    python -m specjax.configs.smollm2_denoiser

The chat model answers prompts such as `configs.smollm2_135m` makes, all its weights learn to fill
these answers in bfloat16, 50 million tokens of rows, and certainty-forcing distillation follows.
The models are in OUT/model and OUT-student/model. The same command again continues a run that was
killed, in whichever part.
"""

import dataclasses
import json
import pathlib
import sys

from specjax.train import denoiser, distill
from specjax.train.denoiser import Config
from specjax.train.recipe import answers, options
from specjax.train.recipe.config import Training

NEW = 256  # tokens of an answer
CONFIG = Config(
  data="runs/smollm2-135m/prompts/prompts.jsonl",
  out="runs/smollm2-denoiser",
  start="smollm2-135m",
  length=512,
  block_length=8,
  dtype="bfloat16",
  training=Training(batch=32, steps=3050, rate=3e-4, warmup=100, decay=0.1, save_every=50),
)
STUDENT = {"rate": 1e-4, "warmup": 20}


def conversations(config: Config, file: pathlib.Path) -> None:
  """Writes the questions with the model's own answers, without those that found no end."""
  assert config.start is not None
  asking = answers.AnswersConfig(
    config.start,
    config.data,
    config.out,
    questions=1_000_000,
    held_out=1,
    max_new_tokens=NEW,
    answer_batch=32,
    length=config.length,
    training=dataclasses.replace(config.training, batch=1),
  )
  model = answers.teacher(config.start, causal=True, template=config.template)
  found = answers.asked(model, asking)
  unfinished, cut = file.with_suffix(".tmp"), 0
  with unfinished.open("w") as sink:
    for asked, (text,) in zip(found, answers.answered(model, found, asking), strict=True):
      *answer, last = text[0][len(asked.prompt) :]
      if last not in model.stop:
        cut += 1
      else:
        said = {"role": "assistant", "content": model.decode(answer, asked.prompt)}
        sink.write(json.dumps({"messages": [*asked.turns, said]}) + "\n")
  unfinished.replace(file)
  if cut:
    print(f"{cut} of {len(found)} answers have no end within {NEW} tokens and are left out.")


def both(config: Config) -> None:
  """The answers, the denoiser and its student."""
  file = pathlib.Path(config.out) / "conversations.jsonl"
  file.parent.mkdir(parents=True, exist_ok=True)
  conversations(config, file)  # from the answers that are there, if the questions are the same
  denoiser.main(dataclasses.replace(config, data=str(file)))
  distill.main(
    distill.Config(
      f"{config.out}/model",
      str(file),
      f"{config.out}-student",
      questions=1_000_000,
      new=NEW,
      dtype=config.dtype,
      training=dataclasses.replace(config.training, **STUDENT),
    )
  )


if __name__ == "__main__":
  sys.exit(options.command(both, Config, __doc__, default=CONFIG))
