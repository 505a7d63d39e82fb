"""Drafters, one file each. DRAFTERS guess by a rule or a model, HEADS from the target's states.

A draft model is `draft_model`, with a tree `draft_tree`, and with a policy `adaptive_model`.
"""

from collections.abc import Callable

from specjax.base import Drafter
from specjax.drafters.adaptive_model import adaptive_model
from specjax.drafters.aded import aded
from specjax.drafters.aggressive import aggressive
from specjax.drafters.base import Head
from specjax.drafters.blockwise import BlockwiseConfig, blockwise
from specjax.drafters.chimera import ChimeraConfig, chimera
from specjax.drafters.clover import CloverConfig, clover
from specjax.drafters.clover2 import Clover2Config, clover2
from specjax.drafters.ctc import CTCConfig, ctc
from specjax.drafters.denoiser import denoiser
from specjax.drafters.dflash import DFlashConfig, dflash
from specjax.drafters.draft_model import draft_model
from specjax.drafters.draft_tree import draft_tree
from specjax.drafters.dynamic_exit import dynamic_exit
from specjax.drafters.eagle import EagleConfig, eagle
from specjax.drafters.eagle3 import Eagle3Config, eagle3
from specjax.drafters.first_of import first_of
from specjax.drafters.forced import forced
from specjax.drafters.griffin import GriffinConfig, griffin
from specjax.drafters.hidden_transfer import HiddenTransferConfig, hidden_transfer
from specjax.drafters.history import history
from specjax.drafters.hydra import HydraConfig, hydra
from specjax.drafters.jacobi import jacobi
from specjax.drafters.jakiro import JakiroConfig, jakiro
from specjax.drafters.layerskip import layerskip
from specjax.drafters.lookahead import lookahead
from specjax.drafters.masked_slots import MaskedSlotsConfig, masked_slots
from specjax.drafters.medusa import MedusaConfig, medusa
from specjax.drafters.mlp_speculator import MLPSpeculatorConfig, mlp_speculator
from specjax.drafters.mtp import MTPConfig, mtp
from specjax.drafters.pard import PARDConfig, pard
from specjax.drafters.peagle import PEagleConfig, peagle
from specjax.drafters.ppd import PPDConfig, ppd
from specjax.drafters.prompt_lookup import prompt_lookup
from specjax.drafters.redrafter import ReDrafterConfig, redrafter
from specjax.drafters.rest import rest
from specjax.drafters.self_speculative import self_speculative
from specjax.drafters.speculative_jacobi import speculative_jacobi
from specjax.drafters.stateless import none, stateless
from specjax.drafters.swift import swift
from specjax.drafters.token_recycling import token_recycling
from specjax.drafters.union import union

__all__ = [
  "DRAFTERS", "HEADS", "adaptive_model", "aded", "aggressive", "denoiser", "draft_model",
  "draft_tree", "dynamic_exit", "first_of", "forced", "history", "jacobi", "layerskip", "lookahead",
  "none", "prompt_lookup", "rest", "self_speculative", "speculative_jacobi", "stateless", "swift",
  "token_recycling", "union",
]  # fmt: skip

DRAFTERS: dict[str, Callable[..., Drafter]] = {
  "none": none, "prompt_lookup": prompt_lookup, "draft_model": draft_model,
  "denoiser": denoiser, "token_recycling": token_recycling, "rest": rest, "history": history,
  "aggressive": aggressive, "aded": aded, "forced": forced,
  "jacobi": jacobi, "lookahead": lookahead, "speculative_jacobi": speculative_jacobi,
  "self_speculative": self_speculative, "swift": swift, "layerskip": layerskip,
  "del": dynamic_exit,
}  # fmt: skip

# name: (build, config class); build(target, config) -> Head
HEADS: dict[str, tuple[Callable[..., Head], type]] = {
  "medusa": (medusa, MedusaConfig), "blockwise": (blockwise, BlockwiseConfig),
  "chimera": (chimera, ChimeraConfig), "clover": (clover, CloverConfig),
  "clover2": (clover2, Clover2Config), "ctc": (ctc, CTCConfig),
  "hidden_transfer": (hidden_transfer, HiddenTransferConfig), "ppd": (ppd, PPDConfig),
  "masked_slots": (masked_slots, MaskedSlotsConfig),
  "eagle": (eagle, EagleConfig), "eagle3": (eagle3, Eagle3Config), "hydra": (hydra, HydraConfig),
  "mlp_speculator": (mlp_speculator, MLPSpeculatorConfig),
  "redrafter": (redrafter, ReDrafterConfig), "mtp": (mtp, MTPConfig),
  "jakiro": (jakiro, JakiroConfig), "griffin": (griffin, GriffinConfig),
  "dflash": (dflash, DFlashConfig), "pard": (pard, PARDConfig),
  "peagle": (peagle, PEagleConfig),
}  # fmt: skip
