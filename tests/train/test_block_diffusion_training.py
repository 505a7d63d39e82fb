"""Training of block diffusion: the pass over two halves against one per block, and the script."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.checkpoints import hf
from specjax.data import lists
from specjax.data.chat import TEMPLATES
from specjax.data.packing import PackedRows, pack
from specjax.data.tokenizer import END, MASK, train_bpe
from specjax.models.config import Config
from specjax.models.transformer import Transformer, init
from specjax.train import denoiser as script
from specjax.train.recipe import asked_slots, block_diffusion, forward, from_causal
from specjax.train.recipe.config import Network, Training
from specjax.train.recipe.masking import denoising_loss

V, D, B, T = 20, 4, 3, 14  # the last block of a row is short
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp_width=16, causal=False,
  block_length=D,
)  # fmt: skip


def alone(clean):
  """Rows of one text each."""
  slot = jnp.broadcast_to(jnp.arange(clean.shape[1], dtype=jnp.int32), clean.shape)
  return PackedRows(clean, slot, jnp.zeros_like(slot), jnp.ones(clean.shape, bool))


@pytest.mark.slow
@pytest.mark.parametrize("shift", [False, True])
def test_a_text_does_not_see_those_that_share_its_row(shift):
  rng, sizes = np.random.default_rng(0), (4, 8, 2)
  params, network = init(CONFIG, jax.random.key(0)), Transformer(CONFIG)
  clean, noisy = ([rng.integers(0, V, n) for n in sizes] for _ in range(2))
  packed = pack([(ids.tolist(), [True] * len(ids)) for ids in clean], 14)
  order = [1, 0, 2]  # the longest first
  run = jax.jit(block_diffusion.states, static_argnums=(0, 4))
  together = run(
    network, params, jnp.asarray(np.concatenate([noisy[i] for i in order]))[None],
    jax.tree.map(jnp.asarray, packed), shift,
  )  # fmt: skip
  begin = 0
  for i in order:
    one = run(network, params, jnp.asarray(noisy[i])[None], alone(jnp.asarray(clean[i])[None]),
              shift)  # fmt: skip
    np.testing.assert_allclose(together[:, begin : begin + sizes[i]], one, atol=1e-5)
    begin += sizes[i]


@pytest.mark.slow
@pytest.mark.full(but=["True"])
@pytest.mark.parametrize("shift", [False, True])
def test_the_loss_is_that_of_each_noisy_block_after_its_clean_prefix(shift):
  rng = np.random.default_rng(0)
  params = jax.jit(functools.partial(init, CONFIG))(jax.random.key(0))
  params = jax.tree.map(lambda x: x * 9 if x.ndim > 1 else x, params)
  clean = jnp.asarray(rng.integers(0, V - 1, (B, T)), jnp.int32)
  maskable = jnp.asarray(rng.random((B, T)) < 0.8)
  masked, p = block_diffusion.corrupt(jax.random.key(1), maskable, D)
  noisy = jnp.where(masked, V - 1, clean)
  network = Transformer(CONFIG)
  run = jax.jit(block_diffusion.states, static_argnums=(0, 4))
  got = network.apply(params, run(network, params, noisy, alone(clean), shift), method="head")

  @jax.jit
  def states(tokens):
    slot = jnp.arange(T)
    position = jnp.broadcast_to(slot, tokens.shape)
    sees = jnp.broadcast_to(slot[None] // D <= slot[:, None] // D, (B, T, T))
    return network.apply(params, tokens, position, sees)[0]

  hidden = [[None] * T for _ in range(B)]
  for first in range(0, T, D):
    block = slice(first, min(first + D, T))
    found = states(clean.at[:, block].set(noisy[:, block]))
    for t in range(*block.indices(T)):
      for b in range(B):
        hidden[b][t] = found[b, max(t - shift, 0)]
  logits = network.apply(params, jnp.array(hidden), method="head")
  np.testing.assert_allclose(got, logits, atol=1e-4)

  nll = -np.asarray(jax.nn.log_softmax(logits))
  rows = []
  for b in range(B):
    terms = [nll[b, t, clean[b, t]] / p[b, t] for t in range(T) if masked[b, t]]
    rows.append(sum(terms) / int(maskable[b].sum()))
  said = asked_slots.cross_entropy(got, clean)
  loss, _ = denoising_loss(*said, masked, maskable, 1 / p)
  np.testing.assert_allclose(loss, np.mean(rows), rtol=1e-4)


@pytest.mark.slow
def test_every_block_has_its_own_number_of_masks():
  maskable = jnp.broadcast_to(jnp.arange(T)[None] >= 2, (400, T))
  masked, p = block_diffusion.corrupt(jax.random.key(0), maskable, D)
  assert masked.shape == p.shape == (400, T) and not masked[:, :2].any()
  for first, count in ((0, 2), (4, 4), (8, 4), (12, 2)):
    block = slice(first, first + D)
    k = np.asarray(masked[:, block].sum(1))
    np.testing.assert_allclose(np.bincount(k)[1:] / 400, 1 / count, atol=0.1)
    np.testing.assert_allclose(p[:, block], np.broadcast_to(k[:, None] / count, p[:, block].shape))
  k = np.asarray(masked[:, 4:8].sum(1)), np.asarray(masked[:, 8:12].sum(1))
  assert (k[0] != k[1]).any()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """Short copies, a causal model that reads them, and the options of a run."""
  path = tmp_path_factory.mktemp("blocks")
  records = lists.records(0, 64, lengths=(2,), tasks=("copy",))
  (path / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
  tokenizer = train_bpe([r["question"] + " " + r["answer"] for r in records], 280)
  config = dataclasses.replace(
    CONFIG, vocab_size=tokenizer.vocab_size, causal=True, block_length=None, tied=False
  )
  params = jax.jit(functools.partial(init, config))(jax.random.key(0))
  hf.save(path / "causal", config, params, tokenizer, template=TEMPLATES["plain"],
          dtype=jnp.float32)  # fmt: skip
  options = script.Config(
    data=str(path / "data.jsonl"), out=str(path / "run"), start=str(path / "causal"), length=40,
    block_length=D, network=Network(8, 1, 1, 1, 8, 8),
    training=Training(batch=8, steps=2, rate=1e-9, warmup=1, save_every=2, decay=0.1, devices=1),
  )  # fmt: skip
  return path, config, params, options


@pytest.mark.slow
def test_a_causal_model_becomes_one_of_block_diffusion(home):
  path, before, params, options = home
  script.main(options)
  model = specjax.load(str(path / "run" / "model"))
  assert model.config == dataclasses.replace(
    before, vocab_size=before.vocab_size + 1, causal=False, block_length=D
  )
  assert model.shift and model.mask == before.vocab_size == model.tokenizer.id(MASK)
  assert model.stop == (model.tokenizer.id(END),) and model.template == TEMPLATES["plain"]
  for name in ("embedding", "lm_head"):
    got, old = model.params["params"][name], params["params"][name]
    np.testing.assert_allclose(got[:-1], old, atol=1e-3)
    np.testing.assert_allclose(got[-1], old.mean(0), atol=1e-3)


@pytest.mark.slow
def test_later_slots_come_to_be_seen(home, tmp_path):
  """With a chance below one the losses of both steps are others than with all in sight."""
  options = home[3]
  got = {}
  for name, blocks in (("blocks", D), ("whole", None)):
    changes = {"out": str(tmp_path / name), "block_length": blocks}
    for anneal in (0, 2):
      changed = dataclasses.replace(options, **changes | {"anneal": anneal})
      changed = dataclasses.replace(changed, out=f"{changed.out}-{anneal}")
      script.main(changed)
      lines = (tmp_path / f"{name}-{anneal}" / "metrics.jsonl").read_text().splitlines()
      got[name, anneal] = [json.loads(line)["loss"] for line in lines]
  assert all(abs(a - b) > 1e-5 for n in ("blocks", "whole")
             for a, b in zip(got[n, 0], got[n, 2], strict=True))  # fmt: skip
  with pytest.raises(ValueError, match=r"`anneal` must be 0 where start=.*got 2\."):
    again = dataclasses.replace(options, start=f"{tmp_path}/whole-0/model", anneal=2)
    script.main(dataclasses.replace(again, out=str(tmp_path / "again")))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_later_slot_is_seen_with_a_chance(share):
  seen = np.asarray(from_causal.seen(jax.random.key(0), jnp.float32(share), 100))
  later = seen[np.triu_indices(100, 1)]
  assert seen[np.tril_indices(100)].all() and abs(later.mean() - share) < 0.03
  assert share in (0.0, 1.0) or 0 < later.mean() < 1


def test_a_slot_that_sees_no_later_one_is_said_by_a_causal_model(home):
  """In whole rows, and in a block the noisy slots after clean ones."""
  _, config, params, _ = home
  rng, everywhere = np.random.default_rng(0), jnp.ones((2, T), bool)
  clean, noisy = (jnp.asarray(rng.integers(0, 250, (2, T)), jnp.int32) for _ in range(2))
  seen = from_causal.seen(jax.random.key(0), jnp.float32(0), T)
  causal = jax.jit(
    lambda tokens: forward.states(Transformer(config), params, tokens, everywhere, False, seen)
  )
  open_ = Transformer(dataclasses.replace(config, causal=False))
  got = jax.jit(forward.states, static_argnums=(0, 4))(open_, params, noisy, everywhere, True, seen)
  np.testing.assert_allclose(got[:, 1:], causal(noisy)[:, :-1], atol=1e-5)
  blocks = Transformer(dataclasses.replace(config, causal=False, block_length=D))
  got = jax.jit(block_diffusion.states, static_argnums=(0, 4))(
    blocks, params, noisy, alone(clean), True, seen
  )
  for first in range(0, T, D):
    mixed = clean.at[:, first : first + D].set(noisy[:, first : first + D])
    inside = slice(first + 1, first + D)
    np.testing.assert_allclose(
      got[:, inside],
      causal(mixed)[:, first : first + D - 1][:, : got[:, inside].shape[1]],
      atol=1e-5,
    )


def test_what_does_not_go_with_blocks_is_refused(home, tmp_path):
  options = dataclasses.replace(home[3], out=str(tmp_path), context=True)
  with pytest.raises(ValueError, match=r"`context` must be False with block_length=4, got True\."):
    script.main(options)
