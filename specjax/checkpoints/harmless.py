"""Keys of files that other programs wrote: each is read, or harmless, or refused by its name."""

import fnmatch
import json
from collections.abc import Collection, Mapping
from types import EllipsisType
from typing import Any

from specjax import checks

Harmless = Mapping[str, tuple[Any, ...] | EllipsisType]
"""Keys that change no output: at these values only, or at any (...). A key may have `*`, for all
keys that are not here by their whole name."""

# config.json: what the base class of all configs of transformers keeps, what training alone reads,
# and the settings of sampling that old files keep here; a caller of ours gives its own.
_SAMPLING: Harmless = {
  "do_sample": ..., "temperature": ..., "top_k": ..., "top_p": ..., "min_p": ..., "typical_p": ...,
  "top_h": ..., "epsilon_cutoff": ..., "eta_cutoff": ..., "repetition_penalty": ...,
  "max_length": ..., "max_new_tokens": ..., "num_return_sequences": ..., "penalty_alpha": ...,
  "renormalize_logits": ..., "remove_invalid_values": ..., "early_stopping": ...,
  "length_penalty": ..., "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0,),
  "min_length": (0,), "min_new_tokens": (0,), "no_repeat_ngram_size": (0,),
  "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1,),
  "guidance_scale": (1,), "token_healing": (False,), "bad_words_ids": ([],),
  "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "stop_strings": ([],),
}  # fmt: skip
CONFIG: Harmless = {
  **_SAMPLING,
  "_*": ..., "architectures": ..., "auto_map": ..., "model_type": ..., "transformers_version": ...,
  "torch_dtype": ..., "dtype": ..., "torchscript": ..., "use_bfloat16": ..., "use_cache": ...,
  "cache_implementation": ..., "attn_implementation": ..., "pretraining_tp": ...,
  "return_dict": ..., "return_dict_in_generate": ..., "output_*": ..., "init_*": ...,
  "chunk_size_feed_forward": ..., "gradient_checkpointing": ..., "id2label": ..., "label2id": ...,
  "num_labels": ..., "problem_type": ..., "finetuning_task": ..., "task_specific_params": ...,
  "tokenizer_class": ..., "tf_legacy_loss": ..., "license": ..., "unsloth_*": ...,
  "name_or_path": ..., "model_name": ..., "prefix": ..., "bos_token_id": ..., "pad_token_id": ...,
  "sep_token_id": ..., "unk_token_id": ..., "initializer_range": ..., "attention_dropout": ...,
  "hidden_dropout": ..., "resid_pdrop": ..., "embd_pdrop": ..., "attn_pdrop": ...,
  "embedding_dropout": ..., "residual_dropout": ..., "classifier_dropout": ...,
  "router_aux_loss_coef": ..., "router_jitter_noise": ..., "max_sequence_length": ...,
  "attention_probs_dropout_prob": ..., "is_llama_config": ..., "transformers.js_config": ...,
  # Features of networks that these have not, where they are switched off.
  "is_encoder_decoder": (False,), "is_decoder": ..., "add_cross_attention": (False,),
  "tie_encoder_decoder": (False,), "pruned_heads": ({},), "use_mrope": (False,),
  "logits_scaling": (1,), "logit_scale": (1,), "embedding_multiplier": (1,),
  "residual_multiplier": (1,), "mlp_bias": (False,), "attention_bias": (False,),
  "qkv_bias": (False,), "use_sliding_window": (False,), "partial_rotary_factor": (1,),
  "rope_interleaved": (False,), "use_parallel_residual": (False,), "clip_qkv": (0,),
  "num_nextn_predict_layers": (0,), "shared_expert_intermediate_size": (0,),
  "spd_type": ("pard",),
}  # fmt: skip
# What the published files of a family have beside these.
_SDAR: Harmless = {"debug": ..., "ep_size": ..., "fuse_cross_entropy": ..., "micro_forward": ...,
                   "skip_checkpoint": ...}  # fmt: skip
