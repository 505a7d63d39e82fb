"""Shows a canvas after every pass: filled one slot per pass, and with every slot that is certain.

python examples/denoising.py --policies confidence threshold-0.9
"""

import dataclasses
import sys

import specjax
from specjax import command_line


@dataclasses.dataclass(frozen=True)
class Config:
  """What is filled in."""

  model: str = "lists-3m"  # name of the zoo or directory of a masked diffusion model
  question: str = "sort : Leo Ada Kim Bob ="  # operation on a list of names
  policies: tuple[str, ...] = ("confidence", "threshold-0.9")  # that `specjax list` shows
  slots: int = 16  # of the canvas


def main(config: Config) -> None:
  model = specjax.load(config.model)
  prompt = model.chat(config.question)
  for policy in config.policies:
    decoder = specjax.DiffusionDecoder(model, policy, blocks=config.slots)
    (filled,) = decoder([prompt], config.slots)
    print(f"{policy}: {filled.text.strip()} in {filled.passes} passes")
    when = filled.filling.when[-config.slots :]
    for step in sorted(set(when)):
      print("  " + "".join("#" if at <= step else "." for at in when))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
