"""Methods decode the same prompts in turns.

Fair under drift: for each batch of prompts the methods follow each other directly, in an order
that rotates, and the whole is repeated; a batch's time is the median of its repeats.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from specjax.decoding.decoder import Decoder, Result


@dataclasses.dataclass
class Runs:
  """What one method did.

  Attributes:
    decoder: the method.
    results: one per prompt, of the first repeat.
    seconds, prefill: f64[repeats, batches].
    unstable: batches in which a repeat gave other ids than the first.
  """

  decoder: Decoder
  results: list[Result]
  seconds: np.ndarray
  prefill: np.ndarray
  unstable: int = 0

  @property
  def lossy(self) -> bool:
    return self.decoder.method.verifier.exactness.startswith("LOSSY")


def decode(
  decoders: dict[str, Decoder],
  prompts: Sequence[Sequence[int]],
  max_new_tokens: int,
  repeats: int,
) -> dict[str, Runs]:
  """Everything that is timed.

  Args:
    decoders: of one model and one batch size, by label.
    prompts: token ids.
    max_new_tokens: budget per prompt.
    repeats: times everything is decoded.
  """
  labels = list(decoders)
  B = decoders[labels[0]].batch
  batches = [prompts[i : i + B] for i in range(0, len(prompts), B)]
  shape = (repeats, len(batches))
  runs = {k: Runs(d, [], np.zeros(shape), np.zeros(shape)) for k, d in decoders.items()}
  console = Console(stderr=True)

  # Two rounds of every batch compile and touch all shapes before any clock runs.
  for part in track(batches, "warming", console=console, transient=True):
    for decoder in decoders.values():
      next(decoder.stream(part, max_new_tokens, rounds=2))

  turns = [(r, i) for r in range(repeats) for i in range(len(batches))]
  for r, i in track(turns, "measuring", console=console, transient=True):
    first = (r + i) % len(labels)
    for label in labels[first:] + labels[:first]:
      run = runs[label]
      results = run.decoder(batches[i], max_new_tokens, first=i * B)
      run.seconds[r, i] = results[0].seconds
      run.prefill[r, i] = results[0].prefill_seconds
      if r == 0:
        run.results += results
      else:
        before = run.results[i * B : (i + 1) * B]
        run.unstable += any(a.tokens != b.tokens for a, b in zip(results, before, strict=True))
  return runs
