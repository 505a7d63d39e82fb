"""Directories of mixtures of experts, with random weights under their real tensor names.

Their logits are compared with a pass in float64 that follows each family's definition, one row
and one expert at a time.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import specjax
from specjax.checkpoints import formats, hf, hf_config
from specjax.checkpoints.heads import LoadedHead
from specjax.cli.main import main
from specjax.heads.eagle import EagleConfig, eagle
from specjax.models import sharding
from specjax.models.config import Config, Experts
from specjax.models.int8 import Int8
from specjax.models.transformer import Transformer, target

V, E, L, H, K, C, X, F, B, T = 40, 32, 3, 4, 2, 8, 8, 12, 2, 9
COMMON = {
  "vocab_size": V, "hidden_size": E, "num_hidden_layers": L, "num_attention_heads": H,
  "num_key_value_heads": K, "head_dim": C, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 2,
}  # fmt: skip
MIXTRAL = COMMON | {
  "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": X,
  "num_experts_per_tok": 2, "intermediate_size": F, "rope_theta": 1e6, "sliding_window": None,
  "rms_norm_eps": 1e-5,
}  # fmt: skip
QWEN3 = COMMON | {
  "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": X,
  "num_experts_per_tok": 3, "moe_intermediate_size": F, "intermediate_size": 20,
  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [0], "rope_theta": 1e6,
  "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip
SDAR = QWEN3 | {
  "model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"], "block_size": 4,
  "mlp_only_layers": [], "mask_token_id": 39, "norm_topk_prob": False,
}  # fmt: skip
# Keys of LLaDA-MoE-7B-A1B, whose heads all have their own keys and values.
LLADA = {k: v for k, v in COMMON.items() if k != "head_dim"} | {
  "model_type": "llada", "architectures": ["LLaDAMoEModelLM"], "num_key_value_heads": H,
  "num_experts": X, "num_experts_per_tok": 3, "expert_intermediate_size": F,
  "dense_intermediate_size": 20, "shared_expert_intermediate_size": None,
  "moe_layer_freq": [1] * L, "norm_topk_prob": None, "qk_layernorm": True, "rms_norm_eps": 1e-5,
  "moe_router_enable_expert_bias": False, "moe_router_score_function": "softmax",
  "routed_scaling_factor": 1, "router_num_group": None, "router_topk_group": None,
  "rope_theta": 50000.0, "partial_rotary_factor": 1, "clip_qkv": None, "attention_bias": False,
  "mask_token_id": 39,
}  # fmt: skip
# Keys of LLaDA2.1-mini.
LLADA2 = COMMON | {
  "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "intermediate_size": 20,
  "first_k_dense_replace": 1, "moe_intermediate_size": F, "num_experts": X, "n_group": 4,
  "topk_group": 2, "num_experts_per_tok": 3, "num_shared_experts": 1, "norm_topk_prob": True,
  "routed_scaling_factor": 2.5, "score_function": "sigmoid", "partial_rotary_factor": 0.5,
  "moe_router_enable_expert_bias": True, "rope_theta": 600000, "rope_scaling": None,
  "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True, "norm_head": False,
  "sliding_window": 4096, "mask_token_id": 39,
}  # fmt: skip
BLOCKFFN = COMMON | {
  "model_type": "specjax_blockffn", "architectures": ["BlockFFN"], "num_experts": X,
  "moe_intermediate_size": F, "intermediate_size": 20, "rope_theta": 1e4,
}  # fmt: skip
ALL = {
  "mixtral": MIXTRAL, "qwen3": QWEN3, "sdar": SDAR, "llada": LLADA, "llada2": LLADA2,
  "blockffn": BLOCKFFN,
}  # fmt: skip
DENOISERS = ("sdar", "llada", "llada2")
BLOCK = {"sdar": 4, "llada2": 32, "llada": T}
DENSE = {"qwen3": 1, "llada2": 1}
every = pytest.mark.parametrize("name", ALL)


def names_of(name: str) -> dict[str, str]:
  """What a family calls the tensors of a layer, without ".weight"."""
  n = {x: f"self_attn.{x}_proj" for x in "qkvo"} | {
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "router": "mlp.gate",
    "gate": "mlp.experts.{}.gate_proj", "up": "mlp.experts.{}.up_proj",
    "down": "mlp.experts.{}.down_proj",
  }  # fmt: skip
  if name == "mixtral":
    inner = "block_sparse_moe.experts.{}"
    n |= {"router": "block_sparse_moe.gate", "gate": f"{inner}.w1", "up": f"{inner}.w3",
          "down": f"{inner}.w2"}  # fmt: skip
  if name == "llada2":
    n |= {"o": "attention.dense", "q_norm": "attention.query_layernorm",
          "k_norm": "attention.key_layernorm"}  # fmt: skip
  return n


def tensors_of(name: str) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  groups = ALL[name]["num_key_value_heads"]

  def normal(*shape):
    return (rng.normal(size=shape) / 4).astype(np.float32)

  def scale(size=E):
    return (1 + rng.normal(size=size) / 8).astype(np.float32)

  embedding = "model.word_embeddings" if name == "llada2" else "model.embed_tokens"
  out = {f"{embedding}.weight": normal(V, E), "model.norm.weight": scale(),
         "lm_head.weight": normal(V, E)}  # fmt: skip
  n = names_of(name)
  for i in range(L):
    own = {x: scale() for x in ("input_layernorm", "post_attention_layernorm")}
    if name == "llada2":
      own["attention.query_key_value"] = normal((H + 2 * groups) * C, E)
    else:
      own |= {
        n["q"]: normal(H * C, E),
        n["k"]: normal(groups * C, E),
        n["v"]: normal(groups * C, E),
      }
    own[n["o"]] = normal(E, H * C)
    if name not in ("mixtral", "blockffn"):
      own |= {n["q_norm"]: scale(C), n["k_norm"]: scale(C)}
    if i < DENSE.get(name, 0):
      own |= {"mlp.gate_proj": normal(20, E), "mlp.up_proj": normal(20, E)}
      own["mlp.down_proj"] = normal(E, 20)
    else:
      own[n["router"]] = normal(X, E) * 4
      for e in range(X):
        inner = ("up",) if name == "blockffn" else ("gate", "up")
        own |= {n[x].format(e): normal(F, E) for x in inner}
        own[n["down"].format(e)] = normal(E, F)
      if name == "blockffn":
        own["mlp.router_norm"] = scale(X)
      if name == "llada2":
        at = "mlp.shared_experts"
        own |= {f"{at}.gate_proj": normal(F, E), f"{at}.up_proj": normal(F, E)}
        own[f"{at}.down_proj"] = normal(E, F)
        out[f"model.layers.{i}.mlp.gate.expert_bias"] = normal(X)
    out |= {f"model.layers.{i}.{key}.weight": value for key, value in own.items()}
  return out


def silu(x):
  return x / (1 + np.exp(-x))


def chosen_by(name: str, logits: np.ndarray, own) -> dict[int, float]:
  """{expert: weight} of one row, whose router says logits [X]."""
  if name == "blockffn":
    a = np.maximum(logits, 0)
    a = a / np.sqrt((a * a).mean() + 1e-6) * own("mlp.router_norm")
    return {e: a[e] for e in range(X) if logits[e] > 0}
  if name == "llada2":
    share = 1 / (1 + np.exp(-logits))
    value = share + own("mlp.gate", "expert_bias")
    groups = sorted(range(4), key=lambda g: -np.sort(value[2 * g : 2 * g + 2])[-2:].sum())[:2]
    allowed = [e for e in range(X) if e // 2 in groups]
    best = sorted(allowed, key=lambda e: -value[e])[:3]
    return {e: 2.5 * share[e] / share[best].sum() for e in best}
  share = np.exp(logits) / np.exp(logits).sum()
  best = np.argsort(-share)[: ALL[name]["num_experts_per_tok"]]
  total = share[best].sum() if name in ("mixtral", "qwen3") else 1
  return {e: share[e] / total for e in best}


def expected(name: str, t: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
  """Logits [B, T, V] at each token, in float64."""
  raw, n = ALL[name], names_of(name)
  groups, epsilon, theta = raw["num_key_value_heads"], raw["rms_norm_eps"], raw["rope_theta"]
  turned = C // 2 if name == "llada2" else C
  where = np.arange(T)
  block = where // BLOCK.get(name, 1)
  sees = block[None] <= block[:, None]

  def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight

  def rotate(x):  # [B, T, heads, C]; the first half of what turns, with its second
    angle = where[:, None] * theta ** -(np.arange(0, turned, 2) / turned)
    cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
    a, b, rest = np.split(x, [turned // 2, turned], -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)

  embedding = "model.word_embeddings" if name == "llada2" else "model.embed_tokens"
  x = t[f"{embedding}.weight"].astype(np.float64)[ids]
  for i in range(L):

    def own(key, kind="weight", i=i):
      return t[f"model.layers.{i}.{key}.{kind}"].astype(np.float64)

    h = norm(x, own("input_layernorm"))
    if name == "llada2":
      q, k, v = np.split(h @ own("attention.query_key_value").T, [H * C, (H + groups) * C], -1)
    else:
      q, k, v = (h @ own(n[each]).T for each in "qkv")
    q, k, v = (y.reshape(B, T, -1, C) for y in (q, k, v))
    if name not in ("mixtral", "blockffn"):
      q, k = norm(q, own(n["q_norm"])), norm(k, own(n["k_norm"]))
    q, k = rotate(q), rotate(k)
    k, v = (np.repeat(y, H // groups, 2) for y in (k, v))
    score = np.where(sees, np.einsum("bthc,bshc->bhts", q, k) / math.sqrt(C), -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    x = x + np.einsum("bhts,bshc->bthc", p, v).reshape(B, T, H * C) @ own(n["o"]).T
    h = norm(x, own("post_attention_layernorm"))
    if i < DENSE.get(name, 0):
      gate, up = h @ own("mlp.gate_proj").T, h @ own("mlp.up_proj").T
      x = x + (silu(gate) * up) @ own("mlp.down_proj").T
      continue
    added = np.zeros_like(x)
    for b in range(B):
      for j in range(T):
        row = h[b, j]
        for e, weight in chosen_by(name, own(n["router"]) @ row, own).items():
          up = own(n["up"].format(e)) @ row
          gate = silu(up) if name == "blockffn" else silu(own(n["gate"].format(e)) @ row) * up
          added[b, j] += weight * (own(n["down"].format(e)) @ gate)
        if name == "llada2":
          gate, up = (own(f"mlp.shared_experts.{y}_proj") @ row for y in ("gate", "up"))
          added[b, j] += own("mlp.shared_experts.down_proj") @ (silu(gate) * up)
    x = x + added
  return norm(x, t["model.norm.weight"].astype(np.float64)) @ t["lm_head.weight"].T


@pytest.mark.slow
def test_ling_2_is_llada2_from_left_to_right(write, tmp_path, monkeypatch):
  """Its logits, those of a tree's chain behind a cache, and the way back."""
  raw = LLADA2 | {"model_type": "bailing_moe_v2", "architectures": ["BailingMoeV2ForCausalLM"]}
  del raw["mask_token_id"], raw["sliding_window"]
  tensors = tensors_of("llada2")
  monkeypatch.setitem(BLOCK, "llada2", 1)
  ids = np.random.default_rng(1).integers(V, size=(B, T)).astype(np.int32)
  want = expected("llada2", tensors, ids)
  found = hf.load(write(raw, tensors))
  lm, chain, half = target(found.config), np.tril(np.ones((B, 4, 4), bool)), T - 4
  cache, _ = lm.prefill(found.params, ids[:, : half + 1], jnp.full(B, half + 1), 32)
  depth = np.broadcast_to(np.arange(4, dtype=np.int32), (B, 4))
  got = lm.evaluate(found.params, cache, ids[:, half:], depth, chain).logits
  np.testing.assert_allclose(got, want[:, half:], atol=2e-5)
  hf.save(tmp_path / "out", found.config, found.params, dtype=jnp.float32)
  assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "glm4_moe"
  assert hf.load(tmp_path / "out").config == found.config