FAMILIES: Mapping[str, Harmless] = {
  "llada": {
    "alibi_bias_max": ..., "attention_layer_norm_with_affine": ..., "bias_for_layer_norm": (False,),
    "block_group_size": ..., "flash_attention": ..., "input_emb_norm": (False,),
    "layer_norm_with_affine": (True,), "mlp_ratio": ..., "multi_query_attention": (False,),
    "precision": ..., "rope_full_precision": ..., "vocab_size": ...,
  },
  "qwen3_moe": {"use_qk_norm": (True,)},
  "sdar": _SDAR,
  "sdar_moe": {**_SDAR, "use_qk_norm": (True,)},
  "llada2_moe": {
    "moe_router_enable_expert_bias": (True,), "mtp_loss_scaling_factor": ...,
    "multi_gate": (False,), "norm_softmax": (False,), "router_dtype": ..., "use_rmsnorm": (True,),
    "using_split_qkv_in_self_attention": (False,),
    "sliding_window": ...,  # which its program does not read
  },
}  # fmt: skip
# What programs that train and run draft heads add to these.
HEADS: Harmless = {
  "base_model_name_or_path": ..., "eos_token_id": ..., "tie_word_embeddings": ..., "version": ...,
  "target_model_type": ..., "reuse_target_lm_head": ..., "additional_fc": (False,),
  "speculators_version": ..., "speculators_config": ..., "trained_for": ...,
  "specjax_template": ..., "embed_requires_grad": ..., "has_no_defaults_at_init": ...,
  "ttt_*": ..., "loss_*": ..., "dropout_rate": ..., "draft_attn_impl": ..., "max_anchors": ...,
  "num_anchors": ...,
  "sliding_window_non_causal": (False,), "is_causal": (True,),
}  # fmt: skip
# The rest of a target's config.json, which files of Medusa and Hydra repeat: they have no layer.
OF_TARGET: Harmless = {"attention_bias": ..., "qkv_bias": ..., "num_local_experts": ...,
                       "num_experts_per_tok": ...}  # fmt: skip
# Of the scaling of rotary frequencies; a text has the same position in all sections of mrope.
ROPE: Harmless = {"finetuned": ..., "mrope_*": ..., "attn_factor": (1,),
                  "extrapolation_factor": (1,), "factor": (1,)}  # fmt: skip
