"""Heads in speculators' format: what the programs that read it look up, and our own reader.

The keys are those that vLLM's `SpeculatorsConfig` and its functions for each kind of head read, and
that the package's own classes require, as of autumn 2026.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from sentences import says
from test_published_heads import (
  IDS,
  MODEL,
  NORMED,
  E,
  V,
  W,
  load,
  made,
  same,
  sentence,
  target_params,
)

from specjax.checkpoints import formats
from specjax.cli.main import main
from specjax.heads.dflash import DFlashConfig
from specjax.heads.dspark import DSparkConfig
from specjax.heads.eagle import EagleConfig
from specjax.heads.eagle3 import Eagle3Config
from specjax.heads.peagle import PEagleConfig

OWN = {
  "eagle3": ("eagle3", Eagle3Config(2), IDS),
  "eagle3, all tokens, other layers": ("eagle3", Eagle3Config(3, (0, 7, 3), 8)),
  "eagle3.1": ("eagle3", Eagle3Config(2, fc_norm=True, norm_output=True, own_embedding=True), IDS),
  "peagle": ("peagle", PEagleConfig(3, 3, 5, norm_before_residual=True), IDS),
  "dflash": ("dflash", DFlashConfig(2, 3, (7, 1), mask_token=0), IDS, NORMED),
  "dflash, the root guesses": (
    "dflash", DFlashConfig(3, 2, (4, 1), mask_token=2, from_root=True), None, NORMED
  ),
  "dspark": ("dspark", DSparkConfig(3, 2, (7, 0), mask_token=2, rank=5), None, NORMED),
  "dspark, masks guess": (
    "dspark", DSparkConfig(2, 1, (5,), mask_token=2, rank=3, confidence=False, from_root=False),
    IDS, NORMED,
  ),
}  # fmt: skip
LAYER = {
  "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
  "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
  "rope_theta", "max_position_embeddings",
}  # fmt: skip
EAGLE = {
  "draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm",
  "norm_output", "eagle_aux_hidden_state_layer_ids",
}  # fmt: skip
BLOCK = {
  "draft_vocab_size", "mask_token_id", "aux_hidden_state_layer_ids", "sample_from_anchor",
  "block_size",
}  # fmt: skip
BIGRAM = {
  "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"
}  # fmt: skip
MODULES = {
  "fc", "norm", "hidden_norm", "layers", "lm_head", "embed_tokens", "d2t", "t2d", "input_norm",
  "fc_norm", "mask_hidden", "markov_head", "confidence_head",
}  # fmt: skip
# What is looked up in a file of each kind beside the layer, and the families of the layer.
READ = {
  "eagle3": (EAGLE, "llama"), "peagle": (EAGLE | {"mask_token_id"}, "llama"),
  "dflash": (BLOCK, "qwen3"), "dspark": (BLOCK | BIGRAM, "qwen3"),
}  # fmt: skip


def save(directory, loaded, dtype=jnp.bfloat16):
  formats.save(
    directory, "speculators", loaded, MODEL, target_params(), base="org/name", dtype=dtype
  )
  return directory


@pytest.mark.parametrize("name", OWN)
def test_what_is_written_is_read_bit_for_bit_and_has_what_servers_look_up(tmp_path, name):
  own = made(*OWN[name])
  kind, config = own.head.name, own.config
  own = own._replace(params=jax.tree.map(as_stored, own.params))
  back = load(save(tmp_path, own))
  same(back.params, own.params)
  assert (back.config, back.network) == (config, own.network)
  assert back.head.hidden_layers == own.head.hidden_layers and back.head.depth == config.depth

  raw = json.loads((tmp_path / "config.json").read_text())
  said, layer = raw["speculators_config"], raw["transformer_layer_config"]
  # vLLM takes a file without model_type, and with speculators_config, for one of this format.
  assert "model_type" not in raw and raw["speculators_model_type"] == said["algorithm"] == kind
  assert said["proposal_methods"][0]["speculative_tokens"] == config.depth
  methods = [method["proposal_type"] for method in said["proposal_methods"]]
  assert methods == [said["default_proposal_method"]] == ["greedy"]
  assert said["verifier"] == {"name_or_path": "org/name", "architectures": ["LlamaForCausalLM"]}
  keys, family = READ[kind]
  assert keys <= raw.keys() and layer.keys() >= LAYER and not keys & layer.keys()
  assert layer["model_type"] == family and raw["torch_dtype"] == "bfloat16"
  assert (layer["hidden_size"], layer["vocab_size"]) == (E, V)
  assert layer["num_hidden_layers"] == getattr(config, "layers", 1)
  layers = raw.get("eagle_aux_hidden_state_layer_ids", raw.get("aux_hidden_state_layer_ids"))
  assert tuple(layers) == own.head.hidden_layers
  words = W if "vocabulary" in own.params else V
  assert raw["draft_vocab_size"] == words

  tensors = load_file(tmp_path / "model.safetensors")
  assert {k.split(".")[0] for k in tensors} <= MODULES
  assert tensors["lm_head.weight"].shape == (words, E)
  assert ("d2t" in tensors) == ("t2d" in tensors) == (words == W)
  if words == W:
    np.testing.assert_array_equal(np.arange(W) + tensors["d2t"], IDS)
    np.testing.assert_array_equal(np.flatnonzero(tensors["t2d"]), np.sort(IDS))
  if kind in ("dflash", "dspark"):  # whose program has no other ends than these copies
    head = np.asarray(target_params()["params"]["lm_head"])[IDS if words == W else slice(None)]
    np.testing.assert_array_equal(tensors["lm_head.weight"], head.astype(jnp.bfloat16))
    assert tensors["embed_tokens.weight"].shape == (V, E)


def as_stored(x):
  """Numbers that bfloat16 has."""
  return x if x.dtype.kind == "i" else x.astype(jnp.bfloat16).astype(jnp.float32)


WRONG = [
  (("eagle3", Eagle3Config(2, window=4)),
   "`window` must be None for the format speculators, got 4."),
  (("eagle3", Eagle3Config(2, attention_bias=True)),
   "`attention_bias` must be False for the format speculators .. got True."),
  (("eagle3", Eagle3Config(2, hidden_layers=(8, 0))),
   "`hidden_layers` must be between 0 and 7 for the format speculators .. got (8, 0)."),
  (("dflash", DFlashConfig(2, 3, (7, 0), mask_token=0), None, NORMED),
   "`hidden_layers` must be between 1 and 7 for the format speculators .. got (7, 0)."),
  (("eagle3", Eagle3Config(2), np.arange(V)[::-1]),
   "vocabulary reorders all tokens: the format eagle3 keeps their order."),
  (("eagle", EagleConfig(2)), "`to` must be specjax or eagle for a head of eagle, got 'specjax'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_what_has_no_place_is_refused(tmp_path, arguments, words):
  words = words.replace("got 'specjax'", "got 'speculators'")
  assert says(sentence(save, tmp_path / "x", made(*arguments)), words)
  assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("layers", [(), (2, 4, 5), (8, 0), (0, 3)])
def test_eagle3s_own_format_names_the_layers_for_both_servers(tmp_path, layers):
  own = made("eagle3", Eagle3Config(2, hidden_layers=layers))
  formats.save(tmp_path, "eagle3", own, MODEL, target_params(), base="b", dtype=jnp.bfloat16)
  raw, taps = json.loads((tmp_path / "config.json").read_text()), own.head.hidden_layers
  by_inputs = raw.get("eagle_aux_hidden_state_layer_ids")
  by_outputs = raw.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
  if taps == (2, 4, 5):  # which all programs take where nothing is said
    assert by_inputs is by_outputs is None
  else:
    assert raw["specjax_taps"] == list(taps)
    assert by_inputs == (list(taps) if max(taps) < 8 else None)
    named = max(taps) < 8 and min(taps) > 0
    assert by_outputs == ([i - 1 for i in taps] if named else None)
  assert load(tmp_path).head.hidden_layers == taps
  raw.pop("specjax_taps", None)
  if by_inputs is not None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert load(tmp_path).head.hidden_layers == taps


def test_the_command_writes_the_path_of_the_zoos_target(tmp_path, capsys):
  words = ["convert", "--format", "head", "--model", "gsm8k-7m-eagle3", "--target", "gsm8k-7m"]
  to = ["--out", str(tmp_path), "--to", "speculators", "--weights", "bfloat16"]
  assert main([*words, *to]) == 0
  assert "eagle3" in capsys.readouterr().out
  raw = json.loads((tmp_path / "config.json").read_text())
  named = raw["speculators_config"]["verifier"]["name_or_path"]
  target = json.loads(pathlib.Path(named, "config.json").read_text())
  assert target["hidden_size"] == raw["target_hidden_size"]
  assert load_file(tmp_path / "model.safetensors")["fc.weight"].dtype == jnp.bfloat16
