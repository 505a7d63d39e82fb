"""Heads as others publish them: the tensors by name against NumPy, both ways, and what is refused.

Files are written here with the published names and shapes, small; `head_formulas` reads them.
"""

import dataclasses
import functools
import json
import typing
from typing import Any, NamedTuple

import head_formulas
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from few_bits_writer import torch_file
from head_formulas import PREFIX
from safetensors.numpy import load_file, save_file
from sentences import says

from specjax.base import Features
from specjax.checkpoints import formats
from specjax.checkpoints.heads import LoadedHead, abstract
from specjax.cli.arguments import Convert
from specjax.decoding.decoder import Decoder
from specjax.heads import HEADS, draft_vocabulary, drafting
from specjax.heads.base import Examples
from specjax.heads.dflash import DFlashConfig
from specjax.heads.domino import DominoConfig
from specjax.heads.dspark import DSparkConfig
from specjax.heads.eagle import EagleConfig
from specjax.heads.eagle3 import Eagle3Config
from specjax.heads.hydra import HydraConfig
from specjax.heads.medusa import MedusaConfig
from specjax.heads.mlp_speculator import MLPSpeculatorConfig
from specjax.heads.peagle import PEagleConfig
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.names.build.drafter import make_drafter
from specjax.names.load import Model

V, E, F, W = 16, 12, 20, 6
MODEL = Config(
  vocab_size=V, width=E, layers=8, heads=4, kv_heads=2, head_dim=4, mlp_width=F, max_length=128,
  rope_theta=500000.0, tied=False,
)  # fmt: skip
IDS = np.array([9, 0, 3, 4, 15, 7])  # of the draft vocabulary


@functools.cache
def target_params():
  params = transformer.init(MODEL, jax.random.key(0))
  return jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)


def layer(prefix, heads=4, kv=2, C=4, inputs=E, mlp=F, norms=("post_attention",), bias=False):
  rows = {"q": heads * C, "k": kv * C, "v": kv * C}
  shapes = {f"{prefix}.self_attn.{x}_proj.weight": (n, inputs) for x, n in rows.items()}
  if bias:
    shapes |= {f"{prefix}.self_attn.{x}_proj.bias": (n,) for x, n in rows.items()}
  shapes |= {f"{prefix}.mlp.{x}_proj.weight": (mlp, E) for x in ("gate", "up")}
  shapes |= {f"{prefix}.{x}_layernorm.weight": (E,) for x in norms}
  return shapes | {
    f"{prefix}.self_attn.o_proj.weight": (E, heads * C), f"{prefix}.mlp.down_proj.weight": (E, mlp)
  }  # fmt: skip


def hydra_shapes(blocks: list[int], lm_head: str):
  """Two heads whose blocks have these numbers."""
  shapes = {}
  for h in range(2):
    for i in blocks:
      ins = (h + 2) * E if i == blocks[0] else E
      shapes |= {f"hydra_mlp.{h}.{i}.linear.weight": (E, ins)}
      shapes |= {f"hydra_mlp.{h}.{i}.linear.bias": (E,)}
    shapes[f"hydra_mlp.{h}.{blocks[0]}.res_connection.weight"] = (E, (h + 2) * E)
    shapes[f"hydra_mlp.{h}.{blocks[0]}.res_connection.bias"] = (E,)
    shapes |= {f"{lm_head.format(h)}.weight": (V, E), f"{lm_head.format(h)}.bias": (V,)}
  return shapes


def mlp_shapes(steps: int, inner: int):
  shapes = {}
  for i in range(steps):
    shapes |= {f"speculator.{x}.{i}.weight": (V, inner) for x in ("emb", "head")}
    shapes |= {f"speculator.ln.{i}.{x}": (inner,) for x in ("weight", "bias")}
    shapes[f"speculator.proj.{i}.weight"] = (inner, inner if i else E)
  return shapes


def dflash_shapes(layers: int):
  shapes = {"fc.weight": (E, 3 * E), "hidden_norm.weight": (E,), "norm.weight": (E,)}
  for name in (f"layers.{i}" for i in range(layers)):
    shapes |= layer(name, 3, 1, 4, E, 8, ("post_attention", "input"))
    shapes |= {f"{name}.self_attn.{x}_norm.weight": (4,) for x in "qk"}
  return shapes


class Case(NamedTuple):
  """A published head.

  Attributes:
    form: name of the format.
    file: of the tensors.
    raw: config.json.
    shapes: of all tensors.
    config: what it is read as.
    copies: (name, the tensor that it repeats).
    unused: tensors that a file may lack, and that are not written again.
  """

  form: str
  file: str
  raw: dict[str, Any]
  shapes: dict[str, tuple[int, ...]]
  config: Any
  copies: dict[str, str] = {}  # noqa: RUF012  nobody writes to it
  unused: tuple[str, ...] = ()


HYDRA = {
  "hydra_num_heads": 2, "hydra_num_layers": 3, "hydra_head_arch": "mlp", "grounded_heads": True,
  "hidden_state_offset": 0, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
}  # fmt: skip
LLAMA = {
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": E, "intermediate_size": F, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 4, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
  "tie_word_embeddings": False, "vocab_size": V, "use_cache": True,
}  # fmt: skip
EAGLE = {"embed_tokens.weight": (V, E), "fc.weight": (E, 2 * E)}
WINDOW = {"sliding_window": 3, "use_sliding_window": True, "layer_types": ["sliding_attention"],
          "specjax_depth": 2}  # fmt: skip
