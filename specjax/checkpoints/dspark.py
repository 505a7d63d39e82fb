"""DSpark heads on disk, as DeepSpec publishes them and speculators trains them.

In DeepSpec's files, `Qwen3DSparkModel`, config.json is that of a Qwen3 with the head's layers, and
beside its keys stand those of the head: which of the target's layers are read, counted by their
outputs, -1 being the embeddings, and a `block_size` that is the number of guesses, since the root's
row guesses, too. A `markov_rank` of 0 without a confidence is a DFlash head of this kind. In the
format of speculators, which `speculators` writes, the Qwen3 is `transformer_layer_config`. In
SpecForge's files, `DSparkDraftModel`, the head's keys are in `dflash_config`, as DFlash's; there is
no copy of the target's ends, and the root's row guesses, as its trainer has it.

The tensors are those of `dflash`, `markov_head.markov_w1` [V, R] and `markov_w2` [W, R], and
`confidence_head.proj`. The embedding and the LM head are copies of the target's, which the programs
that train them freeze; they are written, since DeepSpec's program has no other, and read by nobody
here.

Letters: L the target's layers, V vocabulary, W draft vocabulary, R rank, E width.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import dflash, eagle3_file, harmless, published
from specjax.checkpoints.heads import MOST, LoadedHead
from specjax.checkpoints.hf_layout import Fusion, scatter
from specjax.heads import embedding
from specjax.heads.context_block import layers_read
from specjax.heads.dflash import DFlashConfig
from specjax.heads.dflash import dflash as build_dflash
from specjax.heads.dspark import DSparkConfig
from specjax.heads.dspark import dspark as build
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.models.weights import dense

ARCHITECTURES, SPECFORGE = ("Qwen3DSparkModel",), ("DSparkDraftModel",)
_OF_SPECULATORS = ("DSparkDraftModel", "DSparkSpeculator")
_COUNT = functools.partial(checks.whole, least=1, most=MOST)
_SCHEMA = {
  "num_hidden_layers": published.COUNT, "layer_types": tuple[str, ...], "block_size": _COUNT,
  "mask_token_id": int, "markov_rank": checks.whole, "enable_confidence_head": bool,
  "confidence_head_with_markov": bool,
}  # fmt: skip


def _outputs(name: str, value: Any) -> tuple[int, ...]:
  """Layers by their outputs, -1 for the embeddings."""
  if not isinstance(value, list):
    checks.refuse(name, value, "a list of layers")
  return tuple(checks.whole(f"{name}[{i}]", x, -1) for i, x in enumerate(value))


_FLAT = _SCHEMA | {"target_layer_ids": _outputs}
_NESTED = _SCHEMA | {
  "aux_hidden_state_layer_ids": tuple[int, ...],
  "draft_vocab_size": functools.partial(checks.whole, least=1),
  "sample_from_anchor": bool,
}
# Keys that change the network, at the values that leave it as it is.
_PLAIN: harmless.Harmless = {
  "is_causal": (False,), "attention_bias": (False,), "markov_head_type": ("vanilla",),
  "topk_context": (0,), "topk_*": ..., "indexer_*": ..., "draft_adapter_rank": (0,),
}  # fmt: skip
_OF_SPECFORGE = {
  "markov_rank": checks.whole, "enable_confidence_head": bool, "confidence_head_with_markov": bool,
  "confidence_head_alpha": functools.partial(checks.number, least=0),
}  # fmt: skip
_FORGED: harmless.Harmless = {
  "projector_type": ("dspark",), "markov_head_type": ("vanilla",), "attention_mode": ("gqa", "mha"),
}  # fmt: skip
_BIGRAM = {"before": "markov_head.markov_w1.weight", "bias": "markov_head.markov_w2.weight"}
_SURE = "confidence_head.proj.weight", "confidence_head.proj.bias"


def layout(c: DFlashConfig | DSparkConfig, network: Config, words: int) -> published.Layout:
  """The parameters, those of DFlash where it has no bigram; W is `words`."""
  table = dflash.layout(c, network)
  if isinstance(c, DSparkConfig):
    for (key, name), rows in zip(_BIGRAM.items(), (network.vocab_size, words), strict=True):
      table[key,] = [Fusion(name, (rows, c.rank))]
    if c.confidence:
      reads = network.width + (c.rank if c.confidence_of_token else 0)
      table["confidence",] = [Fusion(_SURE[0], (1, reads))]
      table["confidence_bias",] = [Fusion(_SURE[1], (1,))]
  return table


def bigram_json(c: DSparkConfig) -> dict[str, Any]:
  """What config.json says of the bigram and the confidence."""
  return {
    "markov_rank": c.rank,
    "markov_head_type": "vanilla",
    "enable_confidence_head": c.confidence,
    "confidence_head_with_markov": c.confidence_of_token,
  }


def _config(own: Mapping[str, Any], taps: tuple[int, ...], mlp_width: int, where: str) -> Any:
  """The head's config, DFlash's where it has no bigram and no confidence."""
  from_root = own.get("sample_from_anchor", True)
  depth = own["block_size"] if from_root else own["block_size"] - 1
  checks.whole(f"{where}: block_size", own["block_size"], 1 if from_root else 2)
  shape = (depth, own["num_hidden_layers"], taps, mlp_width, own["mask_token_id"])
  rank, sure = own["markov_rank"], own.get("enable_confidence_head", False)
  if rank == 0 and not sure:
    return DFlashConfig(*shape, from_root=from_root)
  if rank == 0:
    checks.refuse(f"{where}: markov_rank", rank, "1 or more beside a confidence")
  of_token = own.get("confidence_head_with_markov", True) if sure else True
  return DSparkConfig(
    *shape, rank=rank, confidence=sure, from_root=from_root, confidence_of_token=of_token
  )


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`, which drafts chains of the depth that it was trained for.

  The output of the target's last layer is refused: programs differ in whether it is normed.
  """
  where, L = f"{directory}/config.json", model.layers
  if "dflash_config" in raw:
    published.check_architecture(raw, SPECFORGE)
    said, inner = dflash.of_zlab(raw, where, L, _OF_SPECFORGE, _FORGED)
    own = {"markov_rank": 0, "confidence_head_with_markov": False, **inner}
    own.setdefault("enable_confidence_head", own.get("confidence_head_alpha", 0) > 0)
    return _loaded(own, said.hidden_layers, raw, directory, model, dtype)
  nested = eagle3_file.KIND in raw
  published.check_architecture(raw, _OF_SPECULATORS if nested else ARCHITECTURES)
  schema = _NESTED if nested else _FLAT
  raw = published.in_one_piece(raw, where)
  known = {eagle3_file.KIND, "num_target_layers", *schema}
  published.check_keys(raw, where, known, _PLAIN)
  if raw.get("num_target_layers") not in (None, L):
    checks.refuse(f"{where}: num_target_layers", raw["num_target_layers"], f"{L}, the target's")
  optional = ("layer_types", "enable_confidence_head", "confidence_head_with_markov")
  own = checks.fields_of(raw, schema, where, [key for key in schema if key not in optional])
  ids, first = (own["aux_hidden_state_layer_ids"], 0) if nested else (own["target_layer_ids"], -1)
  for i in ids:
    checks.whole(f"{where}: layer", i, first, L - 1 + first, "not the last layer's output")
  return _loaded(own, tuple(i - first for i in ids), raw, directory, model, dtype)


