"""config.json of each family, old and new layout, and what is refused."""

import json
import math

import pytest

from specjax.checkpoints import hf_config
from specjax.models.config import Config, RopeScaling

BASE = dict(
  model_type="llama", vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
  intermediate_size=48,
)  # fmt: skip
SLIDING = dict(model_type="qwen2", use_sliding_window=True, sliding_window=9)
LLAMA3 = dict(
  factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)


@pytest.mark.parametrize(
  ("raw", "expected"),
  [
    ({}, dict(head_dim=8, kv_heads=4, rope_theta=1e4, norm_epsilon=1e-6, tied=False)),
    ({"num_key_value_heads": None, "head_dim": None}, dict(head_dim=8, kv_heads=4)),
    ({"head_dim": 16, "num_key_value_heads": 2}, dict(head_dim=16, kv_heads=2)),
    ({"attention_bias": True}, dict(qkv_bias=True)),
    ({"model_type": "mimo"}, dict(qkv_bias=True, window=None)),
    ({"sliding_window": 9}, dict(window=None)),
    ({"rope_theta": 5e5}, dict(rope_theta=5e5, rope_scaling=None)),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, dict(rope_theta=5e5)),
    (
      {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 100},
      dict(rope_theta=100.0, rope_scaling=RopeScaling("linear", 2.0)),
    ),
    (
      {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
      dict(rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
    ),
    (
      {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
      dict(rope_theta=5e5, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
    ),
    (
      {"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 100},
      dict(
        rope_scaling=RopeScaling("yarn", 4.0, 1.0, 32.0, 100, 0.1 * math.log(4) + 1),
        max_length=400,
      ),
    ),
    (
      {
        "rope_scaling": {
          "rope_type": "yarn",
          "factor": 4.0,
          "mscale": 1.0,
          "mscale_all_dim": 1.0,
          "beta_slow": 2.0,
          "beta_fast": 16.0,
          "truncate": False,
          "original_max_position_embeddings": 64,
        },
        "max_position_embeddings": 300,
      },
      dict(rope_scaling=RopeScaling("yarn", 4.0, 2.0, 16.0, 64, 1.0, False), max_length=300),
    ),
    ({"model_type": "mistral", "sliding_window": None}, dict(window=None)),
    ({"model_type": "mistral", "sliding_window": 9}, dict(window=9)),
    ({"model_type": "mistral"}, dict(window=4096)),
    ({"model_type": "qwen2", "sliding_window": 9}, dict(window=None, qkv_bias=True)),
    ({**SLIDING, "max_window_layers": 0}, dict(window=9)),
    ({**SLIDING, "max_window_layers": 2}, dict(window=None)),
    ({**SLIDING, "layer_types": ["sliding_attention"] * 2}, dict(window=9)),
    ({**SLIDING, "layer_types": ["full_attention"] * 2}, dict(window=None)),
    ({"model_type": "qwen3"}, dict(qk_norm=True, qkv_bias=False)),
    ({"is_causal": False}, dict(causal=False)),
  ],
)
def test_config_json_is_understood(raw, expected):
  config = hf_config.from_json(BASE | raw)
  assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
  ("raw", "words"),
  [
    (
      {"model_type": "gpt2"},
      r"`model_type` must be one of llama, mistral, qwen2, qwen3.*got 'gpt2'\.",
    ),
    ({"model_type": None}, r"`model_type` must be one of llama, mistral, qwen2, qwen3.*got None\."),
    ({"hidden_act": "gelu"}, r"`hidden_act` must be 'silu', got 'gelu'\."),
    ({"mlp_bias": True}, "mlp_bias"),
    (
      {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
      r"`rope_type` must be one of default, linear, yarn, llama3, got 'longrope'\.",
    ),
    ({"rope_scaling": {"type": "yarn"}}, "yarn rope scaling lacks 'factor'"),
    (
      {"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_slow": 40}},
      r"`beta_slow` must be a number below beta_fast=32\.0, got 40\.0\.",
    ),
    ({"rope_scaling": {"type": "linear"}}, "linear rope scaling lacks 'factor'"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "lacks 'low_freq_factor'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({**SLIDING, "max_window_layers": 1}, "1 of 2 layers"),
    ({**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}, "1 of 2 layers"),
  ],
)
def test_config_json_is_refused(raw, words):
  with pytest.raises(ValueError, match=words):
    hf_config.from_json(BASE | raw)


def test_config_json_without_a_size_is_refused():
  with pytest.raises(ValueError, match="lacks 'hidden_size'"):
    hf_config.from_json({k: v for k, v in BASE.items() if k != "hidden_size"})


@pytest.mark.parametrize(
  "change",
  [
    {},
    {"causal": False},
    {"window": 8},
    {"window": 8, "qkv_bias": True},
    {"window": 8, "qk_norm": True},
    {"rope_scaling": RopeScaling("llama3", 4.0, 1.0, 3.0, 128), "tied": False},
    {"rope_scaling": RopeScaling("linear", 4.0), "rope_theta": 5e5},
    {"rope_scaling": RopeScaling("yarn", 4.0, 2.0, 16.0, 64, 1.2, False)},
  ],
)
def test_config_json_comes_back_equal(change):
  config = Config(
    vocab_size=96, width=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp_width=48, **change
  )
  assert hf_config.from_json(json.loads(json.dumps(hf_config.to_json(config)))) == config


@pytest.mark.parametrize(
  ("family", "change", "mask", "shift"),
  [
    ("llada", {}, True, False),
    ("llada", {"tied": True, "kv_heads": 2}, True, False),
    ("Dream", {"qkv_bias": True}, True, True),
    ("Dream", {"qkv_bias": True, "rope_scaling": RopeScaling("linear", 4.0)}, True, True),
    ("sdar", {"qk_norm": True, "block_length": 6, "head_dim": 16}, True, False),
    ("Fast_dLLM_Qwen", {"qkv_bias": True, "block_length": 6}, True, True),
    # One feature away from a published denoiser.
    ("llama", {}, False, False),
    ("llama", {}, True, True),
    ("llama", {"causal": True}, True, False),
    ("llama", {"head_dim": 16}, True, False),
    ("llama", {"any_order": True}, True, False),
    ("llama", {"uniform": True}, False, False),
    ("llama", {"block_length": 6}, True, False),
    ("llama", {"rope_scaling": RopeScaling("linear", 4.0)}, True, False),
    ("mistral", {"window": 8}, True, False),
    ("qwen2", {"qkv_bias": True}, True, False),
    ("qwen2", {"qkv_bias": True}, False, True),
    ("qwen2", {"qkv_bias": True, "head_dim": 16}, True, True),
    ("qwen3", {"qk_norm": True}, True, False),
  ],
)
def test_the_layout_of_a_denoiser(family, change, mask, shift):
  sizes = dict(vocab_size=96, width=32, layers=2, heads=4, kv_heads=4, head_dim=8, mlp_width=48)
  config = Config(**(sizes | {"causal": False} | change))
  raw = hf_config.to_json(config, mask=mask, shift=shift)
  assert raw["model_type"] == family
  assert hf_config.from_json(json.loads(json.dumps(raw))) == config


def test_a_config_that_no_family_has_is_not_written():
  config = Config(96, 32, 2, 4, 2, 8, 48, qkv_bias=True, qk_norm=True)
  with pytest.raises(ValueError, match="qk_norm=True with qkv_bias=True"):
    hf_config.to_json(config)
