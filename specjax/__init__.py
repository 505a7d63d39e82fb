"""Parallel decoding of language models: any way of guessing tokens, checked by any rule."""

import importlib

__version__ = "0.1.0"

# Found on first use: importing jax takes a second that `specjax --help` need not wait for.
_HOMES = {
  "Decoder": "specjax.api", "Result": "specjax.api", "generate": "specjax.api",
  "make_drafter": "specjax.parts", "Model": "specjax.model", "load": "specjax.model",
  "DiffusionDecoder": "specjax.diffusion.decoder", "Filled": "specjax.diffusion.decoder",
}  # fmt: skip
__all__ = list(_HOMES)


def __getattr__(name: str):
  if name not in _HOMES:
    raise AttributeError(f"module 'specjax' has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)