# As for Llama 3.1 8B: no rope_theta, which the published code takes for 10000.
EAGLE3 = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "head_dim")} | {
  "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 8, "rms_norm_eps": 1e-6,
  "num_hidden_layers": 40, "draft_vocab_size": W,
}  # fmt: skip
EAGLE3_NORMS = ("post_attention", "input")
EAGLE3_SHAPES = layer("midlayer", 3, 1, 4, 2 * E, 8, EAGLE3_NORMS) | {
  "fc.weight": (E, 3 * E), "norm.weight": (E,), "midlayer.hidden_norm.weight": (E,)
}  # fmt: skip
MLP = {
  "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
  "emb_dim": E, "inner_dim": 8, "n_predict": 2, "vocab_size": V, "n_candidates": 5,
  "top_k_tokens_per_head": [5, 4], "tie_weights": False, "scale_input": True,
}  # fmt: skip
# As for Qwen3 8B, which is read with norms on q and k whatever the target has.
DFLASH = LLAMA | {
  "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_attention_heads": 3,
  "num_key_value_heads": 1, "intermediate_size": 8, "num_hidden_layers": 2, "rope_theta": 1e6,
  "block_size": 4, "dflash_config": {"mask_token_id": 13, "target_layer_ids": [1, 4, 3]},
  "layer_types": ["full_attention"] * 2, "attention_bias": False, "use_sliding_window": False,
  "num_target_layers": 8, "sliding_window": None,
}  # fmt: skip
# As speculators' program writes it: a Qwen3 inside, and layers counted by their inputs.
SPECULATORS_DFLASH = {
  "architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "block_size": 4,
  "mask_token_id": 13, "aux_hidden_state_layer_ids": [2, 5, 4], "draft_vocab_size": W,
  "sample_from_anchor": False, "sliding_window_non_causal": False, "speculators_config": {},
  "transformer_layer_config": {k: v for k, v in DFLASH.items() if k not in (
    "architectures", "block_size", "dflash_config", "num_target_layers")},
}  # fmt: skip
# As DeepSpec's for Qwen3 4B: flat keys, and copies of what the target has.
DSPARK = {k: v for k, v in DFLASH.items() if k != "dflash_config"} | {
  "architectures": ["Qwen3DSparkModel"], "mask_token_id": 13, "target_layer_ids": [1, 4, -1],
  "num_anchors": 512, "markov_rank": 5, "markov_head_type": "vanilla", "dtype": "bfloat16",
  "enable_confidence_head": True, "confidence_head_with_markov": True, "block_size": 3,
}  # fmt: skip
DSPARK_SHAPES = dflash_shapes(2) | {
  "markov_head.markov_w1.weight": (V, 5), "markov_head.markov_w2.weight": (V, 5),
  "confidence_head.proj.weight": (1, E + 5), "confidence_head.proj.bias": (1,),
  "embed_tokens.weight": (V, E), "lm_head.weight": (V, E),
}  # fmt: skip
# As SpecForge saves them.
DOMINO = DFLASH | {
  "architectures": ["DominoDraftModel"],
  "dflash_config": DFLASH["dflash_config"] | {
    "projector_type": "domino", "gru_hidden_dim": 5, "emb_dim": 3, "pure_draft_prefix_len": 1,
    "shift_label": False},
}  # fmt: skip
DOMINO_SHAPES = dflash_shapes(2) | {
  "prefix_gru.weight_ih_l0": (15, E), "prefix_gru.weight_hh_l0": (15, 5),
  "embed_proj.0.weight": (3, E + 5), "embed_proj.2.weight": (V, 3),
}  # fmt: skip
PEAGLE = EAGLE3 | {
  "architectures": ["PEagleDraftModel"], "num_hidden_layers": 2, "num_depths": 4,
  "mask_token_id": 11, "norm_before_residual": True,
}  # fmt: skip
PEAGLE_SHAPES = (
  layer("layers.0", 3, 1, 4, 2 * E, 8, EAGLE3_NORMS)
  | layer("layers.1", 3, 1, 4, E, 8, EAGLE3_NORMS)
  | {"fc.weight": (E, 3 * E), "norm.weight": (E,), "layers.0.hidden_norm.weight": (E,)}
  | {"mask_hidden": (1, 1, 3 * E)}
)
CASES = {
  "hydra": Case(
    "hydra", "hydra_lm_head.safetensors", HYDRA,
    hydra_shapes([0, 1, 2], "hydra_lm_head.{}") | {"input_embed_fn.weight": (V, E)},
    HydraConfig(2, 3),
    {f"hydra_mlp.{h}.2.linear.{x}": f"hydra_mlp.{h}.1.linear.{x}" for h in "01"
     for x in ("weight", "bias")},
    ("input_embed_fn.weight",),
  ),
  "hydra++": Case(
    "hydra", "hydra_lm_head.safetensors",
    HYDRA | {"hydra_num_layers": 4, "hydra_head_arch": "prefix-mlp"},
    hydra_shapes([1, 3, 5, 7], "hydra_lm_head.{}.1")
    | layer(f"{PREFIX}.layers.0", norms=EAGLE3_NORMS) | {f"{PREFIX}.norm.weight": (E,)}
    | {f"{PREFIX}.embed_tokens.weight": (V, E), "input_embed_fn.weight": (V, E)}
    | {f"{PREFIX}.layers.0.self_attn.rotary_emb.inv_freq": (2,)},
    HydraConfig(2, 4, prefix=True),
    {f"hydra_mlp.{h}.{i}.linear.{x}": f"hydra_mlp.{h}.3.linear.{x}" for h in "01" for i in "57"
     for x in ("weight", "bias")},
    (f"{PREFIX}.embed_tokens.weight", "input_embed_fn.weight",
     f"{PREFIX}.layers.0.self_attn.rotary_emb.inv_freq"),
  ),
  "eagle": Case(
    "eagle", "model.safetensors", LLAMA, EAGLE | {"fc.bias": (E,)} | layer("layers.0"),
    EagleConfig(8),
  ),
  "eagle, as for Qwen2": Case(
    "eagle", "model.safetensors",
    LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "qkv_bias": True,
             "bias": False, "intermediate_size": 8, "rope_theta": 1e6},
    EAGLE | layer("layers.0", mlp=8, bias=True), EagleConfig(8, bias=False, mlp_width=8),
  ),
  "eagle3": Case(
    "eagle3", "model.safetensors", EAGLE3,
    EAGLE3_SHAPES | {"lm_head.weight": (W, E), "d2t": (W,), "t2d": (V,)},
    Eagle3Config(8, mlp_width=8),
  ),
  "eagle3, all tokens": Case(
    "eagle3", "model.safetensors", EAGLE3 | {"draft_vocab_size": V},
    EAGLE3_SHAPES | {"lm_head.weight": (V, E), "embed_tokens.weight": (V, E)},
    Eagle3Config(8, mlp_width=8), unused=("embed_tokens.weight",),
  ),
  "eagle, its own embedding": Case(
    "eagle", "model.safetensors", LLAMA, EAGLE | {"fc.bias": (E,)} | layer("layers.0"),
    EagleConfig(8, own_embedding=True),
  ),
  "eagle3.1": Case(
    "eagle3", "model.safetensors",
    EAGLE3 | {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
    EAGLE3_SHAPES | {"lm_head.weight": (W, E), "d2t": (W,), "t2d": (V,)}
    | {f"fc_norm.{i}.weight": (E,) for i in range(3)},
    Eagle3Config(8, mlp_width=8, norm_before_residual=True, fc_norm=True, norm_output=True),
  ),
  "eagle3, one norm, biases, its own embedding": Case(
    "eagle3", "model.safetensors", EAGLE3 | {"norm_before_fc": True, "attention_bias": True},
    EAGLE3_SHAPES | layer("midlayer", 3, 1, 4, 2 * E, 8, EAGLE3_NORMS, bias=True)
    | {"lm_head.weight": (W, E), "d2t": (W,), "t2d": (V,), "input_norm.weight": (3 * E,),
       "embed_tokens.weight": (V, E)},
    Eagle3Config(8, mlp_width=8, attention_bias=True, own_embedding=True, norm_before_fc=True),
  ),
  "eagle, a sliding window": Case(
    "eagle", "model.safetensors", LLAMA | WINDOW, EAGLE | {"fc.bias": (E,)} | layer("layers.0"),
    EagleConfig(2, window=3),
  ),
  "eagle3, a sliding window": Case(
    "eagle3", "model.safetensors", EAGLE3 | WINDOW,
    EAGLE3_SHAPES | {"lm_head.weight": (W, E), "d2t": (W,), "t2d": (V,)},
    Eagle3Config(2, mlp_width=8, window=3),
  ),
  "mlp_speculator": Case(
    "mlp_speculator", "model.safetensors", MLP, mlp_shapes(2, 8),
    MLPSpeculatorConfig(2, 8, tied=False, scale_input=True),
  ),
  "mlp_speculator, tied": Case(
    "mlp_speculator", "model.safetensors",
    MLP | {"n_predict": 3, "inner_dim": 0, "tie_weights": True, "scale_input": False},
    mlp_shapes(3, E), MLPSpeculatorConfig(3, 0),
    {f"speculator.{x}.{i}.{y}": f"speculator.{x}.0.{y}" for i in "12"
     for x, y in (("emb", "weight"), ("head", "weight"), ("ln", "weight"), ("ln", "bias"))}
    | {"speculator.proj.2.weight": "speculator.proj.1.weight"},
  ),
  "dflash": Case(
    "dflash", "model.safetensors", DFLASH, dflash_shapes(2),
    DFlashConfig(3, 2, (2, 5, 4), mlp_width=8, mask_token=13),
  ),
  "dspark": Case(
    "dspark", "model.safetensors", DSPARK, DSPARK_SHAPES,
    DSparkConfig(3, 2, (2, 5, 0), mlp_width=8, mask_token=13, rank=5),
  ),
  "domino": Case(
    "domino", "model.safetensors", DOMINO, DOMINO_SHAPES,
    DominoConfig(3, 2, (2, 5, 4), mlp_width=8, mask_token=13, state=5, rank=3, plain=1),
  ),
  "peagle": Case(
    "peagle", "model.safetensors", PEAGLE,
    PEAGLE_SHAPES | {"lm_head.weight": (W, E), "d2t": (W,), "t2d": (V,)},
    PEagleConfig(4, 2, 11, mlp_width=8, norm_before_residual=True),
  ),
  "peagle, window": Case(
    "peagle", "model.safetensors",
    PEAGLE | {k: v for k, v in WINDOW.items() if k != "specjax_depth"}
    | {"layer_types": ["sliding_attention"] * 2},
    PEAGLE_SHAPES | {"lm_head.weight": (W, E), "d2t": (W,), "t2d": (V,)},
    PEagleConfig(4, 2, 11, mlp_width=8, norm_before_residual=True, window=3),
  ),
  "peagle, all tokens, its own embedding": Case(
    "peagle", "model.safetensors",
    PEAGLE | {"draft_vocab_size": V, "num_depths": 8, "norm_before_residual": False},
    PEAGLE_SHAPES | {"lm_head.weight": (V, E), "embed_tokens.weight": (V, E)},
    PEagleConfig(8, 2, 11, mlp_width=8, own_embedding=True),
  ),
}  # fmt: skip
HIDDEN_LAYERS = {"eagle3": (2, 4, 5), "peagle": (2, 4, 5), "dflash": (2, 5, 4),
                 "dspark": (2, 5, 0), "domino": (2, 5, 4)}  # fmt: skip


