"""Parallel decoding of language models: any way of guessing tokens, checked by any verifier."""

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
    "sampling": ("SamplingParams",),
    "base": (
      "Target",
      "StatesTarget",
      "LayeredTarget",
      "Drafter",
      "Draft",
      "Verifier",
      "Verdict",
      "Context",
      "Processor",
    ),
    "heads.base": ("Head",),
    "diffusion.base": ("Denoiser", "Policy", "Canvas", "Prediction"),
    "names.build.drafter": ("make_drafter",),
    "models.sharding": ("mesh",),
  }.items()
  for name in names
}
_MODULES = (
  "models", "heads", "drafters", "trees", "draft_length", "verifiers", "processors", "search",
  "diffusion", "serving", "checkpoints", "data", "eval", "testing",
)  # fmt: skip
__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str):
  if name in _MODULES:
    return importlib.import_module(f"specjax.{name}")
  if name not in _HOMES:
    raise AttributeError(f"module 'specjax' has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)