@pytest.fixture
def write(tmp_path):
  def write(raw, tensors):
    (tmp_path / "config.json").write_text(json.dumps(raw))
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    return str(tmp_path)

  return write


def logits_of(name: str, config: Config, params, ids):
  position = jnp.broadcast_to(jnp.arange(T), (B, T))
  block = np.arange(T) // BLOCK.get(name, 1)
  mask = jnp.broadcast_to(jnp.asarray(block[None] <= block[:, None]), (B, T, T))
  model = Transformer(config)
  hidden, _ = model.apply(params, ids, position, mask)
  return model.apply(params, hidden, method="head")


@pytest.mark.full(but=["float-*", "int8-mixtral"])
@every
@pytest.mark.parametrize("weights", ["float", "int8"])
def test_logits_are_those_of_the_definition(name, weights, write):
  tensors = tensors_of(name)
  checkpoint = hf.load(write(ALL[name], tensors), weights=weights)
  ids = np.random.default_rng(1).integers(0, V, (B, T)).astype(np.int32)
  got, want = (
    logits_of(name, checkpoint.config, checkpoint.params, ids),
    expected(name, tensors, ids),
  )
  if weights == "float":
    np.testing.assert_allclose(got, want, atol=2e-4)
    assert checkpoint.config.causal == (name not in DENOISERS)
  else:
    own = checkpoint.params["params"][f"layer_{L - 1}"]["experts"]
    assert isinstance(own["expert_gate_up"], Int8) and not isinstance(own["router"], Int8)
    assert np.abs(got - want).mean() < 0.2 * np.abs(want).mean()