@functools.cache
def tensors_of(name: str) -> dict[str, np.ndarray]:
  case, rng = CASES[name], np.random.default_rng(0)
  tensors = {k: (rng.normal(size=x) / 3).astype(np.float32) for k, x in case.shapes.items()}
  tensors |= {k: x + 1 for k, x in tensors.items() if "norm" in k or ".ln." in k}
  tensors |= {k: tensors[v] for k, v in case.copies.items()}
  if "d2t" in tensors:
    tensors |= {"d2t": IDS - np.arange(W), "t2d": np.isin(np.arange(V), IDS)}
  if "embed_tokens.weight" in tensors and not getattr(case.config, "own_embedding", False):
    tensors["embed_tokens.weight"] = np.asarray(target_params()["params"]["embedding"])
  if case.form == "dspark":
    tensors["lm_head.weight"] = np.asarray(target_params()["params"]["lm_head"])
  return tensors


def write(directory, name: str, tensors=None, raw=None):
  case = CASES[name]
  directory.mkdir(exist_ok=True)
  save_file(tensors_of(name) if tensors is None else tensors, directory / case.file)
  (directory / "config.json").write_text(json.dumps(case.raw if raw is None else raw))
  return directory


def load(directory, dtype=jnp.float32) -> LoadedHead:
  return formats.load(directory, MODEL, dtype, target_params=target_params())


def save(directory, loaded: LoadedHead, form: str):
  formats.save(directory, form, loaded, MODEL, target_params(), base="a target", dtype=jnp.float32)
  return directory


def sentence(call, *arguments) -> str:
  """The one sentence that a refusal is."""
  with pytest.raises(ValueError) as refusal:
    call(*arguments)
  words = str(refusal.value)
  assert words.endswith(".") and "\n" not in words
  return words


def same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)
  assert jax.tree.map(lambda x: x.dtype, a) == jax.tree.map(lambda x: x.dtype, b)


@pytest.mark.parametrize("name", CASES)
def test_published_tensors_are_the_published_formula(tmp_path, name):
  case, rng = CASES[name], np.random.default_rng(1)
  loaded = load(write(tmp_path, name))
  assert loaded.config == case.config and (loaded.choices, loaded.hit_rates) == ((), None)
  assert loaded.head.hidden_layers == HIDDEN_LAYERS.get(case.form, ())
  T, at = 9, 4
  tokens = rng.integers(0, V, (1, T)).astype(np.int32)
  hidden = rng.normal(size=(1, T, E)).astype(np.float32)
  hidden_layers = tuple(
    rng.normal(size=(1, T, E)).astype(np.float32) for _ in loaded.head.hidden_layers
  )
  position, segment = np.arange(T, dtype=np.int32)[None], np.zeros((1, T), np.int32)

  @jax.jit
  def run(params, target):
    examples = Examples(
      tokens, position, segment, Features(hidden, hidden_layers), jnp.array([[at]])
    )
    states = drafting.unroll(loaded.head, params, target, examples)
    return [loaded.head.read(params, target, x, d)[0, 0] for d, x in enumerate(states, 1)]

  got = run(loaded.params, target_params())
  t, target = jax.tree.map(np.float64, (tensors_of(name), target_params()["params"]))
  formula = getattr(head_formulas, f"{case.form}_logits")
  want = list(formula(t, case.raw, target, hidden[0], [x[0] for x in hidden_layers], tokens[0], at))
  assert len(want) >= 2
  for x, y in zip(got, want, strict=case.form not in ("eagle", "eagle3")):
    np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)
    assert np.std(y) > 0.1


@pytest.mark.parametrize("name", CASES)
def test_loaded_then_saved_is_the_file(tmp_path, name):
  case, before = CASES[name], tensors_of(name)
  loaded = load(write(tmp_path / "a", name))
  after = load_file(save(tmp_path / "b", loaded, case.form) / case.file)
  assert after.keys() == before.keys() - set(case.unused)
  for k, x in after.items():
    assert x.dtype == before[k].dtype
    np.testing.assert_array_equal(x, before[k], k)
  raw = json.loads((tmp_path / "b" / "config.json").read_text())
  said = {k: v for k, v in case.raw.items() if k in raw}
  said.pop("num_hidden_layers", None)  # EAGLE-3's lie is not repeated
  assert len(said) > 5 and "base_model_name_or_path" in raw
  for k in said.keys() - {"architectures", "model_type", "base_model_name_or_path",
                          "top_k_tokens_per_head"}:  # fmt: skip
    assert raw[k] == said[k], k
  again = load(tmp_path / "b")
  assert (again.config, again.network) == (loaded.config, loaded.network)


