"""Domino heads on disk, as SpecForge trains them: DFlash's files with a GRU and two matrices.

`dflash_config` says their widths, how many depths have no correction, and, by `shift_label`,
whether the root's row guesses, too. The GRU is one of torch's, whose rows are its reset gate, its
update gate and its candidate.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import dflash, harmless, published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import Fusion, scatter
from specjax.heads.domino import DominoConfig
from specjax.heads.domino import domino as build
from specjax.models.config import Config
from specjax.models.transformer import target

ARCHITECTURES = ("DominoDraftModel",)
_WIDTH = functools.partial(checks.whole, least=1)
_OWN = {
  "gru_hidden_dim": _WIDTH, "emb_dim": _WIDTH, "pure_draft_prefix_len": checks.whole,
  "shift_label": bool,
}  # fmt: skip
_PLAIN: harmless.Harmless = {"projector_type": ("domino",)}


def layout(c: DominoConfig, network: Config) -> published.Layout:
  """The parameters."""
  E, V, G, R = network.width, network.vocab_size, c.state, c.rank
  return dflash.layout(c, network) | {
    ("gru_in",): [Fusion("prefix_gru.weight_ih_l0", (3 * G, E))],
    ("gru_own",): [Fusion("prefix_gru.weight_hh_l0", (3 * G, G))],
    ("correction_in",): [Fusion("embed_proj.0.weight", (R, E + G))],
    ("correction_out",): [Fusion("embed_proj.2.weight", (V, R))],
  }


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`, which drafts chains of the depth that it was trained for."""
  published.check_architecture(raw, ARCHITECTURES)
  where = f"{directory}/config.json"
  said, own = dflash.of_zlab(raw, where, model.layers, _OWN, _PLAIN)
  for key in ("gru_hidden_dim", "emb_dim"):
    if key not in own:
      raise ValueError(f"{where}: dflash_config lacks {key!r}.")
  network, mlp_width = dflash.network_of(raw, where, model)
  from_root = own.get("shift_label", False)
  config = DominoConfig(
    said.block_size - (not from_root),
    said.layers,
    said.hidden_layers,
    mlp_width,
    said.mask_token,
    from_root=from_root,
    state=own["gru_hidden_dim"],
    rank=own["emb_dim"],
    plain=own.get("pure_draft_prefix_len", 0),
  )
  path, tensors = published.read(directory, published.FILES)
  params = {"params": published.gather(tensors, layout(config, network), path, dtype)}
  return LoadedHead(build(target(network), config), params, (), None, config, network)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its mask is no token, its layers are not Qwen3's or have a window, or
  it reads the target's embeddings or last output."""
  c, network = loaded.config, loaded.network
  dflash.check_writable(c, network, "domino", first=1)
  more = {
    "projector_type": "domino",
    "gru_hidden_dim": c.state,
    "emb_dim": c.rank,
    "pure_draft_prefix_len": c.plain,
    "shift_label": c.from_root,
  }
  tensors = scatter(loaded.params, layout(c, network), dtype)
  return published.FILES[0], tensors, dflash.zlab_json(ARCHITECTURES[0], c, network, dtype, **more)