@every
def test_what_is_written_is_the_published_layout(name, write, tmp_path):
  """The same tensors by the same names, and no key of config.json that says something else."""
  raw, tensors = ALL[name], tensors_of(name)
  first = hf.load(write(raw, tensors))
  hf.save(tmp_path / "ours", first.config, first.params, mask=first.mask, stop=first.stop,
          dtype=jnp.float32)  # fmt: skip
  written = safetensors.numpy.load_file(tmp_path / "ours" / "model.safetensors")
  assert written.keys() == tensors.keys()
  for key, tensor in tensors.items():
    np.testing.assert_array_equal(written[key], tensor, err_msg=key)
  ours = json.loads((tmp_path / "ours" / "config.json").read_text())
  wanted = raw | {"eos_token_id": [2]}
  # What neither program reads, or reads like the value that is written.
  alike = {"sliding_window", "norm_topk_prob"} if name in ("llada", "llada2") else set()
  assert {k: ours.get(k, v) for k, v in wanted.items() if k not in alike} == {
    k: v for k, v in wanted.items() if k not in alike
  }
  again = hf.load(tmp_path / "ours")
  assert again.config == first.config and (again.mask, again.stop) == (first.mask, first.stop)


@every
def test_convert_keeps_the_family(name, write, tmp_path):
  out = tmp_path / "out"
  directory = write(ALL[name], tensors_of(name))
  assert main(["convert", "--format", "hf", "--model", directory, "--out", str(out)]) == 0
  raw = json.loads((out / "config.json").read_text())
  assert [raw[k] for k in ("model_type", "architectures")] == [
    ALL[name][k] for k in ("model_type", "architectures")
  ]