def made(name: str, config, words=None, model=MODEL) -> LoadedHead:
  """A head of our own, with random weights."""
  head, rng = HEADS[name][0](target(model), config), np.random.default_rng(2)
  shapes = abstract(head, model, None if words is None else len(words))
  params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)
  if words is not None:
    params["vocabulary"] = jnp.asarray(words, jnp.int32)
  return LoadedHead(head, params, ((0,), (0, 0)), np.array([[0.5, 0.25]]), config, model)


NORMED = dataclasses.replace(MODEL, qk_norm=True)
OWN = {
  "medusa": ("medusa", MedusaConfig(2)),
  "hydra": ("hydra", HydraConfig(3)),
  "hydra, untied": ("hydra", HydraConfig(2, blocks=2, tied_blocks=False)),
  "hydra++": ("hydra", HydraConfig(2, blocks=3, prefix=True)),
  "eagle": ("eagle", EagleConfig(3, bias=False, mlp_width=8)),
  "eagle3": ("eagle3", Eagle3Config(2), IDS),
  "eagle3, all tokens, other hidden_layers": (
    "eagle3",
    Eagle3Config(3, hidden_layers=(8, 0), mlp_width=8),
  ),
  "mlp_speculator": ("mlp_speculator", MLPSpeculatorConfig(1)),
  "mlp_speculator, tied": ("mlp_speculator", MLPSpeculatorConfig(4, 8, scale_input=True)),
  "dflash": ("dflash", DFlashConfig(2, 3, (7, 1), mask_token=0), None, NORMED),
  "peagle": ("peagle", PEagleConfig(3, 3, 5), IDS),
  "peagle, one layer, other hidden_layers": ("peagle", PEagleConfig(1, 1, 0, (8, 0), mlp_width=8)),
}


@pytest.mark.parametrize("name", OWN)
def test_saved_then_loaded_is_the_head(tmp_path, name):
  own = made(*OWN[name])
  form, config, *_ = OWN[name]
  back = load(save(tmp_path, own, form))
  same(back.params, own.params)
  assert back.network == own.network and back.head.hidden_layers == own.head.hidden_layers
  assert back.head.name == form and back.head.depth == own.head.depth
  if name != "hydra, untied":  # with two blocks there is nothing to tie
    assert back.config == config
  half = load(tmp_path, jnp.bfloat16).params
  assert {x.dtype for x in jax.tree.leaves(half["params"])} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("name", ["hydra", "hydra++", "eagle", "mlp_speculator, tied"])
def test_published_heads_become_ours(tmp_path, name):
  loaded = load(write(tmp_path / "a", name))
  back = load(save(tmp_path / "b", loaded, "specjax"))
  same(back.params, loaded.params)
  assert (back.config, back.choices, back.hit_rates) == (loaded.config, (), None)
  assert back.head is loaded.head


def test_a_layer_unlike_the_target_cannot_become_ours(tmp_path):
  loaded = load(write(tmp_path / "a", "eagle3"))
  different = {"heads": 3, "kv_heads": 1, "rope_theta": 10000.0, "norm_epsilon": 1e-6}
  assert loaded.network == dataclasses.replace(MODEL, **different)
  words = sentence(save, tmp_path / "b", loaded, "specjax")
  assert "heads=3 of the head's layer is not the target's, 4" in words
  assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.full(but=["eagle3"])
@pytest.mark.parametrize(
  "name", ["hydra++", "eagle", "eagle3", "mlp_speculator, tied", "dflash", "peagle"]
)
def test_loaded_heads_change_no_token(tmp_path, name):
  model = Model("tiny", MODEL, target_params(), None, (), (), None)
  prompts = [[1, 2, 3, 4, 5, 1, 2], [7]]
  loaded = load(write(tmp_path, name))
  drafter = drafting.drafter(loaded.head, ((0,), (1,), (0, 0)))
  drafted = Decoder(model, (drafter, loaded.params), batch=2)(prompts, 20)
  plain = Decoder(model, batch=2)(prompts, 20)
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]
  assert {r.method for r in drafted} == {loaded.head.name}


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_counts(tmp_path, name):
  """One tensor missing, extra or misshapen at a time; copies may be missing but not differ."""
  case, tensors = CASES[name], tensors_of(name)
  free = {*case.copies, *case.unused, "embed_tokens.weight"}
  free |= {"lm_head.weight"} if case.form == "dspark" else set()  # a copy of the target's
  for key, x in tensors.items():
    without = {k: v for k, v in tensors.items() if k != key}
    write(tmp_path, name, without)
    if key not in free:
      assert f"lacks tensor {key}." in sentence(formats.load, tmp_path, MODEL)
    if "inv_freq" in key:
      continue
    write(tmp_path, name, without | {key: np.concatenate([x, x[:1]])})
    assert f"tensor {key} has shape" in sentence(formats.load, tmp_path, MODEL)
    if key in case.copies:
      write(tmp_path, name, without | {key: x + 1})
      words = sentence(formats.load, tmp_path, MODEL)
      assert f"tensors {key} and {case.copies[key]} differ" in words
  write(tmp_path, name, {k: v for k, v in tensors.items() if k not in free})
  lean = load(tmp_path)
  for extra in ("more.weight", "layers.2.mlp.up_proj.weight", "hydra_mlp.2.0.linear.weight"):
    write(tmp_path, name, tensors | {extra: np.zeros((2, 2), np.float32)})
    assert f"has no place for tensor {extra}." in sentence(formats.load, tmp_path, MODEL)
  key = next(k for k in tensors if k not in free)
  write(tmp_path, name, tensors | {key: tensors[key].astype(np.int32)})
  assert f"the dtype of tensor {key} must be a float, got int32." in sentence(
    formats.load, tmp_path, MODEL
  )
  if not getattr(case.config, "own_embedding", False):
    same(lean.params, load(write(tmp_path, name)).params)


