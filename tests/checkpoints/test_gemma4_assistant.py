"""Gemma 4's assistants: transformers' logits and drafts, files both ways, and what is refused.

See `make_assistant_fixture` for what transformers was asked.
"""

import functools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from make_assistant_fixture import AHEAD, AT, KINDS, NEW, OUT, PROMPTS, TARGET, weight
from make_family_fixtures import IDS
from safetensors.numpy import load_file, save_file
from test_families import directory_of
from test_published_heads import same, sentence

import specjax
from specjax import speculate
from specjax.checkpoints import families, formats, gemma4_assistant, hf
from specjax.decoding.method import method as pair
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.gemma4_assistant import ORDER, Gemma4AssistantConfig
from specjax.heads.gemma4_assistant import gemma4_assistant as build
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask
from specjax.sampling import Settings, request_keys
from specjax.verifiers import greedy

EXPECTED = np.load(OUT / "expected.npz")
RAW = json.loads((OUT / "config.json").read_text())


@functools.cache
def model():
  with tempfile.TemporaryDirectory() as directory:
    return hf.load(directory_of(TARGET, pathlib.Path(directory)))


def tensors(name: str) -> dict[str, np.ndarray]:
  """The tensors of an assistant, by the names and shapes that its layout has."""
  config = loaded_config(name)
  table = gemma4_assistant.layout(config, model().config)
  shapes = {part.name: part.shape for parts in table.values() for part in parts}
  if KINDS[name]:
    shapes["masked_embedding.token_ordering"] = (model().config.vocab_size,)
  return {key: weight(key, shape) for key, shape in shapes.items()}


def loaded_config(name: str):
  own = RAW["num_centroids"], RAW["centroid_intermediate_top_k"]
  return Gemma4AssistantConfig(4, 16, 2, 12, (False, False, True), *(own if KINDS[name] else ()))


def write(directory, name: str, raw=None, own=None) -> pathlib.Path:
  directory.mkdir(exist_ok=True)
  said = RAW | {"use_ordered_embeddings": KINDS[name]} | (raw or {})
  (directory / "config.json").write_text(json.dumps(said))
  save_file(tensors(name) if own is None else own, directory / "model.safetensors")
  return directory


@functools.cache
def loaded(name: str):
  with tempfile.TemporaryDirectory() as directory:
    found = formats.load(write(pathlib.Path(directory), name), model().config)
  assert found.config == loaded_config(name)
  return found


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_transformers(name):
  head, params = loaded(name).head, loaded(name).params
  T = IDS.shape[1]
  tokens, segment = IDS[:1], np.zeros((1, T), np.int32)
  position = np.arange(T, dtype=np.int32)[None]

  @jax.jit
  def run(params, target_params):
    features, _ = Transformer(model().config).apply(
      target_params, tokens, position, attention_mask(segment, True),
      hidden_layers=head.hidden_layers, method="features",
    )  # fmt: skip
    examples = Examples(tokens, position, segment, features, jnp.asarray([AT]))
    states = drafting.unroll(head, params, target_params, examples)
    return [head.read(params, target_params, x, d)[0] for d, x in enumerate(states, 1)]

  got = np.stack(run(params, model().params), 1)
  want = EXPECTED[f"logits_{name}"]
  np.testing.assert_allclose(got, want, atol=1e-5)
  assert want.shape == (len(AT), AHEAD, model().config.vocab_size) and want.std() > 0.1