@pytest.mark.slow
@pytest.mark.full(but=["blockffn", "mixtral"])
@pytest.mark.parametrize("name", [x for x in ALL if x not in DENOISERS])
def test_a_target_decodes(name, write):
  model = specjax.load(write(ALL[name], tensors_of(name)))
  prompts = [[1, 2, 3, 1, 2], [7, 8, 7]]
  plain, guessed = (
    specjax.Decoder(model, d, batch=2)(prompts, 16) for d in ("none", "prompt_lookup-4")
  )
  assert [r.tokens for r in guessed] == [r.tokens for r in plain]


@pytest.mark.slow
@pytest.mark.full(but=["llada2", "llada"])
@pytest.mark.parametrize("name", DENOISERS)
def test_a_denoiser_decodes(name, write):
  raw = {k: v for k, v in ALL[name].items() if k != "mask_token_id"}
  with pytest.raises(
    ValueError, match=r"`mask_token_id` must be between 0 and 39, got 1\d{5}"
  ):  # the published one
    specjax.load(write(raw, tensors_of(name)))
  model = specjax.load(write(ALL[name], tensors_of(name)))
  assert model.denoiser.block == {"sdar": 4, "llada2": 32, "llada": None}[name]
  (answer,) = specjax.DiffusionDecoder(model, "confidence", blocks=4)([[1, 2, 3, 4]], 8)
  assert len(answer.tokens) <= 8 and model.mask not in answer.tokens


@pytest.mark.parametrize("name", ["mixtral", "llada2"])
def test_a_model_that_is_read_in_parts_is_the_same(name, write, mesh):
  directory = write(ALL[name], tensors_of(name))
  whole, parts = hf.load(directory), hf.load(directory, mesh=mesh)
  own = parts.params["params"][f"layer_{L - 1}"]["experts"]["expert_down"]
  assert own.sharding.shard_shape(own.shape)[0] == X // 2
  jax.tree.map(np.testing.assert_array_equal, parts.params, sharding.split(whole.params))


