"""A text that grows by rounds, for tests of caches, beside lists of what was committed."""

import numpy as np
from jax import numpy as jnp

from specjax.base import KV
from specjax.models.caches import Queries

B, K, H, C, L = 2, 2, 4, 8, 2
RNG = np.random.default_rng(0)


def rows(*shape):
  return RNG.normal(size=shape).astype(np.float32)


class Text:
  """A growing text of random rows, committed by rounds, beside lists of what was committed."""

  def __init__(self, kind, prompt, capacity, judged=False):
    T = max(prompt) + 1
    k, v, q = (rows(L, B, n, T, C) for n in (K, K, H))
    place = np.where(np.arange(T) < np.array(prompt)[:, None], np.arange(T), -1)
    asked = Queries(tuple(map(jnp.asarray, q)), jnp.asarray(place, jnp.int32)) if judged else None
    self.kind, self.judged = kind, judged
    self.k, self.v, self.q = (
      [[list(x[i, b, :, :n].swapaxes(0, 1)) for b, n in enumerate(prompt)] for i in range(L)]
      for x in (k, v, q)
    )
    self.rounds = []
    self.cache = kind.start(self._kv(k, v), asked, jnp.asarray(prompt, jnp.int32), capacity)

  def _kv(self, k, v):
    return KV(tuple(map(jnp.asarray, k)), tuple(map(jnp.asarray, v)))

  def commit(self, path, committed):
    path = np.asarray(path)
    N = path.max() + 1
    k, v, q = (rows(L, B, n, N, C) for n in (K, K, H))
    asked = Queries(tuple(map(jnp.asarray, q)), jnp.zeros((B, N), jnp.int32))
    self.cache = self.kind.commit(
      self.cache, self._kv(k, v), asked if self.judged else None, jnp.asarray(path, jnp.int32),
      jnp.asarray(committed, jnp.int32),
    )  # fmt: skip
    for own, x in ((self.k, k), (self.v, v), (self.q, q)):
      for i in range(L):
        for b, n in enumerate(committed):
          own[i][b] += [x[i, b, :, node] for node in path[b, :n]]

  def read(self, b, q=None):
    """(keys, values) [L, rows, K, C] that row b reads."""
    q = jnp.zeros((B, H, 1, C)) if q is None else jnp.asarray(q)
    found = []
    for i in range(L):
      k, v, seen = map(np.asarray, self.kind.read(self.cache, i, q))
      seen = np.arange(k.shape[2])[None] < seen[:, None] if seen.ndim == 1 else seen
      found.append((k[b][:, seen[b]].swapaxes(0, 1), v[b][:, seen[b]].swapaxes(0, 1)))
    return [np.stack(x) for x in zip(*found, strict=True)]


PATHS = [[0, 2, 1, 3, 3], [0, 1, 3, 2, 2]]
ROUNDS = [(5, 0), (1, 5), (0, 3), (4, 4), (2, 1)]


def kept_by_sinks(n, first, recent):
  return sorted(set(range(min(first, n))) | set(range(max(n - recent, 0), n)))


def softmax(x):
  p = np.exp(x - x.max())
  return p / p.sum()
