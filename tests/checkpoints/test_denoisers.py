"""LLaDA, Dream, SDAR and Fast-dLLM v2 directories of random weights under their real tensor names.

Their logits are compared with numpy, and those of block diffusion with transformers as well.
"""

import json
import pathlib
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import specjax
from specjax.checkpoints import hf
from specjax.cli.main import main
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import MASK, train_words

V, E, L, C, F, B, T = 40, 32, 2, 8, 48, 2, 9
LLADA = {
  "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": E, "n_layers": L,
  "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": F, "mlp_ratio": 4, "vocab_size": V,
  "embedding_size": V, "max_sequence_length": 64, "rope": True, "rope_theta": 500000.0,
  "rope_full_precision": True, "layer_norm_type": "rms", "rms_norm_eps": 1e-5,
  "block_type": "llama", "activation_type": "silu", "include_bias": False,
  "include_qkv_bias": False, "attention_layer_norm": False, "alibi": False,
  "weight_tying": False, "scale_logits": False, "eos_token_id": 2, "pad_token_id": 2,
  "mask_token_id": 39,
}  # fmt: skip
DREAM = {
  "model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": E,
  "num_hidden_layers": L, "num_attention_heads": 4, "num_key_value_heads": 2,
  "intermediate_size": F, "vocab_size": V, "max_position_embeddings": 64, "rope_theta": 1e6,
  "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
  "eos_token_id": 2, "pad_token_id": 2, "mask_token_id": 38,
}  # fmt: skip
# The keys of SDAR-1.7B-Chat and Fast_dLLM_v2_7B, as far as they are read; both have more.
SDAR = {k: v for k, v in DREAM.items() if k != "pad_token_id"} | {
  "model_type": "sdar", "architectures": ["SDARForCausalLM"], "attention_bias": False,
  "head_dim": 8, "block_size": 4, "use_sliding_window": False, "sliding_window": None,
  "max_window_layers": 28, "rope_scaling": None,
}  # fmt: skip
FAST = {k: v for k, v in DREAM.items() if k != "pad_token_id"} | {
  "model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"], "bd_size": 3,
  "use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * L,
}  # fmt: skip
ALL = [LLADA, DREAM, SDAR, FAST]
NAMES = [raw["model_type"] for raw in ALL]
BLOCK = {"sdar": 4, "Fast_dLLM_Qwen": 3}


def tensors_of(family: str) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)

  def normal(*shape):
    return (rng.normal(size=shape) / 4).astype(np.float32)

  def scale(size=E):
    return (1 + rng.normal(size=size) / 8).astype(np.float32)

  if family == "llada":
    top = "model.transformer"
    out = {f"{top}.wte.weight": normal(V, E), f"{top}.ln_f.weight": scale(),
           f"{top}.ff_out.weight": normal(V, E)}  # fmt: skip
    for i in range(L):
      at = f"{top}.blocks.{i}"
      out |= {f"{at}.{n}.weight": scale() for n in ("attn_norm", "ff_norm")}
      out |= {f"{at}.{n}.weight": normal(E, E) for n in ("q_proj", "k_proj", "v_proj", "attn_out")}
      out |= {f"{at}.{n}.weight": normal(F, E) for n in ("ff_proj", "up_proj")}
      out[f"{at}.ff_out.weight"] = normal(E, F)
    return out
  out = {"model.embed_tokens.weight": normal(V, E), "model.norm.weight": scale(),
         "lm_head.weight": normal(V, E)}  # fmt: skip
  for i in range(L):
    at = f"model.layers.{i}"
    out |= {f"{at}.{n}.weight": scale() for n in ("input_layernorm", "post_attention_layernorm")}
    for name, rows in (("q_proj", 4 * C), ("k_proj", 2 * C), ("v_proj", 2 * C)):
      out[f"{at}.self_attn.{name}.weight"] = normal(rows, E)
      if family != "sdar":
        out[f"{at}.self_attn.{name}.bias"] = normal(rows)
    if family == "sdar":
      out |= {f"{at}.self_attn.{n}_norm.weight": scale(C) for n in "qk"}
    out[f"{at}.self_attn.o_proj.weight"] = normal(E, 4 * C)
    out |= {f"{at}.mlp.{n}.weight": normal(F, E) for n in ("gate_proj", "up_proj")}
    out[f"{at}.mlp.down_proj.weight"] = normal(E, F)
  return out


