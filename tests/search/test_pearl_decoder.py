"""PEARL on two devices: its texts are those of plain decoding, and drawn from the target."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import specjax
from specjax.checkpoints import hf
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.names.load import Model
from specjax.sampling import Settings, request_keys
from specjax.search import pearl_decoder
from specjax.search.pearl_decoder import PearlDecoder
from specjax.speculate import DecodeRequest
from specjax.testing import random_table, table_model

CONFIG = Config(32, 16, 2, 4, 2, 16, 24, max_length=128)
PROMPTS = [[1, 2, 3], [4], [7, 7, 7, 7, 5]]


def random_model(name: str, seed: int) -> Model:
  z = jnp.zeros((1, 2), jnp.int32)
  init = jax.jit(Transformer(CONFIG).init)
  params = init(jax.random.key(seed), z, z, jnp.ones((1, 2, 2), bool))
  return Model(name, CONFIG, jax.tree.map(lambda x: 4 * x, params), None, (), (), None)


TARGET, OTHER = random_model("a", 0), random_model("b", 1)


@pytest.mark.slow
@pytest.mark.full(but=["1-2-*", "3-3-*"])
@pytest.mark.parametrize("draft", [TARGET, OTHER], ids=["itself", "another"])
@pytest.mark.parametrize(("block", "batch"), [(1, 2), (3, 3), (4, 1)])
def test_greedy_texts_are_those_of_plain_decoding(draft, block, batch):
  plain = specjax.Decoder(TARGET, batch=batch)(PROMPTS, [9, 1, 14])
  found = PearlDecoder(TARGET, draft, block, batch=batch)(PROMPTS, [9, 1, 14])
  assert [r.tokens for r in found] == [r.tokens for r in plain]
  for ours, theirs in zip(found, plain, strict=True):
    np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-4)
    assert ours.method == f"pearl-{block}[{draft.name}]" and ours.exactness == "EXACT"
  if draft is TARGET:  # every tick but the first commits a whole block
    assert found[2].passes == 1 + -(-13 // block)


@pytest.mark.slow
@pytest.mark.full(but=["2"])
@pytest.mark.parametrize("block", [2, 5])
def test_a_stop_token_ends_a_text(block):
  (plain,) = specjax.Decoder(TARGET)([PROMPTS[0]], 20)
  stop = plain.tokens[6]
  want = plain.tokens[: plain.tokens.index(stop) + 1]
  for draft in (OTHER, TARGET):
    (found,) = PearlDecoder(TARGET, draft, block, stop=[stop])([PROMPTS[0]], 20)
    assert found.tokens == want


def law(table: np.ndarray, length: int, temperature: float) -> np.ndarray:
  """f64[V^length], of the tokens after 0 2, by the chain rule."""
  V = table.shape[1]
  p = np.exp(table / temperature - (table / temperature).max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  total = np.zeros(V**length)
  for i in range(V**length):
    text, chance = [0, 2], 1.0
    for digit in np.unravel_index(i, (V,) * length):
      chance *= p[text[-2], text[-1], digit]
      text.append(int(digit))
    total[i] = chance
  return total


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_sampled_texts_have_the_targets_distribution(wrong):
  """By chi-square; the table of another target would be noticed."""
  V, L, rows, temperature = 3, 4, 4000, 0.9
  table, draft = random_table(0, V), random_table(100, V)
  settings = Settings(
    jnp.full(rows, temperature), jnp.zeros(rows, jnp.int32), jnp.ones(rows), jnp.zeros(rows)
  )
  request = DecodeRequest(
    settings, request_keys(0, np.arange(rows)), jnp.full(rows, 2 + L), jnp.array([-1])
  )
  tokens = jnp.broadcast_to(jnp.array([0, 2], jnp.int32), (rows, 2))
  state = pearl_decoder.decode(
    table_model(V), table, table_model(V), draft, tokens, jnp.full(rows, 2, jnp.int32), request,
    16, 2, (jax.devices()[0],) * 2, 100,
  )  # fmt: skip
  text = np.asarray(state.context.tokens)[:, 2 : 2 + L]
  counts = np.bincount(np.ravel_multi_index(text.T, (V,) * L), minlength=V**L)
  logits = np.asarray(random_table(1, V)["logits"] if wrong else table["logits"], np.float64)
  p = stats.chisquare(counts, rows * law(logits, L, temperature)).pvalue
  assert p < 1e-6 if wrong else p > 1e-6
  assert (np.asarray(state.stats.passes) < L).mean() > 0.2


TWO_DEVICES = """
import jax, specjax
from specjax.search.pearl_decoder import PearlDecoder
model, draft = specjax.load("target"), specjax.load("draft")
decoder = PearlDecoder(model, draft, 3, batch=2)
assert [d.id for d in decoder.devices] == [0, 1]
assert {d.id for x in jax.tree.leaves(decoder._draft_params) for d in x.devices()} == {1}
prompts = [[1, 2, 3], [4]]
assert [r.tokens for r in decoder(prompts, 12)] == [
  r.tokens for r in specjax.generate(model, prompts, max_new_tokens=12, batch=2)]
"""


@pytest.mark.full
def test_two_devices(tmp_path, monkeypatch):
  for name, model in (("target", TARGET), ("draft", OTHER)):
    hf.save(tmp_path / name, CONFIG, model.params, None, dtype=jnp.float32)
  monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
  subprocess.run([sys.executable, "-c", TWO_DEVICES], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"block": 0},
     "`block` must be between 1 and 64, got "
     r"0\."), ({"batch": 0}, r"`batch` must be between 1 and 65536, got 0\."),
    ({"regex": "a"}, r"`settings` must be among batch, min_p, seed, stop.*got 'regex'\."),
    ({"draft": "lists-3m"}, "sees both sides of a token"),
  ],
)  # fmt: skip
def test_bad_arguments(options, words):
  with pytest.raises(ValueError, match=words):
    PearlDecoder(TARGET, **{"draft": OTHER} | options)