ABSENT = object()
CONFIGS = [
  *(("hydra", {key: ABSENT}, f"config.json lacks {key}: these are no Hydra heads")
    for key in HYDRA if key not in ("hydra_num_heads", "base_model_name_or_path")),
  ("hydra", {"hydra_head_arch": "cross-attn"},
   "`hydra_head_arch` must be mlp or prefix-mlp, got 'cross-attn'."),
  ("hydra", {"grounded_heads": False}, "`grounded_heads` must be True, got False."),
  ("hydra", {"hidden_state_offset": 1}, "`hidden_state_offset` must be 0, got 1."),
  ("eagle", {"architectures": ["MedusaModel"]},
   "`architectures` must be LlamaForCausalLM or Qwen2ForCausalLM, got ['MedusaModel']."),
  ("eagle", {"hidden_size": 16}, "`hidden_size` must be the target's, 12, got 16."),
  ("eagle", {"vocab_size": 17}, "`vocab_size` must be the target's, 16, got 17."),
  ("eagle", {"bias": False}, "has no place for tensor fc.bias"),
  ("eagle", {"qkv_bias": True}, "lacks tensor layers.0.self_attn.k_proj.bias"),
  ("eagle", {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
   "`rope_type` must be one of default, linear, yarn, llama3, got 'dynamic'."),
  ("eagle", {"num_hidden_layers": 2}, "is of no known format: specjax, medusa, "),
  ("eagle3", {"architectures": ["PEagleDraftModel"]}, "names no mask: it lacks mask_token_id and"),
  ("eagle3", {"architectures": ["EdsdDraftModel"]},
   "`architectures` must be LlamaForCausalLMEagle3 or .. got ['EdsdDraftModel']."),
  ("eagle3", {"model_type": ABSENT},
   "`model_type` must be one of llama, mistral, qwen2, qwen3 .. got None."),
  ("eagle3", {"norm_before_residual": 3}, "`norm_before_residual` must be true or false, got 3."),
  ("eagle3", {"fc_norm": True}, "lacks tensor fc_norm.0.weight"),
  ("eagle3", {"target_hidden_size": 4096},
   "`target_hidden_size` must be the target's width, 12, got 4096."),
  ("eagle3", {"draft_vocab_size": 5}, "tensor lm_head.weight has shape (6, 12), expected (5, 12)"),
  ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 8]}},
   "`hidden_layers` must be between 0 and 8, the target's layers, got (1, 2, 9)."),
  *(("mlp_speculator", {key: ABSENT}, f"config.json lacks {key}: this is no MLPSpeculator")
    for key in ("n_predict", "emb_dim", "inner_dim", "vocab_size")),
  ("mlp_speculator", {"architectures": "ArcticLSTMSpeculatorPreTrainedModel"},
   "`architectures` must be MLPSpeculatorPreTrainedModel .. got "
   "ArcticLSTMSpeculatorPreTrainedModel."),
  ("mlp_speculator", {"emb_dim": 16}, "`emb_dim` must be the target's, 12, got 16."),
  *((name, {"new_key": 3},
   "`new_key` must be left out, as it is not read and may change the output, got 3.")
    for name in ("hydra", "eagle", "eagle3", "mlp_speculator", "dflash", "peagle")),
  *((name, {"quantization_config": {"quant_method": "awq"}}, "quantization_config says quant_method"
     "='awq'") for name in ("hydra", "eagle3", "dflash")),
  ("eagle", {"attention_bias": True},
   "`attention_bias` must be false, for nothing else is read, got True."),
  ("eagle3", {"eagle_config": {"use_mtp_layernorm": True}},
   "`use_mtp_layernorm` must be false, for nothing else is read, got True."),
  ("eagle3", {"eagle_aux_hidden_state_layer_ids": [2, 4, 5],
              "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}},
   "`eagle_aux_hidden_state_layer_ids` must be the same inside .. got (2, 4, 5) and (2, 4, 5)."),
  ("eagle3", {"transformer_layer_config": {"rms_norm_eps": 1e-5}},
   "`rms_norm_eps` must be the same inside and outside of .. got 1e-05 and 1e-06."),
  *((name, change, words) for name in ("eagle", "eagle3", "peagle", "dflash") for change, words in (
    ({"layer_types": ["full_attention"], "use_sliding_window": True, "sliding_window": 64},
     "`use_sliding_window` must be false, as layer_types has it, got True."),
    ({"layer_types": ["sliding_attention"], "use_sliding_window": False, "sliding_window": 64},
     "`use_sliding_window` must be true, as layer_types has it, got False."),
    ({"layer_types": ["sliding_attention"], "use_sliding_window": None, "sliding_window": None},
     "lacks 'sliding_window', which its layers have"),
    ({"layer_types": ["chunked_attention"]},
     "`layer_types` must be full_attention in all layers, or .. got ['chunked_attention']."),
    ({"layer_types": None, "use_sliding_window": True, "sliding_window": 64,
      "max_window_layers": 28},
       "`max_window_layers` must be 0 without layer_types, for all .. got 28."),
  )),
  ("eagle3", {"sliding_window": 64},
   "`sliding_window` must be a window beside use_sliding_window .. got 64."),
  ("eagle3", WINDOW | {"specjax_depth": 3},
   "`window` must be between 4 and 2147483647 (more than the depth), got 3."),
  ("dflash", {"layer_types": None, "use_sliding_window": True, "sliding_window": 64},
   "`sliding_window` must be null, for the layers of this format have full attention, got 64."),
  ("dflash", {"num_target_layers": 36}, "`num_target_layers` must be 8, the target's, got 36."),
  ("dflash", {"dflash_config": DFLASH["dflash_config"] | {"causal": True}},
   "`causal` must be false, for nothing else is read, got True."),
  ("peagle", {"ptd_token_id": 12},
   "must name one mask by mask_token_id, ptd_token_id, pard_token, got [11, 12]."),
  ("dflash", {"architectures": ["DFlash2DraftModel"]},
   "`architectures` must be DFlashDraftModel or DFlashSpeculator, got "
   "['DFlash2DraftModel']."),
  ("dflash", {"dflash_config": ABSENT}, "`dflash_config` must be an object, got None."),
  ("dflash", {"dflash_config": [13]}, "`dflash_config` must be an object, got [13]."),
  ("dflash", {"dflash_config": {"mask_token_id": 13}}, "dflash_config lacks 'target_layer_ids'"),
  ("dflash", {"dflash_config": {"mask_token_id": 99, "target_layer_ids": [1]}},
   "`mask_token` must be between 0 and 15 (the target's tokens), got 99."),
  ("dflash", {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [7]}},
   "`target_layer_ids` must be between 0 and 6 (not the last layer's output), got 7."),
  ("dflash", {"dflash_config": DFLASH["dflash_config"] | {"output_multiplier": 0.2}},
   "`output_multiplier` must be 1, for nothing else is read, got 0.2."),
  ("dflash", {"block_size": ABSENT}, "dflash_config lacks 'block_size'"),
  ("dflash", {"block_size": 1}, "`block_size` must be between 2 and 65, got 1."),
  ("dflash", {"layer_types": ["sliding_attention", "full_attention"]},
   "`layer_types` must be full_attention in all layers, or .. got ['sliding_attention', "
   "'full_attention']."),
  ("dflash", {"is_causal": True}, "`is_causal` must be false, for nothing else is read, got True."),
  ("dflash", {"num_hidden_layers": 3}, "lacks tensor layers.2."),
  ("peagle", {"architectures": ["LlamaForCausalLM"]},
   "`architectures` must be PEagleDraftModel or .. got ['LlamaForCausalLM']."),
  ("peagle", {"mask_token_id": None}, "config.json names no mask: it lacks mask_token_id and"),
  ("peagle", {"mask_token_id": 99},
   "`mask_token` must be between 0 and 15 (the target's), got 99."),
  ("peagle", {"fc_norm": True}, "`fc_norm` must be false in the format peagle, got True."),
  ("peagle", {"num_depths": ABSENT, "speculators_config": {}}, "an object with a list of proposal"),
  ("peagle", {"speculators_model_type": "unheard-of"}, "is of no known format"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "words"), CONFIGS)
