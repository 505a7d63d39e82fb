"""Heads in the format of the package speculators, from which `vllm serve HEAD` starts.

The tensors are those of `eagle3_file`, `dflash` and `dspark`, and all layers are `layers.{i}`.
config.json is in two parts: `transformer_layer_config` is that of a Llama or a Qwen3 with the
head's layers, and beside it stand the keys of the head, all of which are written, for programs
differ in what they take for one that is absent. `speculators_config` says how many tokens a round
has and which model is the target: a server is given the head alone and finds the target there. The
target's layers are counted by their inputs.

The formats of the four heads read these files.

Letters: L the target's layers, V vocabulary, W draft vocabulary, E width.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax.base import Params
from specjax.checkpoints import dflash, dspark, eagle3, eagle3_file, hf_config, peagle, published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import scatter
from specjax.heads import draft_vocabulary, embedding
from specjax.heads.context_block import layers_read
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.models.weights import dense

FORM = "speculators"
HEADS = {
  "eagle3": "Eagle3DraftModel",
  "peagle": "PEagleDraftModel",
  "dflash": "DFlashDraftModel",
  "dspark": "DSparkDraftModel",
}
# Keys of EAGLE's files that stand beside the layer, and one that says the same by outputs.
_BESIDE = {
  "torch_dtype", "draft_vocab_size", "mask_token_id", "num_depths", "specjax_depth",
  "specjax_taps", *eagle3_file.OPTIONS,
}  # fmt: skip
_ELSEWHERE = {"architectures", "eagle_config", "ptd_token_id", "eagle_aux_hidden_state_layer_ids"}


def encode(
  loaded: LoadedHead, target_params: Params, model: Config, name: str, dtype: DTypeLike
) -> published.Encoded:
  """A head for the target `model`, which servers load by its `name`.

  Raises:
    ValueError: a head that the format has no place for: of another kind, with a window or with
      biases, which reads the last layer's output, whose draft vocabulary has all tokens in another
      order, or what `dflash.check_writable` refuses.
  """
  kind, config = loaded.head.name, loaded.config
  if config.window is not None:
    raise ValueError(f"`window` must be None for the format {FORM}, got {config.window}.")
  of_block = kind in ("dflash", "dspark")
  tensors, layer, own = (_of_block if of_block else _of_eagle)(loaded, target_params, dtype)
  raw = {
    "architectures": [HEADS[kind]],
    "speculators_model_type": kind,
    "speculators_config": {
      "algorithm": kind,
      "default_proposal_method": "greedy",
      "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.depth}],
      "verifier": {
        "name_or_path": name,
        "architectures": hf_config.to_json(model)["architectures"],
      },
    },
    "torch_dtype": jnp.dtype(dtype).name,
    "tie_word_embeddings": False,
    **own,
    "transformer_layer_config": layer,
  }
  return published.FILES[0], tensors, raw


def _of_eagle(
  loaded: LoadedHead, target_params: Params, dtype: DTypeLike
) -> tuple[published.Tensors, dict[str, Any], dict[str, Any]]:
  """(tensors, the config of the layers, the keys of the head) of EAGLE-3 and P-EAGLE."""
  c, L = loaded.config, loaded.network.layers
  if c.attention_bias:
    raise ValueError(
      f"`attention_bias` must be False for the format {FORM}, whose layers then have one after "
      "attention, too, got True."
    )
  layers = hidden_layers_of(L, c.hidden_layers)
  if max(layers) >= L:
    raise ValueError(
      f"`hidden_layers` must be between 0 and {L - 1} for the format {FORM}, as each is a layer's "
      f"input, got {layers}."
    )
  form = eagle3 if loaded.head.name == "eagle3" else peagle
  _, tensors, raw = form.encode(loaded, target_params, dtype)
  tensors = {k.replace("midlayer.", "layers.0."): x for k, x in tensors.items()}
  own = {name: getattr(c, name, False) for name in eagle3_file.OPTIONS}
  own |= {k: x for k, x in raw.items() if k in _BESIDE}
  own |= {"target_hidden_size": loaded.network.width}
  own |= {"eagle_aux_hidden_state_layer_ids": list(layers)}
  layer = {k: x for k, x in raw.items() if k not in _BESIDE | _ELSEWHERE}
  return tensors, layer, own


def _of_block(
  loaded: LoadedHead, target_params: Params, dtype: DTypeLike
) -> tuple[published.Tensors, dict[str, Any], dict[str, Any]]:
  """The same of DFlash and DSpark, with the copies of the target's ends that its program makes."""
  c, network = loaded.config, loaded.network
  layers = layers_read(network.layers, c)
  dflash.check_writable(c, network, FORM, first=int(loaded.head.name == "dflash"))
  words, tables = eagle3_file.tables(loaded.params, network.vocab_size, FORM)
  model, ids = target(network), draft_vocabulary.ids(loaded.params)
  head = np.asarray(dense(model.lm_head(target_params)))
  copies = {
    "lm_head.weight": head if ids is None else head[np.asarray(ids)],
    published.EMBEDDING: embedding.of_target(model, target_params),
  }
  tensors = scatter(loaded.params, dspark.layout(c, network, words), dtype) | tables
  tensors |= {k: np.asarray(jnp.asarray(x, dtype)) for k, x in copies.items()}
  own: dict[str, Any] = {
    "block_size": c.depth if c.from_root else c.depth + 1,
    "sample_from_anchor": c.from_root,
    "mask_token_id": c.mask_token,
    "draft_vocab_size": words,
    "aux_hidden_state_layer_ids": list(layers),
  }
  if loaded.head.name == "dspark":
    own |= dspark.bigram_json(c)
  layer = dflash.network_json(c, network, dtype)
  return tensors, {k: x for k, x in layer.items() if k != "architectures"}, own