@pytest.mark.slow
@pytest.mark.full(but=["centroids-kept windows"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole caches", "kept windows"])
@pytest.mark.parametrize("name", KINDS)
def test_every_draft_is_that_of_transformers(name, whole):
  """Twenty ragged texts in one batch; transformers' first round begins behind the first token."""
  head, params, B = loaded(name).head, loaded(name).params, len(PROMPTS)
  wanted = [[row for row in rows if row[0] >= 0] for rows in EXPECTED[f"rounds_{name}"].tolist()]
  lm = families.target(model().config, whole=whole)
  method = pair(lm, drafting.drafter(head, ((0,), (0,) * 2, (0,) * 3, (0,) * 4)), greedy())
  weights = speculate.Weights(model().params, params)
  texts = first_tokens()
  T = max(map(len, texts))
  tokens = np.array([x + [0] * (T - len(x)) for x in texts], np.int32)
  length = np.array(list(map(len, texts)), np.int32)
  f = jnp.zeros(B)
  request = speculate.DecodeRequest(
    Settings(f, jnp.zeros(B, jnp.int32), f + 1, f), request_keys(0, np.arange(B)),
    length + NEW - 1, jnp.asarray([-1], jnp.int32),
  )  # fmt: skip
  capacity = speculate.capacity_for(T, NEW, AHEAD)
  state = speculate.compiled_start(method, weights, tokens, length, request, capacity)

  @jax.jit
  def propose(state):
    context = state.context._replace(cache=state.cache)
    own = params, model().params, state.drafter
    return method.drafter.propose(*own, context, request.settings, None)[0].tokens[:, 1:]

  seen = [[] for _ in range(B)]
  while not np.asarray(state.done).all():
    guesses = np.asarray(propose(state))
    for b in np.flatnonzero(~np.asarray(state.done)):
      seen[b].append([int(state.context.length[b]), *guesses[b].tolist()])
    state = speculate.compiled_advance(method, weights, request, state, jnp.int32(1))
  drafts = 0
  for ours, theirs in zip(seen, wanted, strict=True):
    # The last of ours may be for one token, for which transformers drafts nothing.
    for own, other in zip(ours, theirs, strict=False):
      cut = [x for x in other if x >= 0]
      assert own[: len(cut)] == cut
      drafts += 1
    assert len(ours) - len(theirs) in (0, 1)
  assert drafts == sum(map(len, wanted)) > 100


@functools.cache
def first_tokens() -> list[list[int]]:
  """The prompts with the first token that the target says."""
  decoder = specjax.Decoder(specjax_model(), batch=len(PROMPTS))
  return [p + r.tokens for p, r in zip(PROMPTS, decoder(PROMPTS, 1), strict=True)]


@functools.cache
def specjax_model():
  with tempfile.TemporaryDirectory() as directory:
    return specjax.load(str(directory_of(TARGET, pathlib.Path(directory))))


@pytest.mark.slow
@pytest.mark.full(but=["tree-centroids-warm"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 3}], ids=["cold", "warm"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tree", ["", "/dynamic-8,depth=3,beam=3"], ids=["chain", "tree"])
def test_drafts_change_no_token(tree, name, settings, tmp_path):
  drafter = f"gemma4_assistant[{write(tmp_path / 'a', name)}]{tree}"
  plain, drafted = (
    specjax.Decoder(specjax_model(), x, batch=3, **settings)(PROMPTS[8:11], 24)
    for x in ("none", drafter)
  )
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]


@pytest.mark.parametrize("name", KINDS)
def test_loaded_then_saved_is_the_assistant(name, tmp_path):
  found = loaded(name)
  formats.save(
    tmp_path / "a", "gemma4_assistant", found, model().config, model().params, base="x",
    dtype=jnp.float32,
  )  # fmt: skip
  after = load_file(tmp_path / "a" / "model.safetensors")
  assert after.keys() == tensors(name).keys()
  for key, x in tensors(name).items():
    np.testing.assert_array_equal(after[key], x, key)
  raw = json.loads((tmp_path / "a" / "config.json").read_text())
  for key in ("backbone_hidden_size", "model_type"):
    assert raw[key] == RAW[key]
  for key in raw["text_config"].keys() & RAW["text_config"].keys() - {"rope_parameters"}:
    if raw["text_config"][key] is not None:
      assert raw["text_config"][key] == RAW["text_config"][key], key
  again = formats.load(tmp_path / "a", model().config)
  same(again.params, found.params)
  assert (again.config, again.network) == (found.config, found.network)


REFUSED = [
  ({"backbone_hidden_size": 8}, "`backbone_hidden_size` must be the target's, 16, got 8."),
  ({"tie_word_embeddings": False}, "`tie_word_embeddings` must be true"),
  ({"text_config": {"sliding_window": 4}}, "`window` of layer 0 must be the target's, 5, got 4."),
  ({"text_config": {"num_kv_shared_layers": 1}}, "`num_kv_shared_layers` must be 3 in an"),
  ({"text_config": {"enable_moe_block": True}}, "`enable_moe_block` must be False in an assistant"),
  ({"text_config": {"vocab_size": 24}}, "`vocab_size` must be the target's, 32, got 24."),
  ({"text_config": {"model_type": "gemma3_text"}}, "`model_type` must be 'gemma4_text', got"),
  ({"text_config": {"num_key_value_heads": 1}}, "`kv_heads` of layer 0 must be the target's, 2"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_an_assistant_of_another_target_is_refused(change, words, tmp_path):
  change = {k: RAW[k] | x if isinstance(x, dict) else x for k, x in change.items()}
  assert words in sentence(formats.load, write(tmp_path, "whole", change), model().config)


def test_every_tensor_counts_and_every_token_has_a_centroid(tmp_path):
  own = tensors("centroids")
  for key in own:
    write(tmp_path, "centroids", own={k: x for k, x in own.items() if k != key})
    assert f"lacks tensor {key}." in sentence(formats.load, tmp_path, model().config)
  twice = np.zeros_like(own["masked_embedding.token_ordering"])
  write(tmp_path, "centroids", own=own | {"masked_embedding.token_ordering": twice})
  words = "must have every token from 0 to 31 once."
  assert words in sentence(formats.load, tmp_path, model().config)
  assert loaded("centroids").params[ORDER].dtype == jnp.int32


def test_a_target_without_such_a_layer_is_refused():
  llama = families.target(Config(32, 16, 2, 4, 2, 8, 24))
  words = "`full` must have True alone: no layer of the target has a sliding window."
  assert words in sentence(build, llama, Gemma4AssistantConfig(full=(True, False)))
