"""A model that continues prompts in stages, each in a file that a killed run continues."""

import pathlib
from collections.abc import Iterator, Sequence

from specjax.decoding.decoder import Decoder
from specjax.names.load import Model
from specjax.serving.refill import refilled
from specjax.train.recipe import answer_file


class Writer:
  """Continues prompts at a temperature, `batch` at a time."""

  asked = 0  # in all stages, so that each request has noise of its own

  def __init__(self, model: Model, out: pathlib.Path, *, temperature: float, seed: int, batch: int):
    self._out = out
    self._decoder = Decoder(model, temperature=temperature, seed=seed, batch=batch)

  def continued(self, name: str, prompts: Sequence[list[int]], budget: int) -> list[list[int]]:
    """The ids that the model says behind each prompt, up to `budget`, from NAME.jsonl."""
    if not prompts:
      return []
    before, self.asked = self.asked, self.asked + len(prompts)

    def reply(left: list[int]) -> Iterator[tuple[int, list[int]]]:
      asked, numbers = [prompts[i] for i in left], [before + i for i in left]
      for k, result in refilled(self._decoder, asked, budget, numbers=numbers):
        yield left[k], result.tokens

    print(f"{name}:")
    documents = answer_file.written(self._out / f"{name}.jsonl", dict(enumerate(prompts)), reply)
    return [ids[len(prompt) :] for prompt, (ids, _) in zip(prompts, documents, strict=True)]
