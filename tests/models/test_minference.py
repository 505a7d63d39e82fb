"""MInference: what a chunk reads beside the patterns of the paper, row by row in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from growing_text import RNG, rows, softmax

from specjax.base import KV, Cache
from specjax.decoding.decoder import Decoder
from specjax.models.caches.minference import BLOCK, JUDGES, SAMPLE, minference
from specjax.models.compressed import compressed
from specjax.models.config import Config
from specjax.models.transformer import init, target
from specjax.names.load import Model

B, K, G, C, N, S = 3, 3, 2, 16, 192, 1152
COUNT, FIRST, RECENT = 320, 8, 24
START, REAL = 896, (192, 150, 30)  # one text goes on in the next chunk, others end in this
FAR = np.sort(RNG.permutation(np.arange(100, 500))[:90])


def text():
  """(q [B, H, N, C], k and v [B, K, S, C]): each head has a direction that some rows answer to.

  Of the first head that are the newest rows, of the second the rows of three blocks, of the third
  rows that lie apart; the last queries of the first two ask for rows that lie apart, too.
  """
  q, k, v = 0.1 * rows(B, K, G, N, C), 0.3 * rows(B, K, S, C), rows(B, K, S, C)
  answers = np.arange(START - COUNT + 40, START), np.r_[128:192, 512:576, 640:704], FAR
  for head, members in enumerate(answers):
    k[:, head, members, 0] += 4
    k[:, head, FAR, 1] += 4
    q[:, head, ..., 0] += 6
    if head < 2:
      for b, n in enumerate(REAL):
        last = slice(max(n - 40, 0), n)
        q[b, head, :, last, 0] = 0
        q[b, head, :, last, 1] += 6
  return q.reshape(B, K * G, N, C), k, v


def share(q, k):
  """What rows k [n, C] get of queries [G, C] of a head."""
  return sum(softmax(k @ one * C**-0.5) for one in q)


def patterns(q, k, real):
  """(the rows of each of the three patterns, what judges give each row), of q [G, N, C]."""
  n = len(k)
  always = {*range(FIRST), *range(n - RECENT, n)}

  def filled(ranked):
    rest = [i for i in ranked if i not in always]
    return always | set(rest[: COUNT - len(always)])

  sample = {i: share(q[:, i], k) for i in range(max(real - SAMPLE, 0), real)}
  columns = np.argsort(-sum(sample.values()), kind="stable")
  columns = [i for i in columns if i not in always][: (COUNT - FIRST - RECENT) // 2]
  distance = np.zeros(n + N + 1)
  for i, a in sample.items():
    for j in range(n):
      distance[n + i - j] += a[j]
  bands = [sum(distance[n + i - j] for i in range(real)) for j in range(n)]
  slashes = [i for i in np.argsort(-np.array(bands), kind="stable") if i not in columns]
  means = k.reshape(-1, BLOCK, C).mean(1)
  of_block = np.argsort(-share(q[:, :real].mean(1), means), kind="stable")
  inside = [block * BLOCK + i for block in of_block for i in range(BLOCK)]
  judges = sum(share(q[:, i * real // JUDGES], k) for i in range(JUDGES))
  found = filled(range(n)[::-1]), filled([*columns, *slashes]), filled(inside)
  return [sorted(x) for x in found], judges


def test_each_head_reads_by_the_pattern_that_finds_most():
  q, k, v = text()
  k[:, :, START:], v[:, :, START:] = 0, 0
  cache = Cache(KV((jnp.asarray(k),), (jnp.asarray(v),)), jnp.full(B, START))
  read = jax.jit(minference(COUNT, FIRST, RECENT, N).prompt.read, static_argnums=1)
  keys, values, seen = map(np.asarray, read(cache, 0, jnp.asarray(q), jnp.asarray(REAL)))
  assert keys.shape == (B, K, COUNT, C) and seen.tolist() == [COUNT] * B
  chosen = []
  for b, head in np.ndindex(B, K):
    own = np.float64(q[b].reshape(K, G, N, C)[head])
    found, judges = patterns(own, np.float64(k[b, head, :START]), REAL[b])
    best = int(np.argmax([judges[x].sum() for x in found]))
    chosen.append(best)
    for got, true in ((keys, k), (values, v)):
      want = true[b, head, found[best]]
      np.testing.assert_array_equal(np.unique(got[b, head], axis=0), np.unique(want, axis=0))
  assert chosen[: 2 * K] == [0, 2, 1] * 2


V, T = 12, 256
CONFIG = Config(
  vocab_size=V, width=16, layers=3, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=512
)
PARAMS = jax.tree.map(lambda p: p * 4, init(CONFIG, jax.random.key(1)))
TOKENS = RNG.integers(V, size=(2, T)).astype(np.int32)
LENGTH = jnp.asarray((250, 130), jnp.int32)
SMALL = dict(count=24, first=2, recent=6, chunk=64)


@functools.cache
def filled(kind=None):
  """(target, cache, hidden states) of the two texts."""
  lm = target(CONFIG) if kind is None else compressed(CONFIG, kind)
  start = jax.jit(lm.prefill, static_argnums=3)
  return lm, *start(PARAMS, TOKENS, LENGTH, T + 8)


@pytest.mark.parametrize("numbers", [{"count": 200}, {"count": 256}, {"chunk": 192}])
def test_a_prompt_that_is_read_whole_is_read_as_ever(numbers):
  """By as many rows as are before the last chunk, by more, or in one pass."""
  kind = minference(**SMALL | numbers)
  (_, cache, features), (_, dense, expected) = filled(kind), filled()
  assert cache.length.tolist() == dense.length.tolist()
  for b, n in enumerate(LENGTH):
    np.testing.assert_allclose(features.hidden[b, :n], expected.hidden[b, :n], atol=1e-4)
    for x, y in zip(jax.tree.leaves(cache.kv), jax.tree.leaves(dense.kv), strict=True):
      np.testing.assert_allclose(x[b, :, : n - 1], y[b, :, : n - 1], atol=1e-4)


def test_the_first_chunk_and_what_is_decoded_see_everything():
  lm, cache, features = filled(minference(**SMALL))
  plain, _, expected = filled()
  np.testing.assert_allclose(features.hidden[:, :64], expected.hidden[:, :64], atol=1e-4)
  assert np.abs(features.hidden[:, 64:130] - expected.hidden[:, 64:130]).max() > 0.01
  nodes = (
    jnp.asarray(TOKENS[:, :3]),
    jnp.zeros((2, 3), jnp.int32),
    jnp.tile(jnp.eye(3) > 0, (2, 1, 1)),
  )
  found, want = (x.evaluate(PARAMS, cache, *nodes).logits for x in (lm, plain))
  np.testing.assert_allclose(found, want, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_changes_no_token_behind_a_sparse_prompt(temperature):
  model = Model("random", CONFIG, PARAMS, None, (), (), None)
  prompts = [TOKENS[b, :n].tolist() for b, n in enumerate(LENGTH)]
  name = "minference-" + ",".join(str(n) if k == "count" else f"{k}={n}" for k, n in SMALL.items())
  options = {"cache": name, "temperature": temperature, "batch": 2}
  plain = Decoder(model, **options)(prompts, 24)
  drafted = Decoder(model, "prompt_lookup-4", **options)(prompts, 24)
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]
  assert sum(r.passes for r in drafted) < sum(r.passes for r in plain)
