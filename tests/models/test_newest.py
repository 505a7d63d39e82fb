"""Caches that hold the newest rows of layers with a window: equal to one pass over the text."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from specjax import Decoder, speculate
from specjax.base import KV, Cache
from specjax.drafters.models.draft_model import draft_model
from specjax.eval import memory
from specjax.models import chunks, newest, sharding, transformer
from specjax.models.cache import Newest
from specjax.models.config import Config, Kind
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.names.load import Model
from specjax.serving.engine import Engine
from specjax.serving.refill import refilled

KINDS = Kind(window=5), Kind(), Kind(chunk=7), Kind(window=5, source=0)
CONFIG = Config(
  vocab_size=32, width=16, layers=4, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=1024,
  kinds=KINDS,
)  # fmt: skip
PARAMS = jax.tree.map(
  lambda x: x * 8 if x.ndim > 1 else x, transformer.init(CONFIG, jax.random.key(1))
)
LM = target(CONFIG, whole=False)
MODEL = Model("windows", CONFIG, PARAMS, None, (), (), None)
S, HELD = 320, 64 + 2 * newest.STEP
rng = np.random.default_rng(0)
PROMPTS = rng.integers(32, size=(2, 208)).astype(np.int32)
prefill = jax.jit(LM.prefill, static_argnums=3)
evaluate, commit = jax.jit(LM.evaluate), jax.jit(LM.commit)


@jax.jit
def one_pass(tokens):
  network, place = Transformer(CONFIG), jnp.arange(S, dtype=jnp.int32)[None]
  hidden, _ = network.apply(PARAMS, tokens, place, attention_mask(jnp.zeros_like(tokens), True))
  return network.apply(PARAMS, hidden, method="head")[0]


def logits_of(text):
  """[T, V], of one pass over a text, which is padded behind to be one shape for all."""
  return one_pass(jnp.pad(jnp.asarray(text, jnp.int32), (0, S - len(text)))[None])[: len(text)]


def grow(cache, length, widths, params=PARAMS):
  """Yields texts with the logits of the chains behind them, which are committed in part."""
  texts = [list(map(int, prompt[:n])) for prompt, n in zip(PROMPTS, length, strict=True)]
  draws = np.random.default_rng(5)
  for N, rows in widths:
    tokens = draws.integers(32, size=(2, N)).astype(np.int32)
    tokens[:, 0] = [text[-1] for text in texts]
    depth = np.broadcast_to(np.arange(N, dtype=np.int32), (2, N))
    mask = np.broadcast_to(np.tril(np.ones((N, N), bool)), (2, N, N))
    evaluation = evaluate(params, cache, tokens, depth, mask)
    yield texts, tokens, evaluation.logits, cache
    cache = commit(cache, evaluation.kv, depth, jnp.array(rows, jnp.int32))
    for text, n, own in zip(texts, rows, tokens, strict=True):
      text += [int(x) for x in own[1:n]] + ([7] if n else [])


# Row 0 moves up in the second round, row 1 in the last.
ROUNDS = [(4, [4, 0]), (4, [3, 4]), (4, [4, 1]), (70, [2, 67]), (4, [0, 0])]


def check(cache, length, params=PARAMS):
  now = cache
  for texts, tokens, logits, later in grow(cache, length, ROUNDS, params):
    now = later
    for b, text in enumerate(texts):
      want = logits_of(text[:-1] + tokens[b].tolist())[len(text) - 1 :]
      np.testing.assert_allclose(logits[b], want, rtol=0, atol=1e-5)
  assert [x.rows.shape[2] for x in (now.kv.k[0], now.kv.v[2])] == [HELD] * 2
  assert now.kv.k[1].shape[2] == S
  assert now.length.tolist() == [length[0] + 12, length[1] + 71]


def test_texts_that_grow_are_one_pass():
  length = [128, 191]
  cache, _ = prefill(PARAMS, PROMPTS, jnp.array(length, jnp.int32), S)
  check(cache, length)


def test_long_prompts_are_read_in_pieces(monkeypatch):
  monkeypatch.setattr(chunks, "LONG", 128)
  monkeypatch.setattr(chunks, "CHUNK", 104)
  length = jnp.array([128, 191], jnp.int32)
  cache, found = jax.jit(lambda p: LM.prefill(p, PROMPTS, length, S))(PARAMS)
  want = logits_of(PROMPTS[1, :191])
  np.testing.assert_allclose(LM.head(PARAMS, found.hidden)[1, :191], want, rtol=0, atol=1e-5)
  check(cache, length.tolist())


def test_rows_are_spread_over_a_mesh():
  length, mesh = [128, 191], sharding.mesh(data=2, model=2)
  with jax.set_mesh(mesh):
    params = sharding.place(PARAMS, mesh)
    cache, _ = prefill(params, PROMPTS, jnp.array(length, jnp.int32), S)
    spread = NamedSharding(mesh, PartitionSpec("data", "model"))
    assert cache.kv.k[0].rows.sharding.is_equivalent_to(spread, 4)
    found = [(list(map(list, texts)), tokens, np.asarray(logits))
             for texts, tokens, logits, _ in grow(cache, length, ROUNDS, params)]  # fmt: skip
  for texts, tokens, logits in found:
    for b, text in enumerate(texts):
      want = logits_of(text[:-1] + tokens[b].tolist())[len(text) - 1 :]
      np.testing.assert_allclose(logits[b], want, rtol=0, atol=1e-5)


def test_a_short_cache_holds_all():
  cache, _ = jax.eval_shape(
    lambda p: LM.prefill(p, PROMPTS[:, :64], jnp.array([64, 9], jnp.int32), 128), PARAMS
  )
  assert cache.kv.k[0].rows.shape[2] == 128


@pytest.mark.slow
def test_a_round_copies_no_rows():
  decoder = Decoder(MODEL, "prompt_lookup-4", batch=2)
  request = decoder.request(np.arange(2), np.full(2, 300))
  asked = decoder.method, decoder.weights, PROMPTS, jnp.full(2, 128, jnp.int32), request
  state = jax.eval_shape(lambda: speculate.start(*asked, capacity=S))
  arguments = decoder.method, decoder.weights, request, state, jnp.int32(9)
  text = speculate.compiled_advance.lower(*arguments).compile().as_text() or ""
  copy = rf"= f32\[2,2,(?:{HELD}|{S}),8\]\S* copy\(%(?!transpose)"
  # Rows that move up may be copied, every 64 tokens, in a loop that has no part of whole ones.
  every = [part for part in text.split("\n}") if f"f32[2,2,{S},8]" in part]
  assert every and not re.findall(copy, "".join(every))
  keeping = jax.jit(speculate.advance, static_argnames="method").lower(*arguments).compile()
  assert re.findall(copy, keeping.as_text() or "")  # what keeps its argument must copy it


def test_memory_does_not_grow_with_the_text():
  def cache(new):
    return memory.measure(Decoder(MODEL, "none"), 64, new).cache

  a_row = 2 * 2 * 8 * 4  # a key and a value of two heads
  assert cache(832) - cache(384) == 448 * a_row  # of the one layer that sees everything


@pytest.mark.slow
@pytest.mark.full(but=["lookup"])
@pytest.mark.parametrize("drafter", ["prompt_lookup-4", MODEL], ids=["lookup", "draft model"])
def test_refilled_rows_say_what_they_say_alone(drafter):
  prompts = [[1, 2, 3, 1, 2, 3, 1] * 20, [4], [7, 8, 9] * 30]
  options = {"temperature": 0.8, "seed": 3}
  decoder = Decoder(MODEL, drafter, "target_only", batch=2, **options)
  together = dict(refilled(decoder, prompts, 80, rounds=9))
  alone = Decoder(MODEL, "none", **options)
  for i, prompt in enumerate(prompts):
    (expected,) = alone([prompt], 80, first=i)
    assert together[i].tokens == expected.tokens


@pytest.mark.slow
def test_beginnings_that_were_read_are_put_back():
  system = rng.integers(32, size=150).tolist()
  prompts = [[*system, 3, 4], [*system, 5], system[:140]]
  alone = Decoder(MODEL, "none")
  with Engine(Decoder(MODEL, "prompt_lookup-4", batch=2), queue=9, prefixes=10**8) as engine:
    tickets = [engine.submit(prompt, 40, temperature=0.0) for prompt in prompts]
    for ticket in tickets:
      ticket.wait()
    assert [ticket.reused for ticket in tickets] == [0, 128, 128]
    for ticket, prompt in zip(tickets, prompts, strict=True):
      assert ticket.tokens == alone([prompt], 40)[0].tokens


def test_a_draft_model_has_a_whole_cache():
  drafter = draft_model(LM, nodes=3)
  rows = KV((Newest(jnp.zeros((1, 2, 192, 8))),) * 4, (Newest(jnp.zeros((1, 2, 192, 8))),) * 4)
  cache = Cache(rows, jnp.array([9], jnp.int32))
  with pytest.raises(ValueError, match="a draft model's cache must be whole"):
    drafter.update(PARAMS, (), cache, None, None, None, jnp.array([1]))
