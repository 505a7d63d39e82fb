"""Methods decode the same prompts in turns, so that a machine whose speed drifts is fair to all.

For each batch of prompts the methods follow each other directly, and the whole is repeated. The
time of a batch is the median of its repeats. Orders are those of Williams (1949, Experimental
designs balanced for the estimation of residual effects of treatments), since the one before leaves
its own weights in the caches: where the same one always came before, two equal methods were 2 to
5 % apart.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specjax import fingerprint
from specjax.data import resume
from specjax.decoding.batching import Filling, Result, Rounds
from specjax.decoding.decoder import Decoder
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.eval import report
from specjax.names.load import Model


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


def ingredients(
  model: Model, config: Any, asked: Sequence[Any], weights: Sequence[Any]
) -> fingerprint.Key:
  """What a run that was killed must share with one that goes on: all but the machine's load.

  Args:
    config: of the run, a dataclass.
    asked: what was asked, of whatever JSON can say.
    weights: those of each method.
  """
  machine = report.environment()["machine"]
  return {
    **dataclasses.asdict(config),
    "model": model.label,
    "machine": {k: v for k, v in machine.items() if k != "load"},
    "data_digest": fingerprint.digest([json.dumps(asked)]),
    **model.ingredients(),
    "drafters.weights": [fingerprint.of_weights(x) for x in weights],
  }


def _read(said: dict[str, Any]) -> Result:
  """A result as it was written, in JSON."""
  parts = {"rounds": Rounds(**said["rounds"]), "filling": Filling(**said["filling"])}
  return Result(**said | parts)


def decode(
  decoders: Mapping[str, Decoder | DiffusionDecoder],
  prompts: Sequence[Sequence[int]],
  max_new_tokens: int,
  repeats: int,
  so_far: pathlib.Path | None = None,
) -> dict[str, Runs]:
  """What each decoder did, by name; all have the same batch size.

  What all of them did with a batch is added to the file `so_far`, a line each. Batches that it has
  are not decoded again.
  """
  B = next(iter(decoders.values())).batch
  batches = [prompts[i : i + B] for i in range(0, len(prompts), B)]
  lines = resume.kept(so_far) if so_far else []
  found = [{name: list(map(_read, each)) for name, each in line.items()} for line in lines]
  left = turns(list(decoders), len(batches), repeats, len(found))
  for (_, i), each in itertools.groupby(left, lambda turn: turn[:2]):
    names = (name for _, _, name in each)
    found.append({k: decoders[k](batches[i], max_new_tokens, first=i * B) for k in names})
    if so_far:
      with so_far.open("a") as file:
        file.write(json.dumps(found[-1], default=dataclasses.asdict) + "\n")
  return {name: _collect(d, [x[name] for x in found], repeats) for name, d in decoders.items()}


def _collect(decoder: Any, found: list[list[Result]], repeats: int) -> Runs:
  """What one method did with the batches of all repeats."""
  n = len(found) // repeats
  first = [result for batch in found[:n] for result in batch]
  seconds = np.array([batch[0].seconds for batch in found]).reshape(repeats, n)
  prefill = np.array([batch[0].prefill_seconds for batch in found]).reshape(repeats, n)
  ids = [[result.tokens for result in batch] for batch in found]
  unstable = sum(ids[k] != ids[k % n] for k in range(len(ids)))
  return Runs(decoder, first, seconds, prefill, unstable)