GENERATION: Harmless = {
  **_SAMPLING,
  "_*": ..., "transformers_version": ..., "use_cache": ..., "use_mtp": ..., "cache_*": ...,
  "max_cache_len": ..., "max_time": ..., "output_*": ..., "return_dict_in_generate": ...,
  "bos_token_id": ..., "pad_token_id": ..., "decoder_start_token_id": ..., "trust_remote_code": ...,
  "is_assistant": ..., "num_assistant_tokens*": ..., "assistant_*": ..., "target_lookbehind": ...,
  "prompt_lookup_num_tokens": ..., "max_matching_ngram_size": ..., "speculation_type": ...,
  "compile_config": ..., "disable_compile": ..., "continuous_batching_config": ...,
  "low_memory": ..., "prefill_chunk_size": ..., "chat_format": ..., "max_window_size": ...,
  # What denoisers are asked for.
  "mask_token_id": ..., "steps": ..., "eps": ..., "alg": ..., "alg_temp": ..., "block_length": ...,
  "gen_length": ..., "cfg_scale": ..., "remasking": ..., "threshold": ...,
}  # fmt: skip
# What is said about batches (prompts are never cut or padded), of programs, and of tokens whose ids
# tokenizer.json has. `clean_up_tokenization_spaces` rewrites texts, and the text is what was said.
TOKENIZER: Harmless = {
  "_*": ..., "*_token": ..., "*_token_id": ..., "*_token_type_id": ..., "*_tokens": ...,
  "auto_map": ..., "backend": ..., "clean_up_tokenization_spaces": ..., "chat_template_*": ...,
  "device_map": ..., "errors": ..., "from_slow": ..., "is_local": ..., "legacy": ...,
  "local_files_only": ..., "max_length": ..., "model_input_names": ..., "model_max_length": ...,
  "model_type": ..., "name_or_path": ..., "pad_to_multiple_of": ..., "padding*": ...,
  "processor_class": ..., "revision": ..., "sp_model_kwargs": ({},),
  "spaces_between_special_tokens": ..., "special_tokens_map_file": ..., "stride": ...,
  "tokenizer_class": ..., "tokenizer_file": ..., "tokenizer_type": ..., "tool_*": ...,
  "torch_dtype": ..., "transformers_version": ..., "truncation*": ..., "trust_remote_code": ...,
  "trim_offsets": ..., "unsloth_*": ..., "use_auth_token": ..., "vocab_file": ...,
  "merges_file": ..., "init_inputs": ..., "max_len": ...,
  "use_default_system_prompt": ..., "use_fast": ..., "vocab_size": ...,
  "response_schema": ..., "token_type_ids_*": ...,
  "add_eos_token": (False,), "add_sep_token": (False,), "do_lower_case": (False,),
  "fix_mistral_regex": (False,), "split_special_tokens": (False,),
}  # fmt: skip
# After the architecture's name: what llama.cpp reads of other families only, at its own defaults.
GGUF: Harmless = {
  "GGUF.*": ..., "general.*": ..., "general.type": ("model",), "quantize.*": ...,
  "split.tensors.count": ...,
  "tokenizer.huggingface.json": ..., "tokenizer.chat_templates": ...,
  "tokenizer.chat_template.*": ...,
  "*.tensor_data_layout": ..., "*.expert_used_count": (0,), "*.use_parallel_residual": (False,),
  "*.pooling_type": (0,), "*.logit_scale": (0, 1), "*.residual_scale": (0, 1),
  "*.embedding_scale": (0, 1), "*.attention.scale": (0,), "*.attention.output_scale": (0,),
  "*.attention.clamp_kqv": (0,), "*.attention.max_alibi_bias": (0,),
  "*.attn_logit_softcapping": (0,), "*.final_logit_softcapping": (0,),
  "*.rope.dimension_sections": ...,  # a text has the same position in all
  "*.rope.scaling.finetuned": ..., "*.rope.scaling.yarn_ext_factor": (-1, 1),
  "*.rope.scaling.yarn_attn_factor": (1,), "*.rope.scaling.yarn_beta_fast": (32,),
  "*.rope.scaling.yarn_beta_slow": (1,), "*.rope.scaling.yarn_log_multiplier": (0,),
  **{f"tokenizer.ggml.{name}_token_id": ... for name in (
    "unknown", "padding", "seperator", "separator", "cls", "prefix", "suffix", "middle", "fim_pre",
    "fim_suf", "fim_mid",
  )},
  "tokenizer.ggml.token_type_count": ..., "tokenizer.ggml.precompiled_charsmap": ([],),
  "tokenizer.ggml.add_eos_token": (False,), "tokenizer.ggml.add_sep_token": (False,),
  "tokenizer.ggml.remove_extra_whitespaces": (False,),
}  # fmt: skip


def known_keys(
  raw: Mapping[str, Any], where: str, used: Collection[str], harmless: Harmless = CONFIG
) -> None:
  """Raises ValueError for a key that nothing reads and that could change what a model says.

  Args:
    raw: the object of a file; a key whose value is null says nothing.
    where: the file, for messages.
    used: keys that the caller reads.
    harmless: keys that it need not read, such as `CONFIG` for a config.json; more are joined by
      `{**CONFIG, "key": (value,)}`.
  """
  for key, value in raw.items():
    if value is None or key in used:
      continue
    patterns = [key] if key in harmless else [x for x in harmless if fnmatch.fnmatchcase(key, x)]
    if not patterns:
      checks.refuse(
        f"{where}: {key}",
        value,
        "left out, as it is not read and may change the output",
      )
    accepted = [harmless[name] for name in patterns]
    if not any(values is ... or value in values for values in accepted):
      neutral = {json.dumps(x): None for values in accepted if values is not ... for x in values}
      checks.refuse(f"{where}: {key}", value, f"{' or '.join(neutral)}, for nothing else is read")
