"""States on disk: what they are, that kills do not show, and whose directory is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Features
from specjax.data.chat import TEMPLATES
from specjax.data.packing import pack
from specjax.data.tokenizer import train_bpe
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.names.load import Model
from specjax.train.recipe import features

CONFIG = Config(
  vocab_size=270, width=16, layers=3, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=64
)
BATCH, LAYERS = 3, (2, 0, 3)


def random_model() -> Model:
  z = jnp.zeros((1, 2), jnp.int32)
  params = Transformer(CONFIG).init(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  params = jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, params)
  return Model("tiny", CONFIG, params, train_bpe(["a b c"], 270), (0,), (), TEMPLATES["qa"])


def random_rows():
  rng = np.random.default_rng(0)
  sizes = rng.integers(1, 15, 13)
  rows = pack([(rng.integers(1, 270, n).tolist(), [True] * n) for n in sizes], 12)
  assert len(rows.tokens) % BATCH and len(rows.tokens) > 2 * BATCH  # the last batch is not full
  return rows


MODEL, ROWS = random_model(), random_rows()


def compute(directory, layers=LAYERS, model=MODEL, rows=ROWS):
  return features.compute(model, rows, layers, directory, BATCH)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A finished directory."""
  directory = tmp_path_factory.mktemp("whole")
  compute(directory)
  return directory


def contents(directory) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_values_are_those_of_a_direct_forward(whole):
  t, got = target(CONFIG), compute(whole)
  mask = attention_mask(jnp.asarray(ROWS.segment), True)

  @jax.jit
  def streams(tokens, position):
    x = t.embed(MODEL.params, tokens)
    two, three = (t.run_layers(MODEL.params, x, position, mask, stop=i)[0] for i in (2, 3))
    return Features(t.norm(MODEL.params, three), (two, x, three))

  want = streams(ROWS.tokens, ROWS.position)
  for x, y in zip(
    (got.hidden, *got.hidden_layers), (want.hidden, *want.hidden_layers), strict=True
  ):
    assert x.dtype == np.float16 and x.shape == (*ROWS.tokens.shape, CONFIG.width)
    np.testing.assert_allclose(x.astype(np.float32), y, rtol=2e-3, atol=2e-4)
  assert not np.allclose(want.hidden_layers[0], want.hidden_layers[2], atol=0.1)


@pytest.mark.parametrize("cuts", [(0,), (1,), (4, 6), (9, 3, 0)])
def test_a_killed_run_continues_bit_for_bit(whole, tmp_path, monkeypatch, cuts):
  """Cut as array n of all is written: at the start of a batch of four arrays, or within one."""
  flush, written = np.memmap.flush, []

  def compute_until(cut):
    def until(array):
      if len(written) == cut:
        raise KeyboardInterrupt
      written.append(array.shape)
      flush(array)

    written.clear()
    monkeypatch.setattr(np.memmap, "flush", until)
    return compute(tmp_path)

  rest = -(-len(ROWS.tokens) // BATCH) * 4
  for cut in cuts:
    with pytest.raises(KeyboardInterrupt):
      compute_until(cut)
    rest -= cut // 4 * 4
  compute_until(rest)  # only what was not finished is computed
  assert len(written) == rest
  assert contents(tmp_path) == contents(whole)


def test_states_of_a_target_in_16_bits_are_kept_as_they_are(tmp_path):
  """bfloat16 holds what float16 cannot, here an embedding of 1e6."""
  params = MODEL.params["params"]
  loud = {"params": params | {"embedding": params["embedding"].at[int(ROWS.tokens[4, 0])].set(1e6)}}
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), loud)
  model = dataclasses.replace(MODEL, params=half, dtype=jnp.bfloat16)
  got = compute(tmp_path, model=model)
  mask, t = attention_mask(jnp.asarray(ROWS.segment), True), target(CONFIG)
  embedded = t.embed(half, ROWS.tokens)
  two = jax.jit(lambda: t.run_layers(half, embedded, ROWS.position, mask, stop=2)[0])()
  assert float(abs(embedded).max()) > 65504
  np.testing.assert_array_equal(got.hidden_layers[1], embedded)
  np.testing.assert_allclose(
    got.hidden_layers[0].astype(np.float32), two.astype(jnp.float32), rtol=0.03, atol=0.03
  )
  assert got.hidden.dtype == jnp.bfloat16 and np.isfinite(got.hidden).all()
  again = compute(tmp_path, model=model)  # from the files alone
  jax.tree.map(np.testing.assert_array_equal, again, got)


