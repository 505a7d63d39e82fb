"""MTP layers in a target's own checkpoint: the formula in NumPy, both ways, and what is refused.

A tiny MiMo is written here with the published names, its layer beside the target's layers.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from head_formulas import decoder_layer, rms
from safetensors.numpy import load_file, save_file
from test_published_heads import layer, same, sentence

import specjax
from specjax.base import Features
from specjax.checkpoints import formats, hf, hf_config
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.mtp import MTPConfig

V, E, LAYERS = 16, 12, 2
RAW = {
  "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "hidden_act": "silu",
  "hidden_size": E, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 4, "num_hidden_layers": LAYERS, "rms_norm_eps": 1e-5, "rope_theta": 640000.0,
  "tie_word_embeddings": False, "vocab_size": V, "max_position_embeddings": 128,
  "attention_bias": True, "use_sliding_window": False, "num_nextn_predict_layers": 1,
  "eos_token_id": 2,
}  # fmt: skip
MTP, SECOND = "model.mtp_layers.0", "model.mtp_layers.1"
NORMS = ("input", "post_attention")
OWN, DEEPER = (
  layer(base, norms=(*NORMS, "token", "hidden", "final"), bias=True)
  | {f"{base}.input_proj.weight": (E, 2 * E)}
  for base in (MTP, SECOND)
)
SHAPES = {"model.embed_tokens.weight": (V, E), "lm_head.weight": (V, E), "model.norm.weight": (E,)}
for number in range(LAYERS):
  SHAPES |= layer(f"model.layers.{number}", norms=NORMS, bias=True)


@functools.cache
def tensors() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  return {
    k: (rng.normal(size=x) / 3 + ("norm" in k)).astype(np.float32)
    for k, x in (SHAPES | OWN | DEEPER).items()
  }


def own_of(count: int) -> dict[str, np.ndarray]:
  """The tensors of so many MTP layers."""
  return {k: tensors()[k] for k in (OWN, OWN | DEEPER)[count - 1]}


def write(directory, own=None, raw=None, count=1):
  """The whole checkpoint, in two shards of which the MTP layers are spread over both."""
  directory.mkdir(exist_ok=True)
  table = {k: tensors()[k] for k in SHAPES} | (own_of(count) if own is None else own)
  index = {key: f"model-{i % 2}.safetensors" for i, key in enumerate(table)}
  for shard in set(index.values()):
    save_file({k: table[k] for k in index if index[k] == shard}, directory / shard)
  (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
  raw = RAW | {"num_nextn_predict_layers": count} if raw is None else raw
  (directory / "config.json").write_text(json.dumps(raw))
  return directory


def logits(t, state, tokens, at, count):
  """Depths 1 to 3 from states before the target's final norm, and then the layers' own.

  As DeepSeek-V3 has it (section 2.2): row i of layer d has the state of row i of layer d - 1, and
  the token d places after it. The last layer goes on with rows that have its own newest state.
  """
  states = list(state[: at + 1])
  for d in range(1, count + 1):
    base = f"model.mtp_layers.{d - 1}"
    for _ in range(1 if d < count else 4 - d):
      embedded = t["model.embed_tokens.weight"][tokens[d : d + len(states)]]
      joined = rms(np.stack(states), 1e-5, t[f"{base}.hidden_layernorm.weight"])
      joined = [joined, rms(embedded, 1e-5, t[f"{base}.token_layernorm.weight"])]
      x = np.concatenate(joined, -1) @ t[f"{base}.input_proj.weight"].T
      attended = rms(x, 1e-5, t[f"{base}.input_layernorm.weight"])
      out = decoder_layer(t, base, RAW, x, attended)
      out = rms(out, 1e-5, t[f"{base}.final_layernorm.weight"])
      states = list(out) if d < count else [*states, out[-1]]
      yield t["lm_head.weight"] @ states[-1]


@pytest.mark.parametrize("count", [1, 2])
def test_the_layers_are_the_published_formula(count, tmp_path):
  model = hf.load(write(tmp_path, count=count))
  loaded = formats.load(tmp_path, model.config)
  assert loaded.config == MTPConfig(before_norm=True, modules=count)
  assert loaded.head.hidden_layers == (LAYERS,)
  rng, T, at = np.random.default_rng(1), 9, 4
  tokens = rng.integers(0, V, (1, T)).astype(np.int32)
  state, other = rng.normal(size=(2, 1, T, E)).astype(np.float32)
  position, segment = np.arange(T, dtype=np.int32)[None], np.zeros((1, T), np.int32)

  @jax.jit
  def run(params, target_params):
    examples = Examples(tokens, position, segment, Features(other, (state,)), jnp.array([[at]]))
    states = drafting.unroll(loaded.head, params, target_params, examples)
    return [loaded.head.read(params, target_params, x, d)[0, 0] for d, x in enumerate(states, 1)]

  got = run(loaded.params, model.params)
  want = logits(jax.tree.map(np.float64, tensors()), state[0], tokens[0], at, count)
  for x, y in zip(got, want, strict=False):
    np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)
    assert np.std(y) > 0.1


@pytest.mark.parametrize("count", [1, 2])
def test_loaded_then_saved_are_the_layers(count, tmp_path):
  model = hf.load(write(tmp_path / "a", count=count))
  loaded = formats.load(tmp_path / "a", model.config)
  formats.save(
    tmp_path / "b", "mtp", loaded, model.config, model.params, base="x", dtype=jnp.float32
  )
  after = load_file(tmp_path / "b" / "model.safetensors")
  assert after.keys() == own_of(count).keys()
  for k, x in after.items():
    np.testing.assert_array_equal(x, tensors()[k], k)
  raw = json.loads((tmp_path / "b" / "config.json").read_text())
  wanted = RAW | {"num_nextn_predict_layers": count}
  assert {k: raw[k] for k in raw.keys() & RAW.keys()} == {
    k: wanted[k] for k in raw.keys() & RAW.keys()
  }
  again = formats.load(tmp_path / "b", model.config)
  same(again.params, loaded.params)
  assert (again.config, again.network) == (loaded.config, loaded.network)


@pytest.mark.slow
@pytest.mark.full(but=["2"])
@pytest.mark.parametrize("count", [1, 2])
def test_layers_draft_for_their_target_by_name(count, tmp_path):
  model = specjax.load(str(write(tmp_path, count=count)))
  prompts = [[1, 2, 3, 4, 5, 1, 2], [7]]
  drafted = specjax.Decoder(model, f"mtp-3[{tmp_path}]", batch=2)(prompts, 20)
  plain = specjax.Decoder(model, batch=2)(prompts, 20)
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]


def test_a_target_without_its_layer_is_read_too(tmp_path):
  model = hf.load(write(tmp_path, own={}))
  assert f"lacks tensor {MTP}." in sentence(formats.load, tmp_path, model.config)


@pytest.mark.parametrize("key", OWN)
def test_every_tensor_counts(tmp_path, key):
  own = own_of(1)
  config = hf_config.from_json(RAW)
  write(tmp_path, {k: x for k, x in own.items() if k != key})
  assert f"lacks tensor {key}." in sentence(formats.load, tmp_path, config)
  write(tmp_path, own | {key: np.concatenate([own[key], own[key][:1]])})
  assert f"tensor {key} has shape" in sentence(formats.load, tmp_path, config)


REFUSED = [
  (
    {"model_type": "dots1"},
    "`model_type` must be one of mimo, deepseek_v3, glm4_moe, qwen3_next, qwen3_5_text, "
    "qwen3_5_moe_text, the families whose MTP layer is read, got 'dots1'.",
  ),
  ({"num_nextn_predict_layers": 2}, f"lacks tensor {SECOND}."),
  ({"num_nextn_predict_layers": 0}, "`num_nextn_predict_layers` must be between 1 and 64, got 0."),
  ({"num_attention_heads": 2}, "`heads` must be the target's, 4, got 2."),
  ({"rope_theta": 1e4}, "`rope_theta` must be the target's, 640000.0, got 10000.0."),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_a_layer_for_another_target_is_refused(tmp_path, change, words):
  write(tmp_path, raw=RAW | change)
  assert words in sentence(formats.load, tmp_path, hf_config.from_json(RAW))


def test_a_layer_more_than_config_json_says_is_refused(tmp_path):
  write(tmp_path, own_of(2))
  words = f"has no place for tensor {SECOND}."
  assert words in sentence(formats.load, tmp_path, hf_config.from_json(RAW))


def test_what_mimo_has_no_place_for_is_not_written(tmp_path):
  model = hf.load(write(tmp_path / "a"))
  loaded = formats.load(tmp_path / "a", model.config)
  for change, words in (
    ({"config": MTPConfig(before_norm=True, modules=2, shares=True)},
     "shares=True: in the format mtp the layers of mimo do not share their norms and projection."),
    ({"config": MTPConfig()}, "before_norm=False: the format mtp has mimo's layer"),
    ({"network": hf_config.from_json(RAW | {"model_type": "qwen3", "attention_bias": False})},
     "`target` must be qwen2 without a sliding window, MiMo's network, or deepseek_v3, glm4_moe, "),
  ):  # fmt: skip
    own = loaded._replace(**change)
    arguments = (tmp_path / "b", "mtp", own, model.config, model.params)
    assert words in sentence(functools.partial(formats.save, base="x"), *arguments)
  assert not (tmp_path / "b").exists()
