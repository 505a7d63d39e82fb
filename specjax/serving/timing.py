"""Times rounds with drafts of each size, once, with the programs that decode; the times are kept.

Letters: B batch, C sizes, S capacity, T padded length of a prompt.
"""

import json
import os
import pathlib
import platform
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, fingerprint, speculate
from specjax.decoding.decoder import Decoder
from specjax.decoding.prices import ROUNDS, Prices
from specjax.kernels import compiled, skinny

TIMES, SECONDS = 9, 1.0  # turns at least; more in so many seconds
QUIET = 0.25  # the quantile that counts: what else runs on the machine makes turns longer alone


def _turn(
  decoder: Decoder, request: speculate.DecodeRequest, begun: speculate.DecodeState
) -> list[tuple[float, int, int]]:
  """(seconds, rounds, rounds with a draft) of as many rounds of each size as follow each other."""
  taken = []
  for method in decoder.methods:
    state = jax.block_until_ready(jax.tree.map(jnp.copy, begun))
    begin = time.perf_counter()
    state = speculate.compiled_advance(method, decoder.weights, request, state, jnp.int32(ROUNDS))
    passes = np.asarray(state.stats.passes)
    seconds = time.perf_counter() - begin
    drafted = np.asarray(state.stats.offered)[0, 1:].sum()  # all rows are alike
    taken.append((seconds, max(int(passes.max()), 1), int(drafted)))
  return taken


def rounds_of(turns: np.ndarray, narrow: bool) -> np.ndarray:
  """Seconds f64[C] of a round with a whole draft, of turns f64[n, C, 3] as of `_turn`.

  Rounds are timed together, as they run later, so that they share what a call costs besides. Those
  that found no guess count as rounds without a draft where they ran a narrow pass. No draft costs
  less than a smaller one.
  """
  seconds = np.quantile(turns[..., 0], QUIET, axis=0)
  _, rounds, drafted = turns[0].T
  found = seconds / rounds
  if narrow:
    whole = (seconds - (rounds - drafted) * found[0]) / np.maximum(drafted, 1)
    found = np.where(drafted > 0, whole, found)
  return np.maximum.accumulate(found)


def measure(decoder: Decoder, batches: Sequence[int], T: int, capacity: int) -> np.ndarray:
  """Seconds f64[len(batches), C] of a round of B rows with a whole draft behind T tokens.

  Args:
    decoder: its drafter is `by_load`.
    capacity: S of the caches.
  """
  found = np.zeros((len(batches), len(decoder.methods)))
  for i, B in enumerate(batches):
    limit = np.full(B, capacity - 1 - decoder.method.drafter.depth)
    request = decoder.request(np.zeros(B, int), limit)
    request = request._replace(stop=jnp.full_like(request.stop, -1))
    tokens, length = jnp.zeros((B, T), jnp.int32), jnp.full(B, T, jnp.int32)
    begun = speculate.compiled_start(
      decoder.method, decoder.weights, tokens, length, request, capacity
    )
    _turn(decoder, request, begun)  # may compile
    end, turns = time.perf_counter() + SECONDS, list[list[tuple[float, int, int]]]()
    while len(turns) < TIMES or time.perf_counter() < end:
      turns.append(_turn(decoder, request, begun))
    found[i] = rounds_of(np.array(turns), 1 in decoder.method.narrow)
  return found


def _file(decoder: Decoder, batches: Sequence[int], T: int, capacity: int) -> pathlib.Path:
  """Where the prices are kept, named by all that they depend on."""
  device = jax.devices()[0]
  key = decoder.model.ingredients() | {
    "drafter": decoder.name, "verifier": decoder.verifier, "cache": decoder.cache,
    "pages": decoder.method.target is not decoder.model.target,
    "processors": [one.name for one in decoder.method.processors],
    "dtype": str(jnp.dtype(decoder.model.dtype)),
    "rounds": ROUNDS, "seconds": SECONDS, "quantile": QUIET, "batches": list(batches),
    "T": T, "capacity": capacity, "jax": jax.__version__,
    "machine": [platform.node(), platform.machine(), device.platform, device.device_kind],
    "devices": jax.device_count(), "kernels": compiled.FLOATS if skinny.available() else None,
  }  # fmt: skip
  name = fingerprint.digest([json.dumps(key, sort_keys=True, default=str)])
  return fingerprint.cache_dir() / "prices" / f"{name}.json"


def prices(decoder: Decoder, batches: Sequence[int], T: int, capacity: int) -> Prices:
  """The prices of this machine, timed unless they are kept; see `measure`."""
  file = _file(decoder, batches, T, capacity)
  kept = checks.read_json(file) if file.exists() else {}
  found = np.asarray(kept.get("seconds", []))
  if found.shape != (len(batches), len(decoder.methods)):
    found = measure(decoder, batches, T, capacity)
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_suffix(f".{os.getpid()}")  # another process may read the file meanwhile
    whole.write_text(json.dumps({"batches": list(batches), "seconds": found.tolist()}))
    os.replace(whole, file)
  return Prices(batches, found)