def test_finished_states_are_only_read(whole, monkeypatch):
  before = contents(whole)
  monkeypatch.setattr(features.forward, "parts", pytest.fail)
  compute(whole)
  for layers in ((), (3,), (0, 2)):  # fewer layers than the directory has, in any order
    got = compute(whole, layers)
    for x, i in zip(got.hidden_layers, layers, strict=True):
      np.testing.assert_array_equal(x, np.load(whole / f"layer_{i}.npy"))
  assert contents(whole) == before


def changed(tree):
  """The same but for the last entry of the last leaf."""
  leaves, structure = jax.tree.flatten(tree)
  return structure.unflatten([*leaves[:-1], leaves[-1].at[(-1,) * leaves[-1].ndim].add(1e-3)])


@pytest.mark.parametrize(
  ("key", "change"),
  [
    ("model", {"model": dataclasses.replace(MODEL, params=changed(MODEL.params))}),
    ("tokenizer", {"model": dataclasses.replace(MODEL, tokenizer=train_bpe(["c d e"], 270))}),
    ("tokenizer", {"model": dataclasses.replace(MODEL, tokenizer=None)}),
    ("rows", {"rows": ROWS._replace(tokens=ROWS.tokens[::-1])}),
    ("rows", {"rows": ROWS._replace(segment=ROWS.segment * 0)}),
    ("layers", {"layers": (0, 1)}),
  ],
)
def test_states_of_something_else_are_refused(whole, key, change):
  before = contents(whole)
  with pytest.raises(ValueError, match=r"were computed with .*: choose another dir") as refusal:
    compute(whole, **change)
  assert f"features={str(whole)!r} were computed with {key}=" in str(refusal.value)
  assert contents(whole) == before


def test_unfinished_states_of_something_else_are_refused_too(tmp_path, monkeypatch):
  def killed(*arguments):
    raise KeyboardInterrupt

  monkeypatch.setattr(features.forward, "parts", killed)
  with pytest.raises(KeyboardInterrupt):
    compute(tmp_path)
  with pytest.raises(ValueError, match="were computed with tokenizer="):
    compute(tmp_path, model=dataclasses.replace(MODEL, tokenizer=None))


def test_states_that_half_precision_cannot_hold_are_refused(tmp_path):
  params = MODEL.params["params"]
  loud = {"params": params | {"embedding": params["embedding"].at[int(ROWS.tokens[4, 0])].set(1e6)}}
  rows = ROWS._replace(tokens=np.where(np.arange(len(ROWS.tokens))[:, None] < 4, 0, ROWS.tokens))
  with pytest.raises(ValueError, match=r"model='tiny' has states beyond float16 in rows 3 to 5"):
    compute(tmp_path, (0,), dataclasses.replace(MODEL, params=loud), rows)


def test_a_disk_that_is_too_small_is_not_filled(tmp_path, monkeypatch):
  usage = features.shutil.disk_usage(tmp_path)
  monkeypatch.setattr(features.shutil, "disk_usage", lambda path: usage._replace(free=1000))
  with pytest.raises(ValueError, match=r"would take 0.00 GB; its disk has 0.00 GB: choose"):
    compute(tmp_path)
  assert not list(tmp_path.glob("*.npy"))