def _loaded(
  own: Mapping[str, Any],
  taps: tuple[int, ...],
  raw: Mapping[str, Any],
  directory: Path,
  model: Config,
  dtype: DTypeLike,
) -> LoadedHead:
  """The head of what config.json says of it, `own`, and of its Qwen3, `raw`."""
  where = f"{directory}/config.json"
  network, mlp_width = dflash.network_of(raw, where, model)
  config = _config(own, taps, mlp_width, where)
  words = own.get("draft_vocab_size", model.vocab_size)
  path, tensors = published.read(directory, published.FILES)
  frozen = {"lm_head.weight": (words, model.width),
            published.EMBEDDING: (model.vocab_size, model.width)}  # fmt: skip
  table = layout(config, network, words)
  params: Params = eagle3_file.gather(tensors, table, words, model, path, dtype, unused=frozen)
  made = build if isinstance(config, DSparkConfig) else build_dflash
  return LoadedHead(made(target(network), config), params, (), None, config, network)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head as DeepSpec has it; ValueError where its mask is no token, its layers are not Qwen3's,
  have a window or a draft vocabulary, the root does not guess, or it reads the last output."""
  config, network = loaded.config, loaded.network
  tensors = _tensors(loaded, "dspark", 0, dtype)
  model = target(network)
  copies = {
    "lm_head.weight": dense(model.lm_head(target_params)),
    published.EMBEDDING: embedding.of_target(model, target_params),
  }
  tensors |= {k: np.asarray(jnp.asarray(x, dtype)) for k, x in copies.items()}
  raw = dflash.network_json(config, network, dtype) | {
    "architectures": [ARCHITECTURES[0]],
    "block_size": config.depth,
    "mask_token_id": config.mask_token,
    "target_layer_ids": [i - 1 for i in layers_read(network.layers, config)],
    "num_anchors": 512,
    **bigram_json(config),
    "num_target_layers": network.layers,
  }
  return published.FILES[0], tensors, raw


def encode_specforge(loaded: LoadedHead, dtype: DTypeLike) -> published.Encoded:
  """A head as SpecForge has it; ValueError as `encode`, and where the embeddings are read."""
  config, network = loaded.config, loaded.network
  tensors = _tensors(loaded, "specforge", 1, dtype)
  mode = "mha" if network.heads == network.kv_heads else "gqa"  # it accepts no other
  more = bigram_json(config) | {"projector_type": "dspark", "attention_mode": mode}
  return published.FILES[0], tensors, dflash.zlab_json(SPECFORGE[0], config, network, dtype, **more)


def _tensors(loaded: LoadedHead, form: str, first: int, dtype: DTypeLike) -> published.Tensors:
  config, network = loaded.config, loaded.network
  dflash.check_writable(config, network, form, first)
  if not config.from_root:
    raise ValueError(f"`from_root` must be True for the format {form}, got False.")
  return scatter(loaded.params, layout(config, network, network.vocab_size), dtype)
