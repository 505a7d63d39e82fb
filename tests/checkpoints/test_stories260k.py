"""A model nobody here trained, decoded by every drafter: the ids of the reference program."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llama2c_reference import greedy

from specjax import drafters
from specjax.checkpoints import hf, llama2c
from specjax.data import datastore, trigrams
from specjax.decoding.decoder import Decoder
from specjax.drafters.layers.dynamic_exit import unseen
from specjax.drafters.layers.skipped_layers import every_second
from specjax.drafters.layers.swift import begin
from specjax.drafters.retrieval.history import empty
from specjax.heads import drafting
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.names.build.drafters import target_of
from specjax.names.load import load
from specjax.processors.matchers import matchers

STEPS = 200
BEGINNING = "Once upon a time, there was a little girl. She had a"
FOLLOWING = ", there was a little girl named Lily."
CHOICES = ((0,), (1,), (0, 0), (2,), (0, 1), (1, 0), (0, 0, 0))


@pytest.fixture(scope="module")
def model(shared_data, tmp_path_factory):
  c = llama2c.load(shared_data / "stories260K.bin", shared_data / "tok512.bin")
  out = tmp_path_factory.mktemp("stories260k")
  hf.save(out, c.config, c.params, c.tokenizer, stop=c.stop, dtype=jnp.float32)
  return load(str(out))


@pytest.fixture(scope="module")
def reference(model, shared_data):
  prompt = model.encode("Once upon a time")
  ids, _ = greedy(shared_data / "stories260K.bin", prompt, STEPS)
  return ids[len(prompt) :]


def pair(name: str, model):
  """A drafter with weights; untrained heads and a damaged copy of the model guess badly enough."""
  if name == "draft_model":
    damaged = jax.tree.map(lambda x: x * 1.1 if x.ndim > 1 else x, model.params)
    return drafters.draft_model(model.target), damaged
  if name == "medusa":
    head = medusa(model.target, MedusaConfig(depth=3))
    return drafting.drafter(head, CHOICES), head.init(jax.random.key(0), model.params)
  if name in ("history", "trie", "suffix_decoding"):
    return drafters.DRAFTERS[name](), empty(2**15)
  if name == "rest":  # begins as the story does
    return drafters.rest(), tuple(map(jnp.asarray, datastore.build([model.encode(BEGINNING)])))
  if name == "aded":
    table = trigrams.count(np.asarray(model.encode(BEGINNING)), model.config.vocab_size)
    return drafters.DRAFTERS[name](), jax.tree.map(jnp.asarray, table)
  if name == "aggressive":
    return drafters.aggressive(), jnp.asarray(model.encode(BEGINNING))
  if name == "forced":  # by a grammar that the story follows for a while
    own = matchers(model.tokenizer, model.config.vocab_size, model.stop)
    text = json.dumps({"grammars": [{"lark_grammar": f'start: "{FOLLOWING}" /(.|\\n)*/'}]})
    grammar = np.frombuffer(text.encode(), np.uint8)
    return drafters.forced(own.forced), jnp.asarray(grammar)
  build = drafters.DRAFTERS[name]
  begun = {"self_speculative": jnp.asarray(every_second(model.config.layers)),
           "swift": begin(model.config.layers), "del": unseen(model.config.layers, 2)}  # fmt: skip
  return build(*target_of(build, model.target)), begun.get(name, ())


@pytest.mark.slow
@pytest.mark.full(but=["prompt_lookup", "medusa"])
# No denoiser was trained on this vocabulary.
@pytest.mark.parametrize(
  "name", [*(name for name in drafters.DRAFTERS if name != "denoiser"), "medusa"]
)
def test_text_is_that_of_llama2c(name, model, reference):
  (result,) = Decoder(model, pair(name, model))(["Once upon a time"], STEPS)
  assert result.tokens == reference
  assert result.emitted == STEPS
  assert result.text.startswith(FOLLOWING)
  # There is no earlier request, and no exit is right so often that del drafts.
  if name in ("none", "history", "del"):
    assert result.passes == STEPS
  else:
    assert result.passes < STEPS
