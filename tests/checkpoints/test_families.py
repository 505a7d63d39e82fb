"""Families whose layers differ from Llama's: transformers' logits, trees, drafts, and the way back.

The fixtures' texts are longer than the windows, see `make_family_fixtures`.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import tempfile

import families_page
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from make_family_fixtures import IDS, KEPT, MODELS, OUT, VOCAB, drawn
from safetensors.numpy import load_file, save_file
from test_hf import logits_of, torch_logits, transformers  # noqa: F401

import specjax
from specjax.checkpoints import families, hf, hf_pictures, published
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.eagle3 import Eagle3Config, eagle3
from specjax.models.rotary import rope_frequencies
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.models.trimmed import trim, trimmed
from specjax.names.load import Model

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "families.md"
ATOL = 2e-5


def directory_of(name, directory: pathlib.Path, **changes) -> pathlib.Path:
  """The checkpoint of a fixture, with weights drawn by the names that its layout has."""
  raw = json.loads((OUT / name / "config.json").read_text()) | changes
  (directory / "config.json").write_text(json.dumps(raw))
  family = families.by_type(raw, name)
  shapes = {}
  for part in itertools.chain(*family.layout(family.from_json(raw)).values()):
    shapes[part.name] = part.first + part.shape[0], *part.shape[1:]
  tensors = {key: drawn(key, shape, name) for key, shape in shapes.items()}
  save_file(tensors, directory / "model.safetensors")
  return directory


@functools.cache
def loaded(name):
  with tempfile.TemporaryDirectory() as directory:
    return hf.load(directory_of(name, pathlib.Path(directory)))


def expected(name):
  return IDS, np.load(OUT / name / "logits.npy")


@functools.cache
def ours(name):
  found = loaded(name)
  return logits_of(found.config, found.params, IDS)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name):
  np.testing.assert_allclose(ours(name)[..., KEPT], expected(name)[1], atol=ATOL)


@pytest.mark.full(
  but=["gemma2", "gemma3_text", "ministral3", "deepseek_v3", "gemma4_text", "gemma3n_text"]
)
@pytest.mark.parametrize("name", MODELS)
def test_a_tree_behind_a_cache_equals_one_pass(name):
  assert tree_apart(name) <= ATOL


def tree_apart(name) -> float:
  """How far a tree's logits are from those of transformers, and of a pass over another text.

  Nodes 0 to 3 are the text's next tokens, node 4 is another child of node 1.
  """
  ids, logits = expected(name)
  found, cached = loaded(name), 9
  lm = target(found.config)
  length = jnp.full(len(ids), cached + 1)
  cache, _ = jax.jit(lm.prefill, static_argnums=3)(found.params, ids[:, : cached + 1], length, 32)
  mask = np.tril(np.ones((5, 5), bool))
  mask[4] = [True, True, False, False, True]
  nodes = np.concatenate([ids[:, cached : cached + 4], ids[:, :1]], 1)
  depth = np.broadcast_to(np.array([0, 1, 2, 3, 2], np.int32), nodes.shape)
  seen = np.broadcast_to(mask, (len(ids), 5, 5))
  got = jax.jit(lm.evaluate)(found.params, cache, nodes, depth, seen).logits
  other = np.concatenate([ids[:, : cached + 2], ids[:, :1], ids[:, cached + 3 :]], 1)
  want = logits_of(found.config, found.params, other)[:, cached + 2]
  of_text = np.abs(got[:, :4, KEPT] - logits[:, cached : cached + 4]).max()
  return float(max(of_text, np.abs(got[:, 4] - want).max()))


@pytest.mark.full(but=["gemma2"])
@pytest.mark.parametrize("name", MODELS)
def test_drafts_change_no_token(name):
  """And all are the likeliest of one pass without a cache."""
  said = decoded(name, length=24)
  assert decoded(name, "prompt_lookup-4", 24) == said
  assert lost(loaded(name), IDS[:1], [said]) <= ATOL


def lost(found, prompts, said) -> float:
  """How far logits of what was said are below the largest of one pass without a cache."""
  text = np.concatenate([prompts, said], 1)
  logits = logits_of(found.config, found.params, text)[:, prompts.shape[1] - 1 : -1]
  own = np.take_along_axis(np.asarray(logits), np.asarray(said)[..., None], 2)[..., 0]
  return float((logits.max(-1) - own).max())


@pytest.mark.slow
@pytest.mark.full(but=["cohere2"])
@pytest.mark.parametrize("name", MODELS)
def test_drafts_change_no_token_that_is_drawn(name):
  warm = {"temperature": 1.0, "seed": 7}
  assert decoded(name, "prompt_lookup-4", 24, **warm) == decoded(name, length=24, **warm)


@pytest.mark.slow
@pytest.mark.full(but=["gemma3_text"])
@pytest.mark.parametrize("name", MODELS)
def test_a_head_learns_in_ten_steps(name):
  found = losses(name)
  assert found[10] < 0.9 * found[0]


def losses(name) -> list[float]:
  """EAGLE-3's cross-entropy with the target's likeliest tokens, before each of eleven steps."""
  found = loaded(name)
  network, made = Transformer(found.config), eagle3(target(found.config), Eagle3Config(depth=2))
  rng = np.random.default_rng(4)
  tokens = jnp.asarray(rng.integers(0, VOCAB, (8, 16)), jnp.int32)
  position = jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32), tokens.shape)
  features, _ = network.apply(
    found.params, tokens, position, attention_mask(jnp.zeros_like(tokens), True),
    hidden_layers=made.hidden_layers, method="features",
  )  # fmt: skip
  at = jnp.broadcast_to(jnp.arange(1, 13, dtype=jnp.int32), (8, 12))
  examples = Examples(tokens, position, jnp.zeros_like(tokens), features, at)
  likeliest = network.apply(found.params, features.hidden, method="head").argmax(-1)[:, 2:14]
  params, optimizer = made.init(jax.random.key(1), found.params, None), optax.sgd(0.5)

  def loss(trained):
    own = params | {"params": trained}
    logits = made.read(own, found.params, drafting.unroll(made, own, found.params, examples)[0], 1)
    every = optax.softmax_cross_entropy_with_integer_labels(logits.reshape(8, 12, -1), likeliest)
    return every.mean()

  @jax.jit
  def step(trained, state):
    value, gradient = jax.value_and_grad(loss)(trained)
    update, state = optimizer.update(gradient, state)
    return optax.apply_updates(trained, update), state, value

  trained, found_losses = params["params"], []
  state = optimizer.init(trained)
  for _ in range(11):
    trained, state, value = step(trained, state)
    found_losses.append(float(value))
  return found_losses


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_comes_back_equal(name, tmp_path):
  found = loaded(name)
  hf.save(tmp_path, found.config, found.params, stop=(2,), dtype=jnp.float32)
  again = hf.load(tmp_path)
  text = hf_pictures.TEXTS.get(name, {"model_type": name} | MODELS[name])["model_type"]
  text = "ministral3" if name == "mistral3" else text
  assert json.loads((tmp_path / "config.json").read_text())["model_type"] == text
  assert again.config == found.config
  assert jax.tree.all(jax.tree.map(jnp.array_equal, again.params, found.params))
  for key, value in load_file(tmp_path / "model.safetensors").items():
    np.testing.assert_allclose(value, drawn(key, value.shape, name), atol=1e-7, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_transformers_reads_what_is_written(name, tmp_path, transformers):  # noqa: F811
  ids, logits = expected(name)
  save(tmp_path, name)
  np.testing.assert_allclose(
    torch_logits(transformers, tmp_path, ids)[..., KEPT], logits, atol=5e-6
  )


def save(directory, name):
  found = loaded(name)
  hf.save(directory, found.config, found.params, dtype=jnp.float32)


@pytest.mark.parametrize("name", ["gemma2", "granite"])
def test_a_trimmed_model_has_the_logits_of_its_tokens(name):
  found, (ids, logits) = loaded(name), expected(name)
  lm, said = target(found.config), jnp.array([3, 19, 31])
  small = trimmed(lm)
  params = trim(lm, found.params, said)
  _, features = small.prefill(params, ids, jnp.full(len(ids), ids.shape[1]), 32)
  got = small.head(params, features.hidden)
  np.testing.assert_allclose(got[..., said], logits[..., said // 4], atol=ATOL)


def decoded(name, drafter="none", length=16, **sampling):
  decoder = specjax.Decoder(Model(name, **loaded(name)._asdict()), drafter, **sampling)
  return decoder([IDS[0].tolist()], length)[0].tokens


@pytest.mark.parametrize("name", ["smollm3", "olmo2"])
def test_drafts_by_own_layers_change_no_token(name):
  assert decoded(name, "layerskip-4,exit=1") == decoded(name)


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("deepseek_v3", "`latent` must be absent for drafts by a model's own layers, got Latent"),
    ("llama4_text", "`window` must be None for drafts by a model's own layers, got 5"),
  ],
)
def test_own_layers_are_refused(name, words):
  with pytest.raises(ValueError, match=words):
    decoded(name, "layerskip-4,exit=1")


@pytest.mark.parametrize(
  ("start", "words"),
  [
    (2, "`start` must be at most 0, whose keys layer 2 reads, got 2"),
    (0, "`embedded` must be given to layers with embeddings of their own, got None"),
  ],
)
def test_layers_that_need_more_than_the_stream_are_refused(start, words):
  found = loaded("gemma4_text")
  run = functools.partial(target(found.config).run_layers, start=start)
  x, place = jnp.zeros((1, 3, found.config.width)), jnp.arange(3, dtype=jnp.int32)[None]
  with pytest.raises(ValueError, match=words):
    jax.eval_shape(run, found.params, x, place, jnp.ones((1, 3, 3), bool))


def test_own_layers_of_several_windows_are_refused():
  with pytest.raises(
    ValueError, match="`window` must be None for drafts by a model's own layers, got 5"
  ):
    decoded("gemma3_text", "layerskip-4,exit=1")


def test_pictures_are_left_out_with_a_line(tmp_path, capsys):
  """The tensors of the tower are there; the LM head is the embedding where both parts say so."""
  directory_of("gemma3", tmp_path)
  file = tmp_path / "config.json"
  tensors = load_file(tmp_path / "model.safetensors")
  save_file(tensors | {"vision_tower.a": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
  assert hf.load(tmp_path).config.tied
  assert capsys.readouterr().err.endswith("is read as its language model, without pictures.\n")
  file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": False}))
  with pytest.raises(ValueError, match=r"lacks tensor language_model\.lm_head\.weight"):
    hf.load(tmp_path)


def test_gemma_3n_is_read_beside_its_towers(tmp_path):
  """By the published names, since transformers has a program of its tower in another package."""
  directory_of("gemma3n_text", tmp_path)
  file, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
  text = json.loads(file.read_text())
  file.write_text(json.dumps({"model_type": "gemma3n", "text_config": text, "vision_config": {}}))
  tensors = {key.replace("model.", "model.language_model.", 1): x
             for key, x in load_file(weights).items()}  # fmt: skip
  # Layers that read another's keys have tensors for their own all the same.
  of_none = ("model.vision_tower.a", "model.language_model.layers.3.self_attn.k_proj.weight")
  save_file(tensors | dict.fromkeys(of_none, np.ones(2, np.float32)), weights)
  found = hf.load(tmp_path)
  assert found.config == loaded("gemma3n_text").config
  assert jax.tree.all(jax.tree.map(jnp.array_equal, found.params, loaded("gemma3n_text").params))


def test_experts_may_be_whole_tensors(tmp_path):
  """As Qwen3.5 is published."""
  directory_of("qwen3_5_moe_text", tmp_path)
  tensors = load_file(tmp_path / "model.safetensors")
  for layer in ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts"):
    gates, ups, downs = (
      [tensors.pop(f"{layer}.{e}.{name}_proj.weight") for e in range(6)]
      for name in ("gate", "up", "down")
    )
    tensors[f"{layer}.gate_up_proj"] = np.concatenate([np.stack(gates), np.stack(ups)], 1)
    tensors[f"{layer}.down_proj"] = np.stack(downs)
  save_file(tensors, tmp_path / "model.safetensors")
  again = hf.load(tmp_path).params
  assert jax.tree.all(jax.tree.map(jnp.array_equal, again, loaded("qwen3_5_moe_text").params))


@pytest.mark.parametrize(
  ("name", "change", "words"),
  [
    ("qwen3_next", {"layer_types": ["linear_attention"] * 2},
     "`layer_types` must be 2 of full_attention, once"),
    ("qwen3_next", {"attention_bias": True}, "`attention_bias` must be false"),
    ("qwen3_next", {"linear_num_value_heads": 3},
     "`value_heads` must be a multiple of key_heads=2, got 3"),
    ("granite4_hybrid", {"layer_types": ["mamba"] * 2},
     "`layer_types` must be 2 of attention, once at least, and mamba, got"),
    ("granite4_hybrid", {"layer_types": None}, "`layer_types` must be 2 of .*, got None"),
    ("granite4_hybrid", {"mamba_conv_bias": False}, "`mamba_conv_bias` must be true, got False"),
    ("granite4_hybrid", {"mamba_proj_bias": True}, "`mamba_proj_bias` must be false, got True"),
    ("granite4_hybrid", {"mamba_n_heads": 3},
     "`mamba_n_heads` must be as many heads of 8 as are 32 wide together, got 3"),
    ("granite4_hybrid", {"mamba_n_groups": 3}, "`heads` must be a multiple of groups=3, got 4"),
    ("granite4_hybrid", {"time_step_limit": [0.1]}, "`time_step_limit` must be two numbers"),
    ("granite4_hybrid", {"time_step_limit": [0.2, 0.1]}, "must be above 0.2, got 0.1"),
  ],
)  # fmt: skip
def test_what_recurrent_families_refuse(name, change, words, tmp_path):
  raw = json.loads((OUT / name / "config.json").read_text()) | change
  (tmp_path / "config.json").write_text(json.dumps(raw))
  with pytest.raises(ValueError, match=words):
    hf.load(tmp_path)


def test_steps_of_time_within_limits_come_back(tmp_path):
  found = hf.load(directory_of("granite4_hybrid", tmp_path, time_step_limit=[0.6, 0.8]))
  assert found.config.kinds[0].recurrence.step == (0.6, 0.8)
  hf.save(tmp_path / "again", found.config, found.params, dtype=jnp.float32)
  assert hf.load(tmp_path / "again").config == found.config


@pytest.mark.parametrize(
  ("model_type", "words"),
  [
    ("cohere", "model_type='cohere' has LayerNorm on q and k"),
    ("gpt2", "`model_type` must be one of llama, .*gemma3_text.*, got 'gpt2'"),
  ],
)
def test_a_refusal_says_what_is_missing(model_type, words, tmp_path):
  (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
  with pytest.raises(ValueError, match=words):
    hf.load(tmp_path)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (
      {"layer_types": ["full_attention"]},
      "`layer_types` must be 2 of full_attention and sliding.*, got ",
    ),
    ({"layer_types": ["full_attention", "chunked_attention"]}, "`layer_types` must be .*chunked"),
    (
      {"rope_parameters": {"rope_theta": 5.0}},
      "`rope_parameters` must be an object of full_attention.*, got {",
    ),
    (
      {"use_bidirectional_attention": True},
      "`use_bidirectional_attention` must be false, .*, got True",
    ),
    ({"hidden_activation": "silu"}, "`hidden_activation` must be 'gelu_pytorch_tanh', got 'silu'"),
    ({"attn_logit_softcapping": -1.0}, r"`attn_logit_softcapping` must be above 0, got -1\.0"),
  ],
)
def test_what_a_row_refuses(change, words, tmp_path):
  raw = json.loads((OUT / "gemma3_text" / "config.json").read_text()) | change
  (tmp_path / "config.json").write_text(json.dumps(raw))
  with pytest.raises(ValueError, match=words):
    hf.load(tmp_path)


@pytest.mark.parametrize(("length", "factors"), [(6, (1.0, 1.3)), (7, (1.5, 4.0))])
def test_longrope_is_chosen_by_the_length_of_the_model(length, factors):
  config = dataclasses.replace(loaded("phi3").config, max_length=length)
  np.testing.assert_allclose(
    rope_frequencies(config), [1 / factors[0], 0.1 / factors[1]], rtol=1e-6
  )


def test_the_short_frequencies_are_those_of_transformers(tmp_path, transformers):  # noqa: F811
  """For a text up to the original length."""
  raw = json.loads((OUT / "phi3" / "config.json").read_text())
  rope = raw["rope_parameters"] | {"original_max_position_embeddings": 16}
  length = {"original_max_position_embeddings": 16, "max_position_embeddings": 16}
  directory_of("phi3", tmp_path, rope_parameters=rope, **length)
  found = hf.load(tmp_path)
  want = torch_logits(transformers, tmp_path, IDS)
  np.testing.assert_allclose(logits_of(found.config, found.params, IDS), want, atol=5e-6)


@pytest.mark.parametrize(
  ("name", "change", "words"),
  [
    ("phi3", {"short_factor": [1.0]}, "`short_factor` must be 2 numbers above 0"),
    ("phi3", {"rope_type": "linear", "factor": 2.0, "short_factor": None, "long_factor": None},
     "`rope_type` must be default or longrope"),
    ("smollm3", {"layer_types": ["full_attention"]}, "`layer_types` must be full_.* all 2"),
    ("qwen2_moe", {"layer_types": ["full_attention"] * 5}, "`layer_types` must be full_.* all 2"),
    ("deepseek_v3", {"attention_bias": True}, "`attention_bias` must be false"),
    ("helium", {"head_dim": 8}, "`hidden_size` must be 32, that of all heads, got 16"),
  ],
)  # fmt: skip
def test_what_more_rows_refuse(name, change, words, tmp_path):
  raw = json.loads((OUT / name / "config.json").read_text())
  own = raw["rope_parameters"] if name == "phi3" else raw
  own |= change
  (tmp_path / "config.json").write_text(json.dumps(raw))
  with pytest.raises(ValueError, match=words):
    hf.load(tmp_path)


def test_kimi_k2_is_a_deepseek_v3():
  raw = json.loads((OUT / "deepseek_v3" / "config.json").read_text())
  config = families.by_type({"model_type": "kimi_k2"}, "").from_json(
    raw | {"model_type": "kimi_k2"}
  )
  assert config == loaded("deepseek_v3").config


@pytest.mark.parametrize(
  ("name", "layer", "k", "v"),
  [("deepseek_v3", 0, (1, 4), (1, 6)), ("gemma4_text", 1, (2, 16), (2, 16)),
   ("gemma4_text", 3, (2, 0), (2, 0)), ("gemma4", 1, (1, 16), (1, 16))],
)  # fmt: skip
def test_what_a_cache_holds_of_a_token(name, layer, k, v):
  """Of latents one rotary key and one latent; of layers that read another's rows, nothing."""
  found = loaded(name)
  read = functools.partial(target(found.config).prefill, capacity=32)
  cache, _ = jax.eval_shape(read, found.params, IDS, jnp.full(len(IDS), IDS.shape[1]))
  assert [x[layer].shape[1::2] for x in cache.kv] == [k, v]


