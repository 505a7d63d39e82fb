"""Keys of files that other programs wrote: each is read, or harmless, or refused by its name."""

import fnmatch
from collections.abc import Collection, Mapping
from types import EllipsisType
from typing import Any

from specjax import checks

Harmless = Mapping[str, tuple[Any, ...] | EllipsisType]
"""Keys that change no output: at these values only, or at any (...). A key may have `*` and `?`."""

# What the base class of all configs of transformers keeps, and what training alone reads.
CONFIG: Harmless = {
  "_*": ..., "architectures": ..., "auto_map": ..., "model_type": ..., "transformers_version": ...,
  "torch_dtype": ..., "dtype": ..., "torchscript": ..., "use_bfloat16": ..., "use_cache": ...,
  "cache_implementation": ..., "attn_implementation": ..., "pretraining_tp": ...,
  "return_dict": ..., "output_attentions": ..., "output_hidden_states": ...,
  "output_router_logits": ..., "chunk_size_feed_forward": ..., "gradient_checkpointing": ...,
  "id2label": ..., "label2id": ..., "num_labels": ..., "problem_type": ..., "finetuning_task": ...,
  "task_specific_params": ..., "tokenizer_class": ..., "tf_legacy_loss": ..., "license": ...,
  "unsloth_fixed": ..., "unsloth_version": ..., "name_or_path": ..., "model_name": ...,
  "bos_token_id": ..., "pad_token_id": ..., "sep_token_id": ..., "unk_token_id": ...,
  "initializer_range": ..., "attention_dropout": ..., "hidden_dropout": ..., "resid_pdrop": ...,
  "embd_pdrop": ..., "attn_pdrop": ..., "embedding_dropout": ..., "residual_dropout": ...,
  "output_dropout": ..., "classifier_dropout": ..., "router_aux_loss_coef": ...,
  "router_jitter_noise": ...,
  # Features of networks that these have not, where they are switched off.
  "is_encoder_decoder": (False,), "add_cross_attention": (False,), "tie_encoder_decoder": (False,),
  "pruned_heads": ({},), "use_mrope": (False,), "logits_scaling": (1,), "logit_scale": (1,),
  "embedding_multiplier": (1,), "residual_multiplier": (1,), "mlp_bias": (False,),
  "attention_bias": (False,), "use_sliding_window": (False,), "partial_rotary_factor": (1,),
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
    patterns = [name for name in harmless if fnmatch.fnmatchcase(key, name)]
    if not patterns:
      checks.refuse(f"{where}: {key}", value, "a file without this key, which is not read and may "
                    "change the output: remove it where it does not")  # fmt: skip
    accepted = [harmless[name] for name in patterns]
    if not any(values is ... or value in values for values in accepted):
      neutral = {repr(x): None for values in accepted if values is not ... for x in values}
      checks.refuse(f"{where}: {key}", value, f"{' or '.join(neutral)}: it is not read")
