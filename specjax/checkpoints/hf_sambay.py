"""SambaY over gated delta nets, in a layout of our own: Qwen3.5's, with gated memory units.

Phi-4-mini-flash has Mamba-1 and differential attention, which no layer here has: it is not read.
"""

import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_qwen_next import QWEN_NEXT
from specjax.checkpoints.hf_rows import Found, Row, kinds_of
from specjax.models.config import Config
from specjax.models.gated_memory import decoder_hybrid_decoder

_FIRST = "self_decoder_layers"
_QWEN = QWEN_NEXT["qwen3_5_text"]


def _read(found: Found) -> dict[str, Any]:
  own = _QWEN.read(found)
  if _FIRST not in found.known or "kinds" not in own:
    checks.refuse(f"{found.where}: {_FIRST}", found.known.get(_FIRST), "a number of layers")
  return own | {"kinds": decoder_hybrid_decoder(own["kinds"], found.known[_FIRST])}


def _write(c: Config) -> dict[str, Any]:
  crossing = (i for i, kind in enumerate(kinds_of(c)) if kind.source is not None)
  return _QWEN.write(c) | {_FIRST: next(crossing, None)}


_NAMES = {
  "memory_gate": "gated_memory.in_proj", "memory_norm": "gated_memory.norm",
  "memory_out": "gated_memory.out_proj",
}  # fmt: skip
SAMBAY: dict[str, Row] = {
  "specjax_sambay": _QWEN._replace(
    architecture="SambaY",
    names={**_QWEN.names, **_NAMES},
    read=_read,
    write=_write,
    keys={**_QWEN.keys, _FIRST: functools.partial(checks.whole, least=1)},
    spare=(),
  )
}
