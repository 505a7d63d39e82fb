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
    "decoding.decoder": ("Decoder", "generate"),
    "decoding.adadec": ("adadec",),
    "decoding.beam_search": ("beam_search",),
    "decoding.best_of": ("best_of",),
    "decoding.cntp": ("cntp",),
    "decoding.constrained": ("constrained",),
    "decoding.diffusion_decoder": ("DiffusionDecoder",),
    "decoding.batching": ("Result",),
    "decoding.builders.drafter": ("make_drafter",),
    "decoding.model": ("Model", "load"),
    "decoding.pearl_decoder": ("PearlDecoder",),
    "decoding.superposed": ("superposed",),
    "decoding.switching": ("switching",),
    "models.sharding": ("mesh",),
  }.items()
  for name in names
}
__all__ = list(_HOMES)


def __getattr__(name: str):
  if name not in _HOMES:
    raise AttributeError(f"module 'specjax' has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)
