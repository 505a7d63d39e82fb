"""Methods decode the same prompts in turns, so that a machine whose speed drifts is fair to all.

For each batch of prompts the methods follow each other directly, and the whole is repeated. The
time of a batch is the median of its repeats. Orders are those of Williams (1949, Experimental
designs balanced for the estimation of residual effects of treatments), since the one before leaves
its own weights in the caches: where the same one always came before, two equal methods were 2 to
5 % apart.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.eval import report


@dataclasses.dataclass
class Runs:
  """What one method did.

  Attributes:
    decoder: the method.
    results: one per prompt, of the first repeat.
    seconds, prefill: f64[repeats, batches]; a denoiser has no prefill.
    unstable: number of batches in which a repeat gave other ids than the first.
  """

  decoder: Any
  results: list[Any]
  seconds: np.ndarray
  prefill: np.ndarray
  unstable: int = 0

  @property
  def lossy(self) -> bool:
    """Whether the verifier may change the distribution."""
    return self.decoder.method.verifier.exactness.startswith("LOSSY")


def turns(
  names: Sequence[str], count: int, repeats: int, done: int = 0
) -> Iterator[tuple[int, int, str]]:
  """(repeat, item, name) of every turn after the first `done` items of all repeats.

  Over twice as many items as there are names, each name begins equally often, and follows each
  other one equally often.
  """
  n = len(names)
  zigzag = [k // 2 if k % 2 == 0 else n - 1 - k // 2 for k in range(n)]
  cells = [(r, i) for r in range(repeats) for i in range(count)]
  for r, i in report.progress(cells, "measuring", done):
    k = r * count + i
    order = zigzag if k // n % 2 == 0 else zigzag[::-1]
    for j in order:
      yield r, i, names[(j + k) % n]


def decode(
  decoders: Mapping[str, Decoder | DiffusionDecoder],
  prompts: Sequence[Sequence[int]],
  max_new_tokens: int,
  repeats: int,
) -> dict[str, Runs]:
  """What each decoder did, by name; all have the same batch size."""
  B = next(iter(decoders.values())).batch
  batches = [prompts[i : i + B] for i in range(0, len(prompts), B)]
  shape = (repeats, len(batches))
  runs = {k: Runs(d, [], np.zeros(shape), np.zeros(shape)) for k, d in decoders.items()}
  for r, i, name in turns(list(decoders), len(batches), repeats):
    run = runs[name]
    results = run.decoder(batches[i], max_new_tokens, first=i * B)
    run.seconds[r, i] = results[0].seconds
    run.prefill[r, i] = results[0].prefill_seconds
    if r == 0:
      run.results += results
    else:
      before = run.results[i * B : (i + 1) * B]
      run.unstable += any(a.tokens != b.tokens for a, b in zip(results, before, strict=True))
  return runs
