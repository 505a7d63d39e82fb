"""Bad arguments of the decoders, of a loaded model and of the command line."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Decoder, DiffusionDecoder, load
from specjax.checkpoints import hf
from specjax.cli.main import main
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import train_bpe
from specjax.models.config import Config
from specjax.models.transformer import Transformer

NAN, INF = float("nan"), float("inf")
SURROGATE = "a \ud800 b"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """A causal and a bidirectional model without a thought, and the former's directory."""
  tokenizer = train_bpe(["the cat sat on the mat"] * 2, 280)
  config = Config(tokenizer.vocab_size, 16, 1, 2, 1, 8, 24, max_length=64)
  z, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
  shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), z, z, mask)
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  causal, both = tmp_path_factory.mktemp("causal"), tmp_path_factory.mktemp("both")
  hf.save(causal, config, params, tokenizer, template=TEMPLATES["plain"])
  hf.save(both, dataclasses.replace(config, causal=False), params, tokenizer, mask=5)
  return load(str(causal)), load(str(both)), str(causal)


def refused(call, *arguments, **named) -> str:
  with pytest.raises(ValueError) as error:
    call(*arguments, **named)
  words = str(error.value)
  assert words.endswith(".") and "\n" not in words, words
  return words


def rows(table):
  return [(name, value) for name, values in table.items() for value in values]


OF_DECODER = {
  "temperature": (NAN, INF, -1, "x", None, True, [1], 10**400),
  "top_k": (-1, 2**31, 1.5, "x", None, True),
  "top_p": (0, NAN, 2, "x", None, -1),
  "min_p": (1, NAN, -1, "x", None),
  "typical_p": (0, NAN, 2, "x", None),
  "batch": (0, -1, 10**9, 1.5, "x", None, True),
  "seed": (-1, 2**32, 2**70, 1.5, "x", None),
  "stop": ("ab", [-1], [10**12], ["a"], [1.5], 7, None),
  "stop_words": ("stop", [""], [7], 7, None, [SURROGATE]),
  "processors": (7, "penalties", [7], ["x"]),
  "verifier": (7, "oracle", "", ["greedy"], ("greedy", ()), {}),
  "drafter": (7, "oracle", "", None, ["none"], ("none", ()), "draft_model", "medusa[no]", "a b",
              "prompt_lookup-1", "prompt_lookup-1000000000", "medusa:16", "+"),
  "tree": (7, "dynamic-16,depth=5,beam=4", "x"),
  "sampling": (7, None, {"temperature": 1.0}, "greedy"),
  "draft_length": (7, "x"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), rows(OF_DECODER))
def test_decoder(models, name, value):
  refused(Decoder, models[0], **{name: value})


OF_DIFFUSION = {
  "temperature": (NAN, "x", -1, None),
  "batch": (0, 10**9, "x", None, 1.5),
  "seed": (-1, 2**64, "x", None),
  "policy": (7, "x", "", "threshold-x", "threshold-0.9-3", None, ["threshold"], "threshold/x",
             "confidence-1.5", "confidence-99999999999999999999", DiffusionDecoder),
  "blocks": ("x", 0, -1, "fixed-0", "fixed-1000000000"),
  "cache": ("x", 7), "stopping": ("x", 7), "guidance": (NAN, -1, "x"),
  "top_k": (-1, 1.5, None), "top_p": (0, NAN, "x"), "min_p": (1, None), "typical_p": (0, None),
  "draws": ("x", 7, "anew-1"),
  "confidence": ("x", 0.5, True), "transform": ("x", "end_suppressed[none]", "end_suppressed-1"),
  "guesses": (0, "x", 1.5, 10**9), "sampling": (7, None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), rows(OF_DIFFUSION))
def test_diffusion_decoder(models, name, value):
  refused(DiffusionDecoder, models[1], **{name: value})


def test_a_model_of_the_other_half(models):
  causal, both, _ = models
  for model in (7, None, "gsm8k-7m", causal.config, both):
    assert "model" in refused(Decoder, model)
  for model in (7, None, "lists-3m", causal):
    assert "model" in refused(DiffusionDecoder, model)


OF_CALL = [
  *((prompts, 2) for prompts in (
    "the", [], None, 7, [7], [None], [""], [[]], [b"a"], [["a"]], [[1.5]], [[True]], [[-1]],
    [[10**30]], {"a": 1}, [{"a": 1}], [SURROGATE], ["the " * 200], [{1, 2}],
  )),
  *((["the"], n) for n in (-1, 10**9, 10**30, 1.5, "x", None, True, [1, 2], [None], ["x"], NAN)),
]  # fmt: skip


@pytest.mark.parametrize(("prompts", "new"), OF_CALL)
def test_prompts_and_budgets(models, prompts, new):
  refused(Decoder(models[0]), prompts, new)
  refused(DiffusionDecoder(models[1]), prompts, new)


@pytest.mark.parametrize("rounds", [0, -1, 1.5, "x", None, 2**40])
def test_stream_of_no_rounds(models, rounds):
  assert "`rounds` must be " in refused(next, Decoder(models[0]).stream(["the"], 4, rounds=rounds))
  assert "`rounds` must be " in refused(
    next, DiffusionDecoder(models[1]).stream(["the"], 4, rounds=rounds)
  )


def test_a_loaded_model(models):
  for turns in (7, None, [{}], [{"role": "x", "content": "y"}], SURROGATE, b"x"):
    refused(models[0].chat, turns)
  for ids in ("abc", [-1], [10**6], [1.5], 7, None, ["a"]):
    refused(models[0].decode, ids)
  for name in (7, None, "", "no", "x" * 3000, "a\0b", SURROGATE, b"gsm8k-7m", "/", "."):
    refused(load, name)
  for dtype in ("float99", 7, "int32", None):
    assert f"`dtype` must be a floating dtype such as jnp.bfloat16, got {dtype!r}." in refused(
      load, models[2], dtype
    )


COMMANDS = [
  ("--prompt", SURROGATE), ("--prompt", "the", "--top-k", str(2**31)), ("--prompts", "."),
  ("--prompt", "the", "--temperature", "nan"), ("--prompt", "the", "--temperature", "inf"),
  ("--prompt", "the", "--batch", str(10**9)), ("--prompt", "the", "--seed", str(2**64)),
  ("--prompt", "the", "--max-new-tokens", str(10**12)), ("--prompt", "the", "--top-p", "nan"),
  ("--prompt", "the", "--drafter", "prompt_lookup-9999999999"), ("--prompts", "x" * 300),
  ("--prompt", "the", "--stop-words", ""), ("--prompt", "the", "--verifier", "judge-0.9[no]"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS)
def test_command_line(models, capsys, arguments):
  assert main(["generate", "--model", models[2], *arguments]) == 2
  out, err = capsys.readouterr()
  assert out == "" and err.startswith("error: ") and err.count("\n") == 1