def test_a_config_that_does_not_fit_is_named(tmp_path, name, change, words):
  raw = {k: v for k, v in (CASES[name].raw | change).items() if v is not ABSENT}
  assert says(sentence(formats.load, write(tmp_path, name, raw=raw), MODEL), words)


# What programs that train heads write beside what is read, and the files of targets, repeated.
HARMLESS = {
  "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "attention_dropout": 0.0,
  "initializer_range": 0.02, "max_position_embeddings": 2048, "pretraining_tp": 1,
  "rope_scaling": None, "torch_dtype": "bfloat16", "dtype": "bfloat16", "use_cache": True,
  "transformers_version": "4.51.0", "tie_word_embeddings": True, "target_model_type": "llama",
  "auto_map": {"AutoModel": "x.Y"}, "_name_or_path": "x", "mlp_bias": False,
  "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip


@pytest.mark.parametrize(
  ("name", "more"),
  [
    *((name, {}) for name in CASES if "window" not in name and name != "hydra++"),
    ("eagle3", {"eagle_config": {"use_aux_hidden_state": True, "use_last_layernorm": True}}),
    ("eagle3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("eagle3", {"rope_scaling": {"mrope_section": [24, 20, 20], "mrope_interleaved": True}}),
    ("eagle", {"model_type": "qwen2", "use_sliding_window": None}),
  ],
)
def test_harmless_keys_change_nothing(tmp_path, name, more):
  plain = load(write(tmp_path / "a", name))
  found = load(write(tmp_path / "b", name, raw=HARMLESS | CASES[name].raw | more))
  assert (found.config, found.network) == (plain.config, plain.network)


@pytest.mark.parametrize("family", ["mistral", "llama"])
def test_a_window_alone_is_mistrals(tmp_path, family):
  raw = LLAMA | {"model_type": family, "sliding_window": 64, "use_sliding_window": None}
  if family == "mistral":
    assert load(write(tmp_path, "eagle", raw=raw)).config.window == 64
  else:
    assert says(
      sentence(load, write(tmp_path, "eagle", raw=raw)),
      "`sliding_window` must be a window beside use_sliding_window .. got 64.",
    )


@pytest.mark.parametrize("ids", [[2, 4, 5], [1, 3, 7]])
@pytest.mark.parametrize("nested", [False, True], ids=["inputs", "outputs"])
def test_the_layers_may_be_told(tmp_path, ids, nested):
  raw = {"eagle_aux_hidden_state_layer_ids": [i - nested for i in ids]}
  raw = EAGLE3 | ({"eagle_config": raw} if nested else raw)
  assert load(write(tmp_path, "eagle3", raw=raw)).head.hidden_layers == tuple(ids)


def test_the_format_of_speculators(tmp_path):
  """Another name of the layer, and a config.json in two parts."""
  plain = load(write(tmp_path / "a", "eagle3.1"))
  tensors = {k.replace("midlayer.", "layers.0."): x for k, x in tensors_of("eagle3.1").items()}
  case = CASES["eagle3.1"]
  outer = {k: v for k, v in case.raw.items() if k.startswith(("norm_", "fc_", "draft_"))}
  raw = outer | {
    "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
    "speculators_version": "0.4", "target_hidden_size": E, "model_type": "speculator_model",
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "transformer_layer_config": {k: v for k, v in case.raw.items() if k not in outer},
  }  # fmt: skip
  found = load(write(tmp_path / "b", "eagle3.1", tensors, raw))
  same(found.params, plain.params)
  assert (found.config, found.network, found.tree) == (plain.config, plain.network, plain.tree)
  raw["speculators_model_type"] = "peagle"
  words = sentence(load, write(tmp_path / "c", "eagle3.1", tensors, raw))
  assert says(words, "`architectures` must be PEagleDraftModel or .. got ['Eagle3Speculator'].")


@pytest.mark.parametrize("words", [W, V])
def test_dflash_in_the_format_of_speculators(tmp_path, words):
  """Draft tokens, and what its program copies from the target, beside z-lab's tensors."""
  plain = load(write(tmp_path / "a", "dflash"))
  frozen = {"lm_head.weight": np.zeros((words, E), np.float32),
            "embed_tokens.weight": np.zeros((V, E), np.float32)}  # fmt: skip
  tables = {"d2t": IDS - np.arange(W), "t2d": np.isin(np.arange(V), IDS)} if words == W else {}
  raw = SPECULATORS_DFLASH | {"draft_vocab_size": words}
  for i, more in enumerate([frozen, {}]):
    tensors = tensors_of("dflash") | tables | more
    found = load(write(tmp_path / f"b{i}", "dflash", tensors, raw))
    same(found.params["params"], plain.params["params"])
    assert (found.config, found.network) == (plain.config, plain.network)
    ids = draft_vocabulary.ids(found.params)
    np.testing.assert_array_equal(np.arange(V) if ids is None else ids, IDS if tables else range(V))


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"transformer_layer_config": None}, "`transformer_layer_config` must be an object, got None."),
    (
      {"projector_type": "domino"},
      "`projector_type` must be \"dflash\", for nothing else is read, got 'domino'.",
    ),
    (
      {"aux_hidden_state_layer_ids": [2, 8]},
      "`aux_hidden_state_layer_ids` must be between 0 and 7 (not the last layer's output), got 8.",
    ),
    ({"mask_token_id": None}, "lacks 'mask_token_id'"),
    ({"draft_vocab_size": 5}, "tensor d2t has shape (6,), expected (5,)"),
  ],
)
def test_speculators_dflash_that_does_not_fit_is_named(tmp_path, change, words):
  tables = {"d2t": IDS - np.arange(W), "t2d": np.isin(np.arange(V), IDS)}
  tensors, raw = tensors_of("dflash") | tables, SPECULATORS_DFLASH | change
  assert says(sentence(formats.load, write(tmp_path, "dflash", tensors, raw), MODEL), words)


