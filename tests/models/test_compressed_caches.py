"""Compressed caches against plain restatements of what their papers say, row by row."""

import jax
import numpy as np
import pytest
from growing_text import PATHS, RNG, ROUNDS, B, C, H, K, L, Text, kept_by_sinks, rows, softmax

from specjax.decoding.decoder import Decoder
from specjax.models.caches import CACHES
from specjax.models.caches.gear import gear
from specjax.models.caches.int8 import int8
from specjax.models.caches.keyformer import keyformer
from specjax.models.caches.mustafar import mustafar
from specjax.models.caches.packed import packed
from specjax.models.caches.sinks import sinks
from specjax.models.caches.token_select import token_select
from specjax.models.config import Config
from specjax.models.transformer import init
from specjax.names.load import Model


@pytest.mark.slow
@pytest.mark.full(but=["1-0", "2-5"])
@pytest.mark.parametrize(("size", "recent"), [(4, 0), (4, 3), (2, 5), (1, 0)])
def test_blocks_are_packed_in_order(size, recent):
  """What packing changes is marked: packed keys are doubled, packed values negated."""
  kind = packed(
    "marks", lambda k, v: (2 * k, -v), lambda block, width: block, rows=size, recent=recent
  )
  text = Text(kind, [9, 2], 40)
  for committed in [(0, 0), *ROUNDS]:
    text.commit(PATHS, committed)
    for b in range(B):
      n = len(text.k[0][b])
      done = max(n - recent, 0) // size * size
      k, v = text.read(b)
      np.testing.assert_array_equal(k[:, :done], 2 * np.array([x[b] for x in text.k])[:, :done])
      np.testing.assert_array_equal(k[:, done:], np.array([x[b] for x in text.k])[:, done:])
      np.testing.assert_array_equal(v[:, :done], -np.array([x[b] for x in text.v])[:, :done])
      np.testing.assert_array_equal(v[:, done:], np.array([x[b] for x in text.v])[:, done:])


@pytest.mark.slow
def test_int8_is_as_near_as_its_steps():
  text = Text(int8(2), [8, 8], 16)
  k, _ = text.read(0)
  true = np.array([x[0] for x in text.k])
  steps = np.abs(true).max(-1, keepdims=True) / 127
  assert np.abs(k - true).max() > 0 and (np.abs(k - true) <= 0.5001 * steps).all()


@pytest.mark.parametrize(("sparsity", "kept"), [(0.7, 3), (0.5, 4), (0.0, 8)])
def test_mustafar_keeps_the_largest_entries(sparsity, kept):
  text = Text(mustafar(sparsity, 0), [64, 64], 64)
  for found, true in zip(text.read(1), (text.k, text.v), strict=True):
    true = np.array([x[1] for x in true], np.float64)
    order = np.argsort(-np.abs(true), -1)[..., :kept]
    expected = np.zeros_like(true)
    np.put_along_axis(expected, order, np.take_along_axis(true, order, -1), -1)
    np.testing.assert_array_equal(found, expected)


def geared(x, bits, count):
  """(GEAR without its low rank, where entries are whole) of vectors float64[m, n], one by one."""
  out, whole = np.empty_like(x), np.zeros(x.shape, bool)
  for row, vector in enumerate(x):
    order = np.argsort(vector)
    chosen = [*order[:count], *order[len(order) - count :]]
    whole[row, chosen] = True
    rest = vector.copy()
    rest[chosen] = vector.mean()
    low = np.float64(np.float16(rest.min()))
    step = np.float64(np.float16((rest.max() - low) / (2**bits - 1)))
    out[row] = low + step * np.clip(np.round((rest - low) / step), 0, 2**bits - 1)
    out[row, chosen] = np.float16(vector[chosen])
  return out, whole


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4])
def test_gear_is_levels_outliers_and_a_thin_product(bits):
  rank = 2
  text = Text(gear(bits, rank, 0.1), [64, 64], 64)
  for found, true, turned in zip(text.read(0), (text.k, text.v), (True, False), strict=True):
    for head in range(K):
      x = np.array(true[1][0], np.float64)[:, head]
      y = np.float64(found[1][:, head])
      x, y = (x.T, y.T) if turned else (x, y)
      rounded, whole = geared(x, bits, max(1, round(0.05 * x.shape[1])))
      lost = np.where(whole, 0, x - rounded)
      np.testing.assert_allclose(y[whole], rounded[whole], rtol=1e-6)
      s = np.linalg.svd(lost, compute_uv=False)
      best = np.sqrt((s[rank:] ** 2).sum())
      left = np.linalg.norm(np.where(whole, 0, x - y))
      assert left < 1.15 * best < 1.15 * np.linalg.norm(lost)


