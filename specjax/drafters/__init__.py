"""Drafters, one file each, which guess by a rule or a model; heads guess from the target's states.

A draft model is `draft_model`, with a tree `draft_tree`, and with a policy `adaptive_model`.
"""

from collections.abc import Callable

from specjax.base import Drafter
from specjax.drafters.combine.fallback import fallback
from specjax.drafters.combine.union import union
from specjax.drafters.jacobi.jacobi import jacobi
from specjax.drafters.jacobi.lookahead import lookahead
from specjax.drafters.jacobi.speculative_jacobi import speculative_jacobi
from specjax.drafters.layers.dynamic_exit import dynamic_exit
from specjax.drafters.layers.layerskip import layerskip
from specjax.drafters.layers.self_speculative import self_speculative
from specjax.drafters.layers.swift import swift
from specjax.drafters.models.adaptive_model import adaptive_model
from specjax.drafters.models.denoiser import denoiser
from specjax.drafters.models.draft_model import draft_model
from specjax.drafters.models.draft_tree import draft_tree
from specjax.drafters.retrieval.aded import aded
from specjax.drafters.retrieval.aggressive import aggressive
from specjax.drafters.retrieval.forced import forced
from specjax.drafters.retrieval.history import history
from specjax.drafters.retrieval.prompt_lookup import prompt_lookup
from specjax.drafters.retrieval.rest import rest
from specjax.drafters.retrieval.token_recycling import token_recycling
from specjax.drafters.retrieval.trie import suffix_decoding, trie
from specjax.drafters.stateless import none, stateless

__all__ = [
  "DRAFTERS", "adaptive_model", "aded", "aggressive", "denoiser", "draft_model",
  "draft_tree", "dynamic_exit", "fallback", "forced", "history", "jacobi", "layerskip", "lookahead",
  "none", "prompt_lookup", "rest", "self_speculative", "speculative_jacobi", "stateless",
  "suffix_decoding", "swift", "token_recycling", "trie", "union",
]  # fmt: skip

DRAFTERS: dict[str, Callable[..., Drafter]] = {
  "none": none, "prompt_lookup": prompt_lookup, "draft_model": draft_model,
  "denoiser": denoiser, "token_recycling": token_recycling, "rest": rest, "history": history,
  "trie": trie, "suffix_decoding": suffix_decoding,
  "aggressive": aggressive, "aded": aded, "forced": forced,
  "jacobi": jacobi, "lookahead": lookahead, "speculative_jacobi": speculative_jacobi,
  "self_speculative": self_speculative, "swift": swift, "layerskip": layerskip,
  "del": dynamic_exit,
}  # fmt: skip