def test_heads_whose_root_guesses_in_other_formats(tmp_path):
  """DeepSpec's DFlash, of rank 0, and speculators' and SpecForge's: the same tensors."""
  of_bigram = {k for k in DSPARK_SHAPES if k.startswith(("markov", "confidence"))}
  tensors = tensors_of("dspark")
  bare = {k: x for k, x in tensors.items() if k not in of_bigram}
  whole = load(write(tmp_path / "a", "dspark"))
  shape = DFlashConfig(3, 2, (2, 5, 0), mlp_width=8, mask_token=13, from_root=True)
  flat = DSPARK | {"markov_rank": 0, "enable_confidence_head": False}
  for key in ("markov_head_type", "confidence_head_with_markov"):
    del flat[key]
  nested = SPECULATORS_DFLASH | {"block_size": 3, "sample_from_anchor": True, "draft_vocab_size": V,
                                 "aux_hidden_state_layer_ids": [2, 5, 0]}  # fmt: skip
  bigram = nested | {
    "architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark", "markov_rank": 5,
    "markov_head_type": "vanilla", "enable_confidence_head": True, "topk_context": 0,
    "confidence_head_with_markov": True,
  }  # fmt: skip
  inner = DFLASH["dflash_config"] | {"projector_type": "dspark", "attention_mode": "gqa"}
  more = {k: bigram[k] for k in ("markov_rank", "markov_head_type", "confidence_head_with_markov")}
  forged = DFLASH | {"architectures": ["DSparkDraftModel"], "block_size": 3, "dflash_config": inner}
  sure = forged | {"dflash_config": inner | more | {"confidence_head_alpha": 1.0}}
  ends, other = ("embed_tokens.weight", "lm_head.weight"), {"hidden_layers": (2, 5, 4)}
  cases = {
    "b": (bare, flat, shape),
    "c": (bare, nested, shape),
    "d": (tensors, bigram, whole.config),
    "f": (bare, forged, dataclasses.replace(shape, **other)),
    "g": ({k: x for k, x in tensors.items() if k not in ends}, sure,
          dataclasses.replace(whole.config, **other)),
  }  # fmt: skip
  for name, (stored, raw, config) in cases.items():
    found = load(write(tmp_path / name, "dspark", stored, raw))
    assert (found.config, found.network) == (config, whole.network)
    own = whole.params["params"]
    same(found.params["params"], {k: own[k] for k in found.params["params"]})
  again = load(save(tmp_path / "h", found, "specforge"))
  assert (again.config, again.network) == (found.config, found.network)
  same(again.params, found.params)
  with pytest.raises(ValueError, match="`from_root` must be True for the format specforge, got F"):
    save(tmp_path / "i", found._replace(config=dataclasses.replace(config, from_root=False)),
         "specforge")  # fmt: skip
  masked = load(write(tmp_path / "e", "dspark", tensors, bigram | {"sample_from_anchor": False}))
  assert masked.config == dataclasses.replace(whole.config, depth=2, from_root=False)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"markov_head_type": "gated"}, '`markov_head_type` must be "vanilla", for nothing else'),
    ({"markov_rank": 0}, "markov_rank` must be 1 or more beside a confidence, got 0."),
    ({"markov_rank": 4}, "tensor markov_head.markov_w1.weight has shape (16, 5), expected (16, 4)"),
    ({"target_layer_ids": [7]}, "must be between -1 and 6 (not the last layer's output), got 7."),
    ({"num_target_layers": 36}, "`num_target_layers` must be 8, the target's, got 36."),
    ({"gru_hidden_dim": 4}, "gru_hidden_dim"),
    (
      {"layer_types": None, "use_sliding_window": True, "sliding_window": 8},
      "`sliding_window` must be null, for the layers of this format have full attention, got 8.",
    ),
  ],
)
def test_dspark_that_does_not_fit_is_named(tmp_path, change, words):
  path = write(tmp_path, "dspark", tensors_of("dspark"), DSPARK | change)
  assert words in sentence(formats.load, path, MODEL)


def test_peagle_in_the_format_of_speculators(tmp_path):
  """A config.json in two parts, which says the depth as the tokens of a proposal method."""
  plain = load(write(tmp_path / "a", "peagle"))
  outer = {"norm_before_residual", "draft_vocab_size", "mask_token_id"}
  methods = [{"proposal_type": "greedy", "speculative_tokens": 4}]
  raw = {k: PEAGLE[k] for k in outer} | {
    "architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle",
    "speculators_config": {"algorithm": "peagle", "proposal_methods": methods},
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "transformer_layer_config": {k: v for k, v in PEAGLE.items()
                                 if k not in {*outer, "num_depths", "architectures"}},
  }  # fmt: skip
  found = load(write(tmp_path / "b", "peagle", raw=raw))
  same(found.params, plain.params)
  assert (found.config, found.network) == (plain.config, plain.network)
  flat = {k: v for k, v in PEAGLE.items() if k != "mask_token_id"} | {"ptd_token_id": 11}
  assert load(write(tmp_path / "c", "peagle", raw=flat)).config == plain.config


def test_an_embedding_of_its_own_is_kept(tmp_path):
  """Without the target's weights it cannot be told apart, and stays."""
  assert formats.load(write(tmp_path, "eagle"), MODEL).config.own_embedding
  assert not load(tmp_path).config.own_embedding
  near = tensors_of("eagle") | {
    "embed_tokens.weight": np.asarray(target_params()["params"]["embedding"]).astype(np.float16)
  }
  assert not load(write(tmp_path, "eagle", near)).config.own_embedding


def test_a_published_head_drafts_the_published_tree(tmp_path):
  model = Model("m", MODEL, target_params(), None, (), (), None)
  path = write(tmp_path, "eagle3")
  for name, tree in (
    (f"eagle3[{path}]", (60, 8)), (f"eagle3-8[{path}]", (8, 7)), (f"eagle3-16[{path}]", (16, 8)),
    (f"eagle3[{path}]/dynamic-60,depth=8,beam=10", (60, 8)), (f"eagle3[{path}]/static-1-1", (3, 2)),
  ):  # fmt: skip
    drafter = make_drafter(model, name)[0]
    assert (drafter.nodes, drafter.depth) == tree
  with pytest.raises(ValueError, match="has no pseudo rows"):
    make_drafter(model, f"eagle3-8[{path}]/rows-8")


def test_a_draft_vocabulary_that_contradicts_itself(tmp_path):
  loaded = load(write(tmp_path, "eagle3"))
  np.testing.assert_array_equal(loaded.params["vocabulary"], IDS)
  tensors = tensors_of("eagle3")
  for change in (
    {"t2d": np.isin(np.arange(V), IDS + 1)},
    {"d2t": tensors["d2t"] + 1},
    {"d2t": np.zeros(W, np.int64)},
    {"d2t": np.where(np.arange(W) == 1, 9 - 1, tensors["d2t"])},  # 9 twice
    {"d2t": np.where(np.arange(W) == 1, V - 1, tensors["d2t"])},  # past the end
  ):
    words = sentence(load, write(tmp_path, "eagle3", tensors | change))
    assert "d2t and t2d name different tokens" in words
  words = sentence(load, write(tmp_path, "eagle3", tensors | {"d2t": np.ones(W)}))
  assert "d2t must hold numbers" in words

  name = "eagle3, all tokens"
  tables = {"d2t": np.zeros(V, np.int64), "t2d": np.ones(V, bool)}
  loaded = load(write(tmp_path, name, tensors_of(name) | tables))
  assert "vocabulary" not in loaded.params
  for change in ({"d2t": np.eye(V, dtype=np.int64)[0]}, {"t2d": np.arange(V) > 0}):
    words = sentence(formats.load, write(tmp_path, name, tensors_of(name) | tables | change), MODEL)
    assert "d2t and t2d leave tokens out" in words


