"""ActQKV against a restatement of it in float64, row by row."""

import jax
import numpy as np
import pytest
from growing_text import B, C, H, K, L, Text, rows, softmax
from jax import numpy as jnp

from specjax.models.caches.actqkv import BLOCK, actqkv

GROUP = H // K


class Oracle:
  """One layer of one text: which rows are read, from lists of all keys and queries."""

  def __init__(self, least, more, first, recent):
    self.least, self.more, self.first, self.recent = least, more, first, recent
    self.summaries: list[np.ndarray] = []
    self.counts: set[int] = set()

  def commit(self, keys, queries):
    """keys [rows, K, C] and queries [rows, H, C], all so far; full blocks are judged once."""
    mean = queries.mean(0)
    while (len(self.summaries) + 1) * BLOCK <= len(keys):
      at = len(self.summaries) * BLOCK
      block = keys[at : at + BLOCK]
      logits = [sum(mean[h] @ row[h // GROUP] for h in range(H)) for row in block]
      self.summaries.append(block[np.argsort(logits)[-4:]].mean(0))

  def look(self, n, queries, asked):
    """(blocks to choose from, the cosine of each) of a text of n rows."""
    mean, variance = asked.mean(0), asked.var(0)
    bias = [((q - mean) ** 2 / (variance + variance.mean() / 100)).sum() for q in queries]
    probe = sum(w * q for w, q in zip(bias, queries, strict=True))
    local = max(n - self.recent, 0) // BLOCK * BLOCK
    places = [m for m in range(len(self.summaries)) if self.first < (m + 1) * BLOCK <= local]
    keys = [np.repeat(self.summaries[m], GROUP, 0) for m in places]
    size = np.linalg.norm(probe)
    return places, np.array([(probe * key).sum() / size / np.linalg.norm(key) for key in keys])

  def rows(self, n, queries, asked, seen):
    """The rows of n that a pass of `queries` [N, H, C] reads; asked [rows, H, C] are all before."""
    places, cosines = self.look(n, queries, asked)
    local = max(n - self.recent, 0) // BLOCK * BLOCK
    read = {*range(min(self.first, local)), *range(local, n)}
    if places:
      z = (flatness(cosines) - np.mean(seen)) / np.std(seen) if seen else 0
      count = round(self.least + self.more * (1 + np.tanh(z / 2)) / 2)  # a sigmoid
      self.counts.add(count)
      for i in np.argsort(cosines)[::-1][:count]:
        read |= {*range(places[i] * BLOCK, (places[i] + 1) * BLOCK)}
    return sorted(read)


def flatness(cosines):
  p = softmax(cosines)
  return -(p * np.log(p)).sum() / np.log(max(len(p), 2))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_blocks_are_read_that_the_probe_asks_for(nodes):
  numbers = (1, 11, 3, 20)
  text = Text(actqkv(*numbers), [700, 40], 900, judged=True)
  oracles = {(i, b): Oracle(*numbers) for i in range(L) for b in range(B)}
  before, seen = [0] * B, [[] for _ in range(B)]
  read = jax.jit(text.kind.read, static_argnums=1)

  def judge():
    """The flatness of all layers for the queries that were committed last."""
    for (i, b), oracle in oracles.items():
      keys, asked = (np.array(x[i][b], np.float64) for x in (text.k, text.q))
      if new := len(asked) - before[b]:
        old = len(asked) if before[b] == 0 else before[b]
        if before[b] == 0:
          oracle.commit(keys, asked)
        places, cosines = oracle.look(old, asked[-new:], asked[:old])
        seen[b] += [flatness(cosines)] if len(places) > 1 else []
      oracle.commit(keys, asked)
    before[:] = [len(text.k[0][b]) for b in range(B)]

  judge()
  for committed in [(0, 0), (20, 31), (1, 40), (40, 0), (33, 2)]:
    text.commit(np.tile(np.arange(40), (B, 1)), committed)
    judge()
    q = rows(B, H, nodes, C)
    for (i, b), oracle in oracles.items():
      keys, asked = (np.array(x[i][b], np.float64) for x in (text.k, text.q))
      k, v, visible = map(np.asarray, read(text.cache, i, jnp.asarray(q)))
      expected = oracle.rows(len(keys), np.float64(q[b]).swapaxes(0, 1), asked, seen[b])
      for found, true in ((k, text.k), (v, text.v)):
        found = found[b][:, visible[b]].swapaxes(0, 1).reshape(-1, K * C)
        true = np.float32(true[i][b])[expected].reshape(-1, K * C)
        np.testing.assert_array_equal(np.unique(found, axis=0), np.unique(true, axis=0))
        assert len(found) == len(true)
      grown, n = text.cache.asked[i], len(keys)
      np.testing.assert_allclose(grown.mean[b], asked.mean(0), rtol=1e-4, atol=1e-5)
      np.testing.assert_allclose(grown.variance[b], asked.var(0), rtol=1e-4, atol=1e-5)
      assert (text.cache.seen[b], text.cache.flat_seen[b]) == (n, len(seen[b]))
  # The number of blocks follows the entropy.
  assert len(set().union(*(x.counts for x in oracles.values()))) > 2
