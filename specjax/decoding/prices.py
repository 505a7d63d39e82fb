"""What a round costs with drafts of each size, for a drafter that chooses among them by load.

The rounds are those of the loop that decodes, so that nothing is compiled for the measurement. They
write nothing: every row has reached its limit.

Letters: B batch, C sizes, S capacity, T padded length of a prompt.
"""

import json
import os
import pathlib
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, fingerprint, speculate
from specjax.drafters.combine.by_load import ROWS, Priced, kind
from specjax.kernels import compiled, skinny

if TYPE_CHECKING:
  from specjax.decoding.decoder import Decoder

TIMES = 5  # of which the median counts


def measure(decoder: "Decoder", batches: Sequence[int], T: int, capacity: int) -> np.ndarray:
  """Seconds f64[len(batches), C] of a round of B rows behind a prompt of T tokens.

  Args:
    decoder: its drafter is `by_load`.
    capacity: S of the caches.
  """
  methods = decoder.methods
  found = np.zeros((len(batches), len(methods)))
  for i, B in enumerate(batches):
    request = decoder.request(np.zeros(B, int), np.full(B, T))
    tokens, length = jnp.zeros((B, T), jnp.int32), jnp.full(B, T, jnp.int32)
    state = speculate.compiled_start(
      decoder.method, decoder.weights, tokens, length, request, capacity
    )
    seconds: list[list[float]] = [[] for _ in methods]
    for _ in range(1 + TIMES):  # in turns; the first may compile
      for method, own in zip(methods, seconds, strict=True):
        state = state._replace(done=jnp.zeros(B, bool))
        begin = time.perf_counter()
        state = speculate.compiled_advance(method, decoder.weights, request, state, jnp.int32(1))
        jax.block_until_ready(state)
        own.append(time.perf_counter() - begin)
    found[i] = [np.median(own[1:]) for own in seconds]
  return found


def _file(decoder: "Decoder", batches: Sequence[int], T: int, capacity: int) -> pathlib.Path:
  """Where the prices are kept, named by all that they depend on."""
  device = jax.devices()[0]
  key = decoder.model.ingredients() | {
    "drafter": decoder.name, "verifier": decoder.verifier, "cache": decoder.cache,
    "processors": [one.name for one in decoder.method.processors],
    "dtype": str(jnp.dtype(decoder.model.dtype)),
    "batches": list(batches), "T": T, "capacity": capacity, "jax": jax.__version__,
    "machine": [platform.node(), platform.machine(), device.platform, device.device_kind],
    "devices": jax.device_count(), "kernels": compiled.FLOATS if skinny.available() else None,
  }  # fmt: skip
  name = fingerprint.digest([json.dumps(key, sort_keys=True, default=str)])
  return fingerprint.cache_dir() / "prices" / f"{name}.json"


def prices(decoder: "Decoder", batches: Sequence[int], T: int, capacity: int) -> Priced:
  """The drafter's weights with the prices of this machine, timed unless they are kept; see
  `measure`."""
  weights = decoder.weights.drafter
  assert isinstance(weights, Priced)
  file = _file(decoder, batches, T, capacity)
  shape = (len(batches), weights.prices.shape[1])
  kept = checks.read_json(file) if file.exists() else {}
  found = np.asarray(kept.get("seconds", []))
  if found.shape != shape:
    found = measure(decoder, batches, T, capacity)
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_suffix(f".{os.getpid()}")  # another process may read the file meanwhile
    whole.write_text(json.dumps({"batches": list(batches), "seconds": found.tolist()}))
    os.replace(whole, file)
  table = np.empty((ROWS, shape[1]), np.float32)
  of_kind = [kind(B) for B in batches]
  for row in range(ROWS):
    nearest = min(range(len(batches)), key=lambda i: abs(of_kind[i] - row))
    table[row] = found[nearest]
  return weights._replace(prices=jnp.asarray(table))
