"""Parallel streams, against a network in float64 that reads whole texts stream by stream."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sentences import says

import specjax
from specjax.checkpoints import families, hf, hf_parscale
from specjax.data.packing import pack
from specjax.models import chunks
from specjax.models.config import Config
from specjax.models.parscale import STREAMS, ParScale, init, parscale
from specjax.train import parscale as training
from specjax.train.recipe.config import Training

LM = Config(
  vocab_size=13, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=64
)
H, K, C, M = LM.heads, LM.kv_heads, LM.head_dim, 5
RNG = np.random.default_rng(0)
CONFIG = ParScale(LM, 3, M, 0.1)
PARAMS = jax.tree.map(
  lambda x: jnp.asarray(RNG.normal(size=x.shape) / 3, jnp.float32),
  jax.eval_shape(functools.partial(init, CONFIG), jax.random.key(0)),
)


def rotated(x, place):
  """x [K, T, C] at place [T]."""
  angle = place[:, None] * LM.rope_theta ** -(np.arange(0, C, 2) / C)
  a, b = np.split(x, 2, -1)
  turned = (a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle))
  return np.concatenate(turned, -1)


def normed(x, own):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + LM.norm_epsilon) * own["weight"]


def silu(x):
  return x / (1 + np.exp(-x))


def said(ids) -> np.ndarray:
  """The logits [T, V] after every token of a text."""
  w = jax.tree.map(lambda x: np.asarray(x, np.float64), PARAMS["params"])
  own, T, states = w[STREAMS], len(ids), []
  for p in range(CONFIG.streams):
    x = w["embedding"][ids]
    for i in range(LM.layers):
      layer, of_stream = w[f"layer_{i}"], own[f"layer_{i}"]
      qkv = normed(x, layer["attention_norm"]) @ layer["qkv"].T
      q, k, v = (y.reshape(T, -1, C).swapaxes(0, 1) for y in np.split(qkv, [H * C, (H + K) * C], 1))
      q, k = (rotated(y, np.arange(T)) for y in (q, k))
      k, v = (np.concatenate([of_stream[f"prefix_{n}"][p], y], 1) for n, y in (("k", k), ("v", v)))
      heads = []
      for h in range(H):
        s = np.where(np.tri(T, M + T, M), np.exp(q[h] @ k[h // (H // K)].T / np.sqrt(C)), 0)
        heads.append(s / s.sum(-1, keepdims=True) @ v[h // (H // K)])
      x = x + np.concatenate(heads, 1) @ layer["out"].T
      gate, up = np.split(normed(x, layer["mlp_norm"]) @ layer["gate_up"].T, 2, 1)
      x = x + silu(gate) * up @ layer["down"].T
    states.append(normed(x, w["norm"]))
  whole = np.stack(states, 2)  # [T, E, P]: the MLP reads them with P innermost
  inner = silu(whole.reshape(T, -1) @ own["aggregate_in"].T + own["aggregate_in_bias"])
  share = np.exp(inner @ own["aggregate_out"].T + own["aggregate_out_bias"])
  share = 0.9 * share / share.sum(1, keepdims=True) + 0.1 / 3
  assert share.max() > 0.4  # not near a mean
  return (whole * share[:, None]).sum(2) @ w["embedding"].T


TEXTS = [RNG.integers(13, size=n).tolist() for n in (9, 4)]
NODES = np.array([[1, 7, 3, 2], [5, 5, 0, 8]], np.int32)
PATHS = [[0], [0, 1], [0, 2], [0, 1, 3]]  # of every node, the root first
close = functools.partial(np.testing.assert_allclose, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [9, 3])
def test_prompts_trees_and_what_is_committed_are_read_as_whole_texts(piece, monkeypatch):
  """Prompts at once, and in pieces of 3 tokens."""
  for name, value in {"CHUNK": piece, "LONG": 9, "LONG_IN_CPP": 9}.items():
    monkeypatch.setattr(chunks, name, value)
  target = parscale(CONFIG)
  tokens = np.array([[*text, *[0] * (9 - len(text))] for text in TEXTS], np.int32)
  depth = np.broadcast_to(np.array([len(path) - 1 for path in PATHS], np.int32), (2, 4))
  mask = np.broadcast_to(np.array([[j in path for j in range(4)] for path in PATHS]), (2, 4, 4))

  @jax.jit
  def run(params):
    cache, features = target.prefill(params, tokens, np.array([9, 4], np.int32), 24)
    first = target.evaluate(params, cache, NODES, depth, mask)
    taken = np.array([[0, 1, 3], [0, 2, 2]], np.int32)
    cache = target.commit(cache, first.kv, taken, np.array([3, 2], np.int32))
    again = target.evaluate(params, cache, NODES, depth, mask)
    return target.head(params, features.hidden), first.logits, again.logits, cache.length

  prompts, first, again, held = run(PARAMS)
  assert held.tolist() == [11, 5]
  for b, (text, path) in enumerate(zip(TEXTS, ([0, 1, 3], [0, 2]), strict=True)):
    close(prompts[b, : len(text)], said(text))
    for node, own in enumerate(PATHS):  # a root stands in the place of the newest token
      close(first[b, node], said([*text[:-1], *NODES[b, own]])[-1])
      close(again[b, node], said([*text[:-1], *NODES[b, path], *NODES[b, own]])[-1])


@pytest.mark.slow
def test_training_reads_each_document_as_decoding_does():
  rows = pack([(text, [True] * len(text)) for text in TEXTS], 16)
  hidden = jax.jit(functools.partial(training.read, CONFIG))(PARAMS, rows)
  found = parscale(CONFIG).head(PARAMS, hidden)[0, :13]
  close(found, np.concatenate([said(text) for text in TEXTS]))


@pytest.mark.slow
def test_streams_learn_and_are_loaded_decoded_and_drafted_for_by_name(lm_run, tmp_path):
  config = training.Config(
    f"{lm_run.out}/model", lm_run.data, str(tmp_path), streams=2, prefix=6, held_out=24, length=32,
    training=Training(steps=30, batch=4, rate=3e-3, warmup=3, devices=1),
  )  # fmt: skip
  training.main(config)
  nats = json.loads((tmp_path / "report.json").read_text())["held_out"]
  assert nats["streams"] < nats["begun"]
  before, name = specjax.load(config.model), f"{tmp_path}/model"
  model = specjax.load(name)
  assert model.config == ParScale(before.config, 2, 6)
  np.testing.assert_array_equal(*(x.params["params"]["embedding"] for x in (before, model)))
  prompts = [model.chat("3 pens and 4?"), model.chat("7 hats and 1?")]
  for temperature in (0.0, 1.0):
    options = {"batch": 2, "temperature": temperature}
    plain = specjax.Decoder(model, **options)(prompts, 12)
    for drafter in ("prompt_lookup-4", f"draft_model-3[{name}]"):
      drafted = specjax.Decoder(model, drafter, "target_only", **options)(prompts, 12)
      assert [r.tokens for r in drafted] == [r.tokens for r in plain]


def test_a_file_is_that_of_the_published_program(tmp_path):
  """Without our own key it is a Qwen2 in streams, whose biases the network has, too."""
  raw = families.to_json(CONFIG)
  del raw["specjax_streams_of"], raw["parscale_attn_smooth"]
  published = ParScale(dataclasses.replace(LM, qkv_bias=True), 3, M)
  assert hf_parscale.from_json(raw) == published
  names = {part.name for parts in hf_parscale.layout(published).values() for part in parts}
  assert {"model.layers.1.self_attn.prefix_k", "model.aggregate_layer.2.bias"} <= names
  hf.save(tmp_path, CONFIG, PARAMS, dtype=np.float32)
  found = hf.load(tmp_path)
  assert found.config == CONFIG
  jax.tree.map(np.testing.assert_array_equal, found.params, PARAMS)
  with pytest.raises(ValueError) as error:
    hf_parscale.from_json(raw | {"parscale_n": 1})
  assert says(str(error.value), "`parscale_n` must be at least 2, got 1.")


@pytest.mark.parametrize(
  ("change", "numbers", "words"),
  [
    ({}, (0,), "`streams` must be between 1 and 64, got 0."),
    ({}, (2, 0), "`prefix` must be between 1 and .. got 0."),
    ({}, (2, 3, 1.5), "`smoothing` must be between 0 and 1, got 1.5."),
    ({"window": 4}, (2,), "`model` must be causal for parallel streams, without sliding windows"),
  ],
)
def test_what_cannot_be_is_refused(change, numbers, words):
  with pytest.raises(ValueError) as error:
    ParScale(dataclasses.replace(LM, **change), *numbers)
  assert says(str(error.value), words)
