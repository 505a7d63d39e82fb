"""A shortened prompt holds the chunks that BM25 finds, in order, and changes no token."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax.decoding.decoder import Decoder
from specjax.drafters.models.draft_model import draft_model
from specjax.drafters.models.rapid import bm25, rapid, shortened


def texts(rng, rows: int, longest: int, vocab: int):
  length = rng.integers(1, longest + 1, size=rows).astype(np.int32)
  tokens = np.where(
    np.arange(longest) < length[:, None], rng.integers(vocab, size=(rows, longest)), 7
  )
  return tokens.astype(np.int32), length


def scores(text: list[int], size: int) -> list[float]:
  """Okapi BM25 of chunks of a text for its last `size` tokens, with k1 = 1.5 and b = 0."""
  chunks = [text[i : i + size] for i in range(0, len(text), size)]
  found = []
  for chunk in chunks:
    counts, total = collections.Counter(chunk), 0.0
    for word in text[-size:]:
      holding = sum(word in other for other in chunks)
      idf = math.log(1 + (len(chunks) - holding + 0.5) / (holding + 0.5))
      total += idf * counts[word] * 2.5 / (counts[word] + 1.5)
    found.append(total)
  return found


def test_scores_are_okapi_bm25():
  size = 4
  tokens, length = texts(np.random.default_rng(0), 40, 24, 9)
  got = jax.jit(bm25, static_argnums=2)(jnp.asarray(tokens), jnp.asarray(length), size)
  for b, n in enumerate(length):
    want = scores(tokens[b, :n].tolist(), size)
    np.testing.assert_allclose(got[b, : len(want)], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [24, 26])  # whole chunks, and not
def test_the_text_is_the_best_chunks_in_their_order(width):
  size, chunks = 4, 4
  tokens, length = texts(np.random.default_rng(1), 60, width, 9)
  run = jax.jit(shortened, static_argnums=(2, 3))
  got, short = run(jnp.asarray(tokens), jnp.asarray(length), chunks, size)[:2]
  left_out = 0
  for b, n in enumerate(length):
    text = tokens[b, :n].tolist()
    parts = [text[i : i + size] for i in range(0, n, size)]
    value, last = scores(text, size), len(parts) - 1
    order = sorted(range(len(parts)), key=lambda i: (i not in (0, last - 1, last), -value[i], i))
    want = [token for i in sorted(order[:chunks]) for token in parts[i]]
    assert got[b, : short[b]].tolist() == want
    left_out += n - len(want)
  assert left_out > 100


@pytest.mark.full
def test_a_prompt_changes_what_is_drafted_and_no_token():
  model = cut()
  prompt = "Q: Ann has 3 apples and Bob has 12 pears. Bob buys 4 pears. How many pears?\nA:"
  ids = model.encode(prompt)
  whole, parts = (
    Decoder(model, f"draft_model-4[{model.name}]{more}", temperature=0.8, verifier="target_only")
    for more in ("", "/rapid-3,size=4")
  )
  a, b = whole([ids], 24)[0], parts([ids], 24)[0]
  assert a.tokens == b.tokens and len(ids) > 12
  assert a.passes < b.passes < 24  # it knows less, and something
  assert parts.name == f"draft_model-4[{model.name}]/rapid-3,size=4"
  assert whole.weights.drafter is model.params  # not loaded twice


@pytest.mark.full
def test_its_cache_is_that_of_the_shortened_prompt():
  model = cut()
  ids = model.encode("Q: Ann has 3 apples and Bob has 12 pears. How many pears?\nA:")
  decoder = Decoder(model, f"draft_model-4[{model.name}]/rapid-3,size=4")
  _, state, _ = decoder._start([ids], [8], 0)
  want, length = shortened(jnp.asarray([ids]), jnp.asarray([len(ids)]), 3, 4)[:2]
  assert state.drafter.length.tolist() == (length - 1).tolist()
  assert state.drafter.kv.k[0].shape[2] == state.cache.kv.k[0].shape[2] - (32 - 12)
  fresh, _ = model.target.prefill(model.params, want, length, want.shape[1])
  n = int(length[0]) - 1
  np.testing.assert_allclose(
    state.drafter.kv.k[0][:, :, :n], fresh.kv.k[0][:, :, :n], rtol=1e-4, atol=1e-4
  )


def test_impossible_numbers_are_an_error():
  model = cut()
  for chunks, size in ((2, 8), (3, 0)):
    with pytest.raises(
      ValueError,
      match=(r"`chunks` must be at least 3 and `size` at least 1, got (2 and 8|3 and 0)\."),
    ):
      rapid(draft_model(model.target), chunks, size)