def expected(family: str, t: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
  """Logits [B, T, V] at each token, in float64; nothing is causal but over blocks."""
  t = {k: v.astype(np.float64) for k, v in t.items()}
  llada = family == "llada"
  epsilon, theta, groups = (1e-5, 5e5, 4) if llada else (1e-6, 1e6, 2)
  heads = 4
  block = np.arange(T) // BLOCK.get(family, T)
  sees = block[None] <= block[:, None]

  def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight

  def rotate(x):  # [B, T, heads, C]; the first half of a head turns with its second
    angle = np.arange(T)[:, None] * theta ** -(np.arange(0, C, 2) / C)
    cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
    a, b = x[..., : C // 2], x[..., C // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

  x = t["model.transformer.wte.weight" if llada else "model.embed_tokens.weight"][ids]
  for i in range(L):
    if llada:
      at = f"model.transformer.blocks.{i}."
      names = ("attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj",
               "up_proj", "ff_out")  # fmt: skip
    else:
      at = f"model.layers.{i}."
      names = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
               "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
               "mlp.down_proj")  # fmt: skip
    n1, q, k, v, o, n2, gate, up, down = (at + n for n in names)
    h = norm(x, t[n1 + ".weight"])

    def project(name, count, h=h):
      y = h @ t[name + ".weight"].T + t.get(name + ".bias", 0)
      y = y.reshape(B, T, count, C)
      by = t.get(name.replace("_proj", "_norm") + ".weight")
      return y if by is None else norm(y, by)

    Q, K = rotate(project(q, heads)), rotate(project(k, groups))
    K, W = (np.repeat(y, heads // groups, 2) for y in (K, project(v, groups)))
    score = np.where(sees, np.einsum("bthc,bshc->bhts", Q, K) / np.sqrt(C), -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    mixed = np.einsum("bhts,bshc->bthc", p, W).reshape(B, T, heads * C)
    x = x + mixed @ t[o + ".weight"].T
    h = norm(x, t[n2 + ".weight"])
    z = h @ t[gate + ".weight"].T
    x = x + (z / (1 + np.exp(-z)) * (h @ t[up + ".weight"].T)) @ t[down + ".weight"].T
  last = (
    ("model.transformer.ln_f", "model.transformer.ff_out") if llada else ("model.norm", "lm_head")
  )
  return norm(x, t[last[0] + ".weight"]) @ t[last[1] + ".weight"].T


@pytest.fixture
def write(tmp_path):
  def write(raw, tensors):
    (tmp_path / "config.json").write_text(json.dumps(raw))
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    return str(tmp_path)

  return write


@pytest.mark.parametrize("raw", ALL, ids=NAMES)
def test_logits_are_those_of_the_formula(raw, write):
  family = raw["model_type"]
  tensors = tensors_of(family)
  model = specjax.load(write(raw, tensors))
  ids = np.random.default_rng(1).integers(0, V, (B, T)).astype(np.int32)
  position = jnp.broadcast_to(jnp.arange(T), (B, T))
  seen = jnp.ones((B, T), bool)
  states, _ = model.denoiser.evaluate(model.params, jnp.asarray(ids), position, seen)
  got = model.denoiser.head(model.params, states)
  np.testing.assert_allclose(got, expected(family, tensors, ids), atol=2e-4)
  assert model.denoiser.mask == raw["mask_token_id"] and model.stop == (2,)
  assert model.denoiser.shift == (family in ("Dream", "Fast_dLLM_Qwen"))
  assert model.denoiser.block == BLOCK.get(family)
  named = {"llada": "llada", "Dream": "dream"}.get(family)
  assert model.template == (TEMPLATES[named] if named else None)


@pytest.mark.parametrize("raw", [SDAR, FAST], ids=NAMES[2:])
def test_logits_are_those_of_transformers_with_a_mask(raw, write):
  """Qwen's network with a mask of four axes, which is how these families differ from it."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import transformers

    family = raw["model_type"]
    directory = pathlib.Path(write(raw, tensors_of(family)))
    ours = specjax.load(str(directory))
    qwen = {"sdar": "qwen3", "Fast_dLLM_Qwen": "qwen2"}[family]
    (directory / "config.json").write_text(json.dumps(raw | {"model_type": qwen}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
      directory, dtype=torch.float32, attn_implementation="eager"
    )
    ids = np.random.default_rng(2).integers(0, V, (B, T))
    block = np.arange(T) // BLOCK[family]
    mask = np.where(block[None] <= block[:, None], 0.0, -1e30)
    mask = torch.tensor(np.broadcast_to(mask, (B, 1, T, T)).copy(), dtype=torch.float32)
    with torch.no_grad():
      wanted = theirs(torch.from_numpy(ids), attention_mask=mask).logits.numpy()
  position = jnp.broadcast_to(jnp.arange(T), (B, T))
  tokens, seen = jnp.asarray(ids, jnp.int32), jnp.ones((B, T), bool)
  states, _ = ours.denoiser.evaluate(ours.params, tokens, position, seen)
  np.testing.assert_allclose(ours.denoiser.head(ours.params, states), wanted, atol=5e-5)


def test_a_mask_that_config_json_does_not_name(write, tmp_path):
  """It is the tokenizer's, and else that of the published program."""
  raw = {k: v for k, v in SDAR.items() if k not in ("mask_token_id", "block_size")}
  directory = write(raw, tensors_of("sdar"))
  with pytest.raises(ValueError, match=r"`mask_token_id` must be between 0 and 39, got 151669\."):
    specjax.load(directory)
  words = train_words(["a b c"])
  words.inner.add_special_tokens([MASK])
  words.save(tmp_path / "tokenizer.json")
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": MASK}))
  model = specjax.load(directory)
  assert model.mask == words.id(MASK) and model.denoiser.block == 4


@pytest.mark.parametrize("raw", ALL, ids=NAMES)
def test_what_is_written_is_the_published_layout(raw, write, tmp_path):
  """The same tensors by the same names, and no key of config.json that says something else."""
  tensors = tensors_of(raw["model_type"])
  first = hf.load(write(raw, tensors))
  hf.save(tmp_path / "ours", first.config, first.params, mask=first.mask, shift=first.shift,
          template=first.template, stop=first.stop, dtype=jnp.float32)  # fmt: skip
  written = safetensors.numpy.load_file(tmp_path / "ours" / "model.safetensors")
  assert written.keys() == tensors.keys()
  for name, tensor in tensors.items():
    np.testing.assert_array_equal(written[name], tensor, err_msg=name)
  ours = json.loads((tmp_path / "ours" / "config.json").read_text())
  wanted = raw | {"eos_token_id": [raw["eos_token_id"]]}
  assert {key: ours.get(key, value) for key, value in wanted.items()} == wanted
  if raw is LLADA:  # the defaults of its program are those of another network
    assert wanted.keys() - ours.keys() == {"mlp_ratio"}  # unread beside mlp_hidden_size
  again = hf.load(tmp_path / "ours")
  assert again.config == first.config and again.stop == first.stop
  assert (again.mask, again.shift, again.template) == (first.mask, first.shift, first.template)


@pytest.mark.parametrize("raw", ALL, ids=NAMES)
def test_convert_keeps_the_family(raw, write, tmp_path):
  out = tmp_path / "out"
  assert main(["convert", "--format", "hf", "--model", write(raw, tensors_of(raw["model_type"])),
               "--out", str(out)]) == 0  # fmt: skip
  assert json.loads((out / "config.json").read_text())["model_type"] == raw["model_type"]


def test_a_denoiser_without_a_template_comes_back_without_one(write, tmp_path):
  first = hf.load(write(LLADA, tensors_of("llada")))
  hf.save(tmp_path / "ours", first.config, first.params, mask=first.mask)
  assert hf.load(tmp_path / "ours").template is None


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"block_type": "sequential"}, r"`block_type` must be 'llama', got 'sequential'\."),
    ({"alibi": True}, r"`alibi` must be False, got True\."),
    ({"include_bias": True}, r"`include_bias` must be false: MLPs have no biases, got True\."),
    ({"activation_type": "gelu"}, r"`activation_type` must be 'silu', got 'gelu'\."),
    ({"d_model": None}, "lacks 'd_model'"),
  ],
)
def test_what_llada_may_not_have(change, words, write):
  with pytest.raises(ValueError, match=words):
    specjax.load(write(LLADA | change, tensors_of("llada")))


def test_a_tensor_is_missing(write):
  tensors = tensors_of("llada")
  del tensors["model.transformer.blocks.1.ff_out.weight"]
  with pytest.raises(ValueError, match=r"blocks\.1\.ff_out\.weight"):
    specjax.load(write(LLADA, tensors))


def test_a_causal_model_is_no_denoiser():
  with pytest.raises(
    ValueError,
    match=(r"`model` must be a masked diffusion model, with is_causal.*got 'gsm8k-7m'\."),
  ):
    _ = specjax.load().denoiser
