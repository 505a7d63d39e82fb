"""Parallel decoding of language models: any way of guessing tokens, checked by any rule."""

from specjax.api import Decoder, Result, generate, make_drafter
from specjax.model import Model, load

__all__ = ["Decoder", "Model", "Result", "generate", "load", "make_drafter"]
__version__ = "0.1.0"