def test_no_published_head_has_layers_like_these():
  raw = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 4, "intermediate_size": 24}  # fmt: skip
  with pytest.raises(ValueError, match="must be without kinds, norms, activation"):
    published.network_of(raw, loaded("gemma3_text").config, False)


def test_features_that_no_family_has_together_are_not_written(tmp_path):
  found = loaded("olmo2")
  config = dataclasses.replace(found.config, logit_cap=3.0)
  with pytest.raises(ValueError, match=r"norms='after'.*logit_cap=3\.0: no .*family"):
    hf.save(tmp_path / "out", config, found.params)


def test_the_page_of_families_is_that_of_the_fixtures():
  """`python tests/checkpoints/families_page.py` writes it."""
  written = families_page.rows(PAGE.read_text())
  assert list(written) == list(families_page.TITLES)
  elsewhere = {"diffusion_gemma", "diffusion_gemma_text"}  # in tests/models/test_canvas_denoiser
  elsewhere |= {"gemma3n"}  # above
  elsewhere |= {"specjax_sambay"}  # our own, in tests/models/test_gated_memory
  named = {families_page.TYPES.get(name, name) for name in families_page.TITLES}
  assert named == {*families.ROWS, *hf_pictures.TEXTS} - elsewhere
  for name, cells in written.items():
    assert np.abs(ours(name)[..., KEPT] - expected(name)[1]).max() <= 2 * float(cells[0]), name
    most, tree, greedy, drafts, cached, saved, loss, of_gguf = cells
    assert max(map(float, (most, tree, cached, saved))) <= ATOL, name
    assert (greedy, drafts) == ("400", "400, 400"), name
    before, behind = map(float, loss.split(" to "))
    assert behind < before, name
    most = 3e-2 if name == "gemma3n_text" else 1e-2 if name[:5] == "gemma" else 2e-6  # of GELU
    assert of_gguf == "-" or float(of_gguf) <= most, name