@pytest.mark.full(but=["2-6", "0-3"])
@pytest.mark.parametrize(("first", "recent"), [(2, 6), (0, 3), (4, 40), (1, 1)])
def test_sinks_keep_both_ends(first, recent):
  text = Text(sinks(first, recent), [9, 2], 30)
  for committed in [(0, 0), *ROUNDS]:
    text.commit(PATHS, committed)
    for b in range(B):
      n = len(text.k[0][b])
      expected = np.array([x[b] for x in text.k])[:, kept_by_sinks(n, first, recent)]
      k, _ = text.read(b)
      np.testing.assert_array_equal(np.sort(k, 1), np.sort(expected, 1))


class KeyformerOracle:
  """One head group of one text, row by row in float64, without noise."""

  def __init__(self, size, newest, prompt, capacity):
    self.size, self.newest, self.prompt, self.capacity = size, newest, prompt, capacity
    self.kept: dict[int, float] = {}

  def _judge(self, k, queries, places, tau):
    for q, own in zip(queries, places, strict=True):
      seen = [i for i in self.kept if i <= own]
      for one in q:  # heads of the group
        p = softmax(np.array([one @ k[i] for i in seen]) * C**-0.5 / tau)
        for i, share in zip(seen, p, strict=True):
          self.kept[i] += share

  def _drop(self, n, most, of):
    def key(i):
      return np.inf if i >= n - self.newest else self.kept[i]

    while len(self.kept) > most:
      del self.kept[min((i for i in self.kept if i in of), key=key)]

  def start(self, k, q):
    n = len(k)
    self.kept = dict.fromkeys(range(n), 0.0)
    self._judge(k, q, range(n), 1.0)
    self._drop(n, self.size, set(self.kept))

  def commit(self, k, q, new):
    before = len(k) - new
    tau = 1 + (before - self.prompt) / (self.capacity - self.prompt)
    old = set(self.kept)
    self.kept |= dict.fromkeys(range(before, len(k)), 0.0)
    self._judge(k, q[before:], range(before, len(k)), tau)
    self._drop(len(k), self.size, old)


@pytest.mark.slow
def test_keyformer_keeps_what_was_attended_to():
  prompt, capacity = [12, 4], 30
  text = Text(keyformer(0.5, 0.4, 0.0), prompt, capacity, judged=True)
  R = 15

  def group(i, b, head):
    k = np.array(text.k[i][b], np.float64)[:, head]
    q = np.array(text.q[i][b], np.float64).reshape(-1, K, H // K, C)[:, head]
    return k, q

  of = {
    (i, b, head): KeyformerOracle(R, 6, prompt[b], capacity)
    for i in range(L)
    for b in range(B)
    for head in range(K)
  }
  for (i, b, head), oracle in of.items():
    oracle.start(*group(i, b, head))
  for committed in ROUNDS:
    text.commit(PATHS, committed)
    for (i, b, head), oracle in of.items():
      k, q = group(i, b, head)
      oracle.commit(k, q, committed[b])
      place = np.asarray(text.cache.place[i][b, head])
      score = np.asarray(text.cache.score[i][b, head])
      assert sorted(place[place > 0] - 1) == sorted(oracle.kept)
      found = dict(zip(place - 1, score, strict=True))
      for row, expected in oracle.kept.items():
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-6)
      np.testing.assert_array_equal(
        np.sort(text.read(b)[0][i, :, head], 0), np.sort(np.float32(k)[sorted(oracle.kept)], 0)
      )
  assert {len(x.kept) for x in of.values()} == {15}


