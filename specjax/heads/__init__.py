"""Draft heads, one file each, which guess from the target's states."""

from collections.abc import Callable

from specjax.heads.base import Head
from specjax.heads.blockwise import BlockwiseConfig, blockwise
from specjax.heads.chimera import ChimeraConfig, chimera
from specjax.heads.clover import CloverConfig, clover
from specjax.heads.clover2 import Clover2Config, clover2
from specjax.heads.ctc import CTCConfig, ctc
from specjax.heads.dflash import DFlashConfig, dflash
from specjax.heads.domino import DominoConfig, domino
from specjax.heads.dspark import DSparkConfig, dspark
from specjax.heads.eagle import EagleConfig, eagle
from specjax.heads.eagle3 import Eagle3Config, eagle3
from specjax.heads.gemma4_assistant import Gemma4AssistantConfig, gemma4_assistant
from specjax.heads.griffin import GriffinConfig, griffin
from specjax.heads.hidden_transfer import HiddenTransferConfig, hidden_transfer
from specjax.heads.hydra import HydraConfig, hydra
from specjax.heads.jakiro import JakiroConfig, jakiro
from specjax.heads.masked_slots import MaskedSlotsConfig, masked_slots
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.heads.mlp_speculator import MLPSpeculatorConfig, mlp_speculator
from specjax.heads.mtp import MTPConfig, mtp
from specjax.heads.pard import PARDConfig, pard
from specjax.heads.peagle import PEagleConfig, peagle
from specjax.heads.ppd import PPDConfig, ppd
from specjax.heads.redrafter import ReDrafterConfig, redrafter

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
  "peagle": (peagle, PEagleConfig), "dspark": (dspark, DSparkConfig),
  "domino": (domino, DominoConfig),
  "gemma4_assistant": (gemma4_assistant, Gemma4AssistantConfig),
}  # fmt: skip