@pytest.mark.parametrize(
  ("name", "change", "words"),
  [
    ("qwen3", {"mlp_only_layers": [1]}, r"layers \[1\] have a dense MLP"),
    ("qwen3", {"decoder_sparse_step": 2}, r"layers \[0, 2\] have a dense MLP"),
    ("qwen3", {"mlp_only_layers": [0, 1, 2]}, r"layers \[0, 1, 2\] have a dense MLP"),
    (
      "qwen3",
      {"num_experts_per_tok": 9},
      r"`chosen` must be between 1 and 8 \(of 8 experts\), got 9\.",
    ),
    (
      "mixtral",
      {"num_local_experts": 0},
      r"`num_local_experts` must be between 1 and 2147483647, got 0\.",
    ),
    (
      "llada",
      {"moe_layer_freq": [1]},
      r"`moe_layer_freq` must be a list of 3 numbers, got \(1,\)\.",
    ),
    (
      "llada",
      {"shared_expert_intermediate_size": 8},
      r"`shared_expert_intermediate_size` must be null or 0, got 8\.",
    ),
    ("llada", {"clip_qkv": 8.0}, r"`clip_qkv` must be null, got 8\.0\."),
    ("llada", {"expert_intermediate_size": None}, "lacks 'expert_intermediate_size'"),
    (
      "llada2",
      {"score_function": "softmax"},
      r"`score_function` must be null or 'sigmoid', got 'softmax'\.",
    ),
    ("llada2", {"use_bias": True}, r"`use_bias` must be null or False, got True\."),
    ("llada2", {"first_k_dense_replace": 3}, "have a dense MLP"),
    ("llada2", {"n_group": 3}, "`groups` must be 1, or a divisor of count=8 .*, got 3"),
    (
      "mixtral",
      {"partial_rotary_factor": 0.5},
      r"`partial_rotary_factor` must be 1, for whole heads are rotated, got 0\.5\.",
    ),
  ],
)
def test_what_is_refused(name, change, words):
  with pytest.raises(ValueError, match=words):
    hf_config.from_json(ALL[name] | change)


@pytest.mark.parametrize(
  ("experts", "change"),
  [
    (Experts(4, 2, 8, "sigmoid"), {}),
    (Experts(4, 2, 8, scale=2.0), {}),
    (Experts(4, 2, 8, dense_layers=1), {}),
    (Experts(4, 2, 8, normalised=False), {"qkv_bias": True}),
  ],
)
def test_what_no_family_has_is_not_written(experts, change):
  config = Config(vocab_size=V, width=E, layers=2, heads=H, kv_heads=K, head_dim=C, mlp_width=8,
                  experts=experts, **change)  # fmt: skip
  with pytest.raises(
    ValueError,
    match=(
      r"`experts` must be what a family has together with the other.*got Experts\(count=4, chosen=2"
    ),
  ):
    hf_config.to_json(config)


@pytest.mark.parametrize(
  ("name", "kind", "sizes"),
  [
    ("mixtral", "MixtralConfig", ("num_local_experts", "num_experts_per_tok", "intermediate_size")),
    ("qwen3", "Qwen3MoeConfig", ("num_experts", "num_experts_per_tok", "moe_intermediate_size")),
  ],
)
def test_keys_mean_what_they_mean_to_transformers(name, kind, sizes):
  """Absent ones, and those of the config.json that it writes itself."""
  transformers = pytest.importorskip("transformers", reason="transformers is not installed")
  kept = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
          "intermediate_size", "num_key_value_heads")  # fmt: skip
  raw = {key: ALL[name][key] for key in kept}
  for more in ({}, {sizes[0]: 6, "num_experts_per_tok": 3}):
    theirs = getattr(transformers, kind)(**raw, **more)
    for ours in (hf_config.from_json(raw | more), hf_config.from_json(theirs.to_dict())):
      found = ours.experts.count, ours.experts.chosen, ours.experts.width
      assert found == tuple(getattr(theirs, key) for key in sizes)
      assert ours.norm_epsilon == theirs.rms_norm_eps and ours.window == theirs.sliding_window
      assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
      assert ours.experts.normalised == getattr(theirs, "norm_topk_prob", True)
      assert ours.tied == theirs.tie_word_embeddings


@pytest.mark.slow
@pytest.mark.full(but=["mixtral"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3"])
def test_a_published_head_has_a_dense_layer(name, write, tmp_path):
  """EAGLE's layer is dense also for these targets, whatever the width; a copy of theirs is not."""
  checkpoint = hf.load(write(ALL[name], tensors_of(name)))
  config, params = checkpoint.config, checkpoint.params

  def made(mlp_width: int) -> LoadedHead:
    own = EagleConfig(3, bias=False, mlp_width=mlp_width)
    head = eagle(target(config), own)
    return LoadedHead(head, head.init(jax.random.key(1), params, None), (), None, own, config)

  for width in (20, F):
    own = made(width)
    formats.save(tmp_path / str(width), "eagle", own, config, params, base="b", dtype=jnp.float32)
    back = formats.load(tmp_path / str(width), config, target_params=params)
    assert back.config.mlp_width == width
    jax.tree.map(np.testing.assert_array_equal, back.params["params"], own.params["params"])
  with pytest.raises(ValueError, match=r"`experts` must be None in a published format.*got Exp"):
    formats.save(tmp_path / "copy", "eagle", made(0), config, params, base="b")
