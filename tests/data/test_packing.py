"""Packed rows hold every document once, apart from each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data.packing import PackedRows, pack
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.train.lm import loss_fn

LENGTH = 16


def random_documents(seed: int, longest: int = 24, smallest: int = 0):
  """(ids, mask) pairs; every id occurs once in all of them, so that documents can be told apart."""
  rng = np.random.default_rng(seed)
  sizes = rng.integers(smallest, longest, rng.integers(1, 40)) if seed else [LENGTH, 1, 0, 15]
  ids = iter(range(1, 2000))
  return [([next(ids) for _ in range(n)], (rng.random(n) < 0.5).tolist()) for n in sizes]


def unpack(rows: PackedRows) -> list[tuple[list[int], list[bool]]]:
  """The documents of rows, after checking what holds within each."""
  found = []
  for tokens, position, segment, mask in zip(*rows, strict=True):
    used = segment >= 0
    assert not tokens[~used].any() and not position[~used].any() and not mask[~used].any()
    assert (np.flatnonzero(used) == np.arange(used.sum())).all()  # padding comes last
    assert (np.diff(segment[used]) >= 0).all()
    for s in range(segment.max() + 1):
      inside = segment == s
      assert (position[inside] == np.arange(inside.sum())).all()
      assert not mask[inside][0]
      found.append((tokens[inside].tolist(), mask[inside].tolist()))
  return found


@pytest.mark.parametrize("seed", range(30))
def test_every_document_once_cut_and_masked(seed):
  documents = random_documents(seed)
  if not any(ids for ids, _ in documents):
    documents.append(([1], [True]))
  rows = pack(documents, LENGTH)
  assert rows.tokens.shape[1] == LENGTH
  expected = [
    (ids[:LENGTH], [False, *mask[1:LENGTH]]) for ids, mask in documents if ids
  ]  # fmt: skip
  assert sorted(unpack(rows)) == sorted(expected)
  assert [x.dtype for x in rows] == [np.int32, np.int32, np.int32, bool]
  total = sum(len(ids) for ids, _ in expected)
  assert len(rows.tokens) <= 2 * total / LENGTH + 1  # first fit wastes less than half


def test_packing_is_deterministic():
  a, b = (pack(random_documents(3), LENGTH) for _ in range(2))
  for x, y in zip(a, b, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("documents", [[], [([], [])]])
def test_nothing_to_pack_is_refused(documents):
  with pytest.raises(ValueError, match="documents is empty"):
    pack(documents, LENGTH)


@pytest.mark.slow
def test_attention_never_crosses_documents():
  documents = [(ids, [True] * len(ids)) for ids, _ in random_documents(5, LENGTH // 2, smallest=2)]
  rows = pack(documents, LENGTH)
  assert rows.segment.max() >= 2 and (rows.segment == -1).any()
  config = Config(
    vocab_size=2000, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp_width=16
  )
  model = Transformer(config)
  z = jnp.zeros((1, 2), jnp.int32)
  params = model.init(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  params = jax.tree.map(lambda p: p * 8.0 if p.ndim > 1 else p, params)
  loss = jax.jit(lambda rows: loss_fn(params, model, rows)[0])

  def summed(rows: PackedRows) -> float:
    return float(loss(rows)) * rows.mask[:, 1:].sum()

  packed = sum(summed(PackedRows(*(x[r : r + 1] for x in rows))) for r in range(len(rows.tokens)))
  alone = sum(summed(pack([d], LENGTH)) for d in documents)
  np.testing.assert_allclose(packed, alone, rtol=1e-6)
