"""The heads that ship for the chat model: their files, and that they change no token of it."""

import pathlib

import numpy as np
import pytest

import specjax
from specjax.checkpoints import heads
from specjax.models.config import Config
from specjax.names import catalogue
from specjax.names.load import ZOO

MODEL = "smollm2-135m"
HEADS = ("eagle3", "medusa")
CONFIG = Config(
  vocab_size=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, mlp_width=1536,
  max_length=8192, rope_theta=100_000.0, norm_epsilon=1e-5, tied=True,
)  # fmt: skip
QUESTIONS = (
  "What is a lentil?",
  "Rewrite this in the past tense: The river rises in the hills. It flows past three villages.",
  "A pen costs 3 dollars. What do 7 pens cost?",
  "Write a short letter to a neighbour who plays the drums at night.",
)


def test_the_heads_that_ship():
  assert catalogue.heads(MODEL) == list(HEADS)
  sizes = [f.stat().st_size for name in HEADS for f in (ZOO / f"{MODEL}-{name}").iterdir()]
  assert sum(sizes) < 10e6


@pytest.mark.parametrize("name", HEADS)
def test_a_head_fits_its_model_and_its_tree_the_rates(name):
  loaded = heads.load(ZOO / f"{MODEL}-{name}", CONFIG)
  rates = loaded.hit_rates
  assert loaded.head.name == name and len(loaded.choices) == 63
  assert rates[0, 0] > 0.3 and np.all(np.diff(rates[:, :4]) <= 0)
  # In order of worth: the product of the rates on its path, which are rounded to four digits.
  worth = [np.prod([rates[d, rank] for d, rank in enumerate(path)]) for path in loaded.choices]
  assert np.all(np.diff(worth) <= 1e-4)


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", HEADS)
def test_they_change_no_token(name, temperature, batch):
  file = pathlib.Path.home() / ".cache" / "specjax" / "models" / f"{MODEL}.gguf"
  if not file.is_file():
    pytest.skip(f"{file} is absent: specjax info --model {MODEL} fetches it")
  model = specjax.load(str(file))
  prompts = [model.chat(question) for question in QUESTIONS]
  part = f"{name}[{MODEL}-{name}]"
  verifier = "target_only" if temperature else "greedy"
  decode = specjax.Decoder(model, part, verifier, temperature=temperature, batch=batch)
  results = decode(prompts, 40)
  plain = specjax.Decoder(model, temperature=temperature)(prompts, 40)
  assert [r.tokens for r in results] == [r.tokens for r in plain]
  assert sum(r.emitted for r in results) > 1.2 * sum(r.passes for r in results)