REFUSED = [
  ("hydra", HydraConfig(2, shared=True), None, "has a vocabulary matrix for every head"),
  ("hydra", HydraConfig(2, blocks=3, tied_blocks=False), None, "the blocks after the first as one"),
  ("hydra", HydraConfig(2), IDS, "the format hydra has no place for a draft vocabulary"),
  ("eagle", EagleConfig(2), IDS, "the format eagle has no place for a draft vocabulary"),
  ("medusa", MedusaConfig(2, blocks=2), None, "blocks=2: the blocks of a head differ"),
  ("medusa", MedusaConfig(2), IDS, "the format medusa has no place for a draft vocabulary"),
  ("mlp_speculator", MLPSpeculatorConfig(2), IDS, "the format mlp_speculator has no place for"),
  ("eagle3", Eagle3Config(2), np.arange(V)[::-1], "the format eagle3 keeps their order"),
  ("peagle", PEagleConfig(2), np.arange(V)[::-1], "the format peagle keeps their order"),
  ("dflash", DFlashConfig(2), None, "mask_token=None: the format dflash has the embedding"),
  ("dflash", DFlashConfig(2, mask_token=1), None,
   "`qk_norm` must be True and `qkv_bias` False for the format dflash, got False and False."),
  ("dflash", DFlashConfig(2, hidden_layers=(0, 3), mask_token=1), None,
   "`hidden_layers` must be between 1 and 7 for the format .. got (0, 3)."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "words", "message"), REFUSED)
def test_what_was_never_published_is_not_written(tmp_path, name, config, words, message):
  model = NORMED if "between 1 and 7 for" in message else MODEL
  assert says(sentence(save, tmp_path / "x", made(name, config, words, model), name), message)
  assert not (tmp_path / "x").exists()


def test_other_formats_are_refused(tmp_path):
  words = sentence(save, tmp_path, made("hydra", HydraConfig(2)), "eagle")
  assert "`to` must be specjax or hydra for a head of hydra, got 'eagle'." in words
  words = sentence(save, tmp_path, made("clover", HEADS["clover"][1]()), "clover")
  assert "`to` must be specjax for a head of clover, got 'clover'." in words


def test_the_command_line_knows_every_format():
  (to,) = (f.type for f in dataclasses.fields(Convert) if f.name == "to")
  assert typing.get_args(to) == formats.FORMATS


def test_weights_that_half_precision_cannot_hold_are_refused(tmp_path):
  own = made("eagle", EagleConfig(2))
  own = own._replace(params=jax.tree.map(lambda x: x * 1e6, own.params))
  with pytest.raises(ValueError, match=r"tensor fc\.weight is not finite in dtype float16\."):
    formats.save(tmp_path, "eagle", own, MODEL, target_params(), base="x")


def test_shards_are_read(tmp_path):
  name = "mlp_speculator"
  write(tmp_path, name)
  (tmp_path / "model.safetensors").unlink()
  index = {key: f"model-{i % 2}.safetensors" for i, key in enumerate(tensors_of(name))}
  for shard in set(index.values()):
    save_file({k: tensors_of(name)[k] for k in index if index[k] == shard}, tmp_path / shard)
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
  whole = load(write(tmp_path / "whole", name))
  same(load(tmp_path).params, whole.params)
  (tmp_path / "model-1.safetensors").unlink()
  words = sentence(formats.load, tmp_path, MODEL)
  assert "index.json names model-1.safetensors, which is not in" in words


def test_absent_and_damaged_files_are_named(tmp_path):
  for name in ("hydra", "eagle"):
    file = write(tmp_path, name) / CASES[name].file
    file.write_bytes(file.read_bytes()[:-9])
    assert f"{CASES[name].file} is truncated" in sentence(formats.load, tmp_path, MODEL)
    file.unlink()
    assert f"has no {CASES[name].file} and no " in sentence(formats.load, tmp_path, MODEL)


def medusa_tensors(heads: int, shared: bool):
  rng = np.random.default_rng(0)
  shapes = {f"{h}.0.linear.weight": (E, E) for h in range(heads)}
  shapes |= {f"{h}.0.linear.bias": (E,) for h in range(heads)}
  shapes |= {} if shared else {f"{h}.1.weight": (V, E) for h in range(heads)}
  return {k: rng.normal(size=x).astype(np.float32) for k, x in shapes.items()}


MEDUSA = {
  "medusa_num_heads": 5, "medusa_num_layers": 1, "base_model_name_or_path": "x", "version": "2"
}  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
def test_medusa_says_how_many_heads_a_file_holds(tmp_path, shared):
  """Published heads for Vicuna 7B say 2 and hold 5."""
  save_file(medusa_tensors(5, shared), tmp_path / "medusa_lm_head.safetensors")
  (tmp_path / "config.json").write_text(json.dumps(MEDUSA | {"medusa_num_heads": 2}))
  words = sentence(formats.load, tmp_path, MODEL)
  assert "says medusa_num_heads=2, and medusa_lm_head.safetensors holds 5 heads" in words
  (tmp_path / "config.json").write_text(json.dumps(MEDUSA))
  assert load(tmp_path).config == MedusaConfig(5, shared=shared)
  (tmp_path / "config.json").write_text(json.dumps(MEDUSA | {"medusa_num_heads": 6}))
  assert "lacks tensor 5." in sentence(formats.load, tmp_path, MODEL)


TORCH = {
  "hydra": "hydra_lm_head.pt", "eagle": "pytorch_model.bin", "eagle3": "pytorch_model.bin",
  "mlp_speculator": "pytorch_model.bin",
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
def test_files_of_torch_are_read_without_it(tmp_path, name):
  plain = load(write(tmp_path, name))
  (tmp_path / CASES[name].file).unlink()
  tensors = {k: np.array(x) for k, x in tensors_of(name).items()}
  torch_file(tmp_path / TORCH[name], tensors)
  same(load(tmp_path).params, plain.params)
  half = {k: x.astype(jnp.bfloat16) if x.dtype.kind == "f" else x for k, x in tensors.items()}
  torch_file(tmp_path / TORCH[name], half)
  rounded = jax.tree.map(
    lambda x: x.astype(jnp.bfloat16).astype(x.dtype) if x.dtype == jnp.float32 else x, plain.params
  )
  same(load(tmp_path).params, rounded)


def test_files_of_torch_that_are_not_tensors_are_refused(tmp_path):
  torch = pytest.importorskip("torch")
  file = write(tmp_path, "hydra") / "hydra_lm_head.pt"
  (tmp_path / "hydra_lm_head.safetensors").unlink()
  torch.save({"x": pytest.raises}, file)  # code, which weights_only does not run
  assert "hydra_lm_head.pt is damaged, or holds more than tensors" in sentence(
    formats.load, tmp_path, MODEL
  )
  torch.save({"model_state": {"x": torch.zeros(1)}}, file)
  assert "holds something else than tensors by name" in sentence(formats.load, tmp_path, MODEL)


def test_a_file_that_is_none_of_torch_is_refused(tmp_path):
  (tmp_path / "medusa_lm_head.pt").write_bytes(b"x")
  (tmp_path / "config.json").write_text(json.dumps(MEDUSA))
  words = sentence(formats.load, tmp_path, MODEL)
  assert "medusa_lm_head.pt is damaged, or no archive of torch" in words
