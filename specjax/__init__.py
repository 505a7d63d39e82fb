"""Parallel decoding of language models: any way of guessing tokens, checked by any rule."""

import importlib
import pathlib

__version__ = "0.1.0"

# In a checkout kernels, train and configs lie beside this folder; installed, they lie inside it.
_CHECKOUT = pathlib.Path(__file__).parents[1]
if (_CHECKOUT / "kernels" / "tree_attention").is_dir():
  __path__.append(str(_CHECKOUT))

# Found on first use: importing jax takes a second that `specjax --help` need not wait for.
_HOMES = {
  name: f"specjax.{module}"
  for module, names in {
    "names.load": ("load", "Model"),
    "decoding.decoder": ("generate", "Decoder"),
    "decoding.diffusion_decoder": ("DiffusionDecoder",),
    "decoding.batching": ("Result",),
    "base": (
      "Target", "StatesTarget", "LayeredTarget", "Drafter", "Draft", "Verifier", "Verdict",
      "Context", "Processor",
    ),
    "heads.base": ("Head",),
    "diffusion.base": ("Denoiser", "Policy", "Canvas", "Prediction"),
    "names.build.drafter": ("make_drafter",),
    "models.sharding": ("mesh",),
    "search.adadec": ("adadec",),
    "search.beam_search": ("beam_search",),
    "search.best_of": ("best_of",),
    "search.cntp": ("cntp",),
    "search.constrained": ("constrained",),
    "search.pearl_decoder": ("PearlDecoder",),
    "search.superposed": ("superposed",),
    "search.switching": ("switching",),
  }.items()
  for name in names
}  # fmt: skip
__all__ = list(_HOMES)


def __getattr__(name: str):
  if name not in _HOMES:
    raise AttributeError(f"module 'specjax' has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)