def test_token_select_reads_what_is_asked_for():
  text = Text(token_select(3, 2, 4), [20, 6], 32)
  q = rows(B, H, 3, C)
  for b in range(B):
    k, _ = text.read(b, q)
    for i in range(L):
      true = np.array(text.k[i][b], np.float64)
      n, score = len(true), np.zeros(len(true))
      for head in range(H):
        score += softmax(true[:, head // (H // K)] @ q[b, head].mean(0) * C**-0.5)
      always = set(kept_by_sinks(n, 2, 4))
      rest = sorted(set(range(n)) - always, key=lambda j: -score[j])
      expected = np.float32(true)[sorted(always | set(rest[: 3 + max(0, 6 - len(always))]))]
      np.testing.assert_array_equal(np.sort(k[i], 0), np.sort(expected, 0))


V = 12
CONFIG = Config(
  vocab_size=V, width=16, layers=3, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=256
)
MODEL = Model("random", CONFIG, init(CONFIG, jax.random.key(1)), None, (), (), None)
PROMPTS = [RNG.integers(V, size=n).tolist() for n in (70, 7)]
WHOLE = {
  "mustafar": "mustafar-0", "keyformer": "keyformer-1", "sinks": "sinks-4,recent=500",
  "token_select": "token_select-500", "actqkv": "actqkv-32,more=14",
  "minference": "minference-70,first=8,recent=8,chunk=64",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.full(but=["keyformer-1"])
@pytest.mark.parametrize("name", WHOLE.values())
def test_a_cache_that_drops_nothing_says_what_a_dense_one_says(name):
  plain = Decoder(MODEL, temperature=1.0, batch=2)(PROMPTS, 24)
  decoder = Decoder(MODEL, "prompt_lookup-4", "target_only", cache=name, temperature=1.0, batch=2)
  assert [r.tokens for r in decoder(PROMPTS, 24)] == [r.tokens for r in plain]
  assert decoder.label.startswith("target_only [LOSSY (")


@pytest.mark.full
@pytest.mark.parametrize("name", CACHES)
def test_drafts_over_a_small_cache_change_no_token(name):
  small = {
    "keyformer": "keyformer-0.2",
    "sinks": "sinks-2,recent=8",
    "token_select": "token_select-4,first=2,recent=4",
    "actqkv": "actqkv-1,more=0,first=1,recent=2",
    "minference": "minference-4,first=1,recent=2,chunk=64",
  }
  for temperature in (0.0, 1.0):
    options = {"temperature": temperature, "batch": 2}
    plain = Decoder(MODEL, **options)(PROMPTS, 24)
    drafter = f"self_speculative-4,least=0/{small.get(name, name)}"
    drafted = Decoder(MODEL, drafter, **options)(PROMPTS, 24)
    assert [r.tokens for r in drafted] == [r.tokens for r in plain]
    assert sum(r.passes for r in drafted) < sum(r.passes for r in plain)


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (
      {"cache": "gear-3"},
      r"`bits` must be 2 or 4, `rank` at least 1, and `outliers` at.*got 3, 4 and 0\.02\.",
    ),
    ({"cache": "mustafar-1"}, r"`sparsity` must be at least 0 and below 1, got 1\.0\."),
    (
      {"cache": "keyformer-0"},
      r"`share` must be above 0 and at most 1, `recent` at least 0.*got 0\.0, 0\.3 and "
      r"1\.0\.",
    ),
    (
      {"cache": "sinks-1,recent=0"},
      r"`first` must be at least 0 rows and `recent` at least 1, got 1 and 0\.",
    ),
    (
      {"cache": "token_select-0"},
      "`count` must be at least 1, and `first` and `recent` at least 0, got 0, 128 and "
      r"512\.",
    ),
    (
      {"cache": "actqkv-0"},
      r"`least` must be at least 1 block, and `more`, `first` and.*got 0, 14, 128 and 512\.",
    ),
    (
      {"cache": "minference-8,chunk=96"},
      "`count` must be at least 1 and `first` .*, and `chunk` 1 to 64 or.*got 8, 32, 128 and 96",
    ),
    ({"cache": "int8-0"}, r"`rows` must be at least 1 row in a block, got 0\."),
    ({"cache": "zip"}, r"`cache` must be one of int8, gear, mustafar, keyformer.*got 'zip'\."),
    (
      {"cache": "int8", "drafter": "layerskip-4,exit=2"},
      "cache must be dense for a drafter that reads it",
    ),
    ({"cache": "int8", "drafter": "self_speculative-4/int8"}, "is dense"),
  ],
)
def test_what_cannot_be_is_refused(arguments, words):
  with pytest.raises(ValueError, match=words):
    Decoder(MODEL, **arguments)(PROMPTS[1:], 2)
