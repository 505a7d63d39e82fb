"""A cache in pages: the bits of a dense one, and no page is written that is another's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Decoder, Model
from specjax.base import Cache
from specjax.drafters import draft_model
from specjax.heads.eagle import EagleConfig, eagle
from specjax.kernels import compiled
from specjax.kernels.tree_attention import Paged, gathered
from specjax.models import transformer
from specjax.models.config import Config, GatedDelta, GatedMemory, Kind, Latent, Mamba
from specjax.models.paged import drafting, paged
from specjax.models.pages import PagedCache, caches, is_paged

CONFIG = Config(
  vocab_size=32, width=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp_width=24, max_length=1024
)
PARAMS = jax.tree.map(
  lambda x: x * 8 if x.ndim > 1 else x, transformer.init(CONFIG, jax.random.key(1))
)
S = 576  # the dense cache is read in blocks
PROMPTS = np.random.default_rng(0).integers(32, size=(5, 90)).astype(np.int32)
LENGTH = jnp.array([1, 64, 65, 90, 66], jnp.int32)
# (nodes, depth of the deepest, rows that are accepted of each text); pages end on every way
ROUNDS = [
  (1, 1, [1, 1, 1, 1, 1]),
  (7, 4, [4, 1, 0, 3, 2]),
  (70, 70, [2, 70, 61, 0, 64]),
  (7, 4, [0, 4, 3, 4, 1]),
  (1, 1, [1, 0, 1, 1, 1]),
  (64, 64, [64, 60, 63, 1, 2]),
]


@pytest.fixture(params=["gathered", "in C++"])
def kernel(request, monkeypatch):
  if request.param == "in C++":
    if not compiled.available():
      pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
  return request.param


def compiled_anew(function):
  """Nothing is taken from where another kernel served."""
  return jax.jit(lambda *arguments: function(*arguments))


def grown(lm, cache, params=PARAMS, rounds=ROUNDS):
  """The logits of the nodes of each round, whose chain of nodes 0, 1, .. is committed in part."""
  evaluate, commit = compiled_anew(lm.evaluate), compiled_anew(lm.commit)
  rng = np.random.default_rng(5)
  for N, A, rows in rounds:
    tokens = rng.integers(32, size=(5, N)).astype(np.int32)
    depth = np.broadcast_to(np.minimum(np.arange(N), A - 1).astype(np.int32), (5, N))
    mask = np.tril(np.ones((N, N), bool))
    mask[A:, A - 1 :] = False  # the last nodes are siblings
    mask = np.broadcast_to(mask | np.eye(N, dtype=bool), (5, N, N))
    found = evaluate(params, cache, tokens, depth, mask)
    path = np.broadcast_to(np.arange(A, dtype=np.int32), (5, A))
    cache = commit(cache, found.kv, path, jnp.array(rows, jnp.int32))
    yield np.asarray(found.logits), cache


def test_texts_that_grow_have_the_logits_of_a_dense_cache(kernel):
  caches = {}
  for name, lm in {"dense": transformer.target(CONFIG), "pages": paged(CONFIG)}.items():
    cache, _ = jax.jit(lm.prefill, static_argnums=3)(PARAMS, PROMPTS, LENGTH, S)
    caches[name] = list(grown(lm, cache))
  for (wanted, _), (found, _) in zip(caches["dense"], caches["pages"], strict=True):
    if kernel == "in C++":
      np.testing.assert_array_equal(found, wanted)
    else:
      np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
  _, cache = caches["pages"][-1]
  assert isinstance(cache, PagedCache)
  np.testing.assert_array_equal(cache.length, LENGTH - 1 + sum(np.array(x[2]) for x in ROUNDS))


KINDS = {
  "latents": {"latent": Latent(12, 0, 8, 8, 10), "kv_heads": 1, "rotary_dim": 8},
  "windows": {"kinds": (Kind(window=70), Kind())},
  "chunks": {"kinds": (Kind(chunk=80), Kind())},
  "shared": {"layers": 3, "kinds": (Kind(window=70), Kind(), Kind(window=70, source=0))},
  "recurrent": {"layers": 3, "kinds": (
    Kind(recurrence=GatedDelta(2, 4, 8, 6)), Kind(), Kind(recurrence=Mamba(4, 8, 6, 2))
  )},
  "memory": {"layers": 4, "kinds": (
    Kind(recurrence=Mamba(4, 8, 6, 2)), Kind(), Kind(source=0, recurrence=GatedMemory(32)),
    Kind(source=1),
  )},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_other_kinds_have_the_bits_of_dense_caches(kind, monkeypatch):
  """Dense caches of windows hold their newest rows alone; those in pages hold all."""
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  config = dataclasses.replace(CONFIG, **KINDS[kind])
  params = jax.tree.map(
    lambda x: x * 8 if x.ndim > 1 else x, transformer.init(config, jax.random.key(1))
  )
  found = []
  for lm in (transformer.target(config, whole=config.recurrent), paged(config)):
    cache, _ = compiled_anew(lambda *x, lm=lm: lm.prefill(*x, S))(params, PROMPTS, LENGTH)
    found.append([logits for logits, _ in grown(lm, cache, params, ROUNDS[:3])])
  for wanted, own in zip(*found, strict=True):
    np.testing.assert_array_equal(own, wanted)


def test_a_page_of_two_texts_is_not_written():
  """Text 3 has its first page in common with a text that is longer, and which nobody grows."""
  lm = paged(CONFIG)
  cache, _ = lm.prefill(PARAMS, PROMPTS, LENGTH, S)
  own = cache.table.at[4, 0].set(cache.table[3, 0])
  own = own.at[2].set(0)  # a row without a text
  before = jax.tree.map(np.asarray, cache.kv)
  *_, (_, last) = grown(lm, cache._replace(table=own))
  written = set(np.asarray(own)[[0, 1]].ravel()) | set(np.asarray(own)[[3, 4], 1:].ravel()) | {0}
  kept = sorted(set(range(len(before.k[0]))) - written)
  assert {int(cache.table[3, 0]), int(cache.table[2, 0]), int(cache.table[4, 0])} <= set(kept)
  for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(last.kv), strict=True):
    np.testing.assert_array_equal(x[kept], np.asarray(y)[kept])


def test_what_no_text_sees_may_be_anything(kernel):
  """Page 0, and what lies behind a text, may have what a text that failed has left."""
  lm = paged(CONFIG)
  cache, _ = lm.prefill(PARAMS, PROMPTS, LENGTH, S)
  seen = np.zeros((len(cache.kv.k[0]), 64), bool)
  for row, n in zip(np.asarray(cache.table), np.asarray(cache.length), strict=True):
    seen[row] = (np.arange(S) < n).reshape(-1, 64)
  poison = jax.tree.map(lambda x: jnp.where(seen[:, None, :, None], x, jnp.nan), cache.kv)
  tokens = jnp.full((5, 1), 3, jnp.int32)
  alone = tokens, jnp.zeros((5, 1), jnp.int32), jnp.ones((5, 1, 1), bool)
  evaluate = compiled_anew(lm.evaluate)
  wanted = evaluate(PARAMS, cache, *alone).logits
  found = evaluate(PARAMS, cache._replace(kv=poison), *alone).logits
  np.testing.assert_array_equal(found, wanted)


MODEL = Model("random", CONFIG, PARAMS, None, (), (), None)
NOISE = np.random.default_rng(1)
NEAR = dataclasses.replace(  # a draft model that is often right
  MODEL, params=jax.tree.map(lambda x: x + NOISE.normal(size=x.shape) / 50, PARAMS)
)


def head(window):
  made = eagle(MODEL.target, EagleConfig(depth=3, window=window))
  return made, made.init(jax.random.key(2), PARAMS)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "options"), [
  (lambda: head(70), {"tree": [[0], [1], [0, 0], [0, 0, 0]]}),
  (lambda: (draft_model(NEAR.target, 3), NEAR.params), {}),
], ids=["eagle", "draft_model"])  # fmt: skip
def test_drafters_have_the_bits_of_dense_caches(make, options, monkeypatch):
  """Drafts, what is accepted of them, and what their layers keep."""
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  dense = Decoder(MODEL, make(), "target_only", temperature=0.5, seed=3, batch=5, **options)
  own = dense.over(paged(CONFIG), drafting(dense.method.drafter))
  prompts = [row[:n].tolist() for row, n in zip(PROMPTS, np.asarray(LENGTH), strict=True)]
  ends = []
  for decoder in (dense, own):
    request, state, _ = decoder._start(prompts, [450] * 5, 0)  # the dense cache is read in blocks
    ends.append(decoder.advance(request, state, 24))
  (wanted, found), told = ends, ("context", "log_probs", "done", "stats")
  assert len(caches(found)) == 2 and wanted.stats.accepted[:, 1:].sum() > 9
  jax.tree.map(
    np.testing.assert_array_equal,
    *([getattr(state, name) for name in told] for state in (wanted, found)),
  )
  pairs = zip(
    jax.tree.leaves(wanted.drafter, is_leaf=lambda x: isinstance(x, Cache)),
    jax.tree.leaves(found.drafter, is_leaf=is_paged),
    strict=True,
  )
  for x, y in pairs:
    if not is_paged(y):
      np.testing.assert_array_equal(x, y)
      continue
    np.testing.assert_array_equal(x.length, y.length)
    seen = jnp.arange(y.table.shape[1] * 64)[None] < y.length[:, None]
    for rows, pages in zip(jax.tree.leaves(x.kv), jax.tree.leaves(y.kv), strict=True):
      rows = jnp.where(seen[:, None, :, None], rows, 0)
      np.testing.assert_array_equal(rows, gathered(Paged(pages, y.table), seen))


def test_other_networks_are_refused():
  with pytest.raises(ValueError, match="in pages must have no attention to what follows"):
    paged(dataclasses.replace(CONFIG, causal=False))
