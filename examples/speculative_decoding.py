"""The same answers in fewer passes: plain decoding, and a drafter whose guesses are verified.

python examples/speculative_decoding.py --model smollm2-135m --drafter prompt_lookup-8
"""

import dataclasses
import sys

import specjax
from specjax import command_line

QUESTIONS = (
  "Lena bakes 3 trays of 12 rolls and sells 20. How many are left?",
  "A train has 8 coaches of 64 seats. 100 seats are empty. How many people sit in it?",
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared."""

  model: str = "gsm8k-7m"  # name of the zoo, directory or GGUF file
  drafter: str = "eagle-8"  # name that `specjax list` shows
  temperature: float = 0.0  # of the sampling; 0 is greedy
  max_new_tokens: int = 64  # of an answer


def main(config: Config) -> None:
  model = specjax.load(config.model)
  prompts = [model.chat(question) for question in QUESTIONS]
  answers = {}
  for name in ("none", config.drafter):
    decoder = specjax.Decoder(
      model, name, "target_only", temperature=config.temperature, batch=len(prompts)
    )
    decoder(prompts, config.max_new_tokens)  # compiles
    answers[name] = decoder(prompts, config.max_new_tokens)
  for plain, drafted in zip(*answers.values(), strict=True):
    print(drafted.text.strip())
    print(f"  same tokens: {drafted.tokens == plain.tokens}", end=", ")
    print(f"{drafted.emitted / drafted.passes:.2f} tokens per pass", end=", ")
    print(f"{plain.seconds / drafted.seconds:.2f} times as fast")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
