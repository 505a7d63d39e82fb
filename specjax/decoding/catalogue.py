"""What the package has, as rows of text: drafters, verifiers, zoo."""

import json
from collections.abc import Callable

from specjax.checkpoints import heads, medusa
from specjax.decoding.build import DEFAULT_NODES
from specjax.decoding.model import ZOO
from specjax.drafters import DRAFTERS, HEADS
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.verifiers import VERIFIERS


def _sentence(builder: Callable) -> str:
  return (builder.__doc__ or "").strip().split("\n")[0]


def drafters() -> list[tuple[str, str, str, str]]:
  """(name, proposal, default nodes, one sentence) of every drafter, the trained ones last."""
  small = target(Config(8, 8, 4, 1, 1, 8, 8))
  rows: list[tuple[str, str, str, str]] = []
  for name, build in DRAFTERS.items():
    drafter = build(small) if name == "draft_model" else build()
    rows.append((name, drafter.proposal, str(drafter.nodes), _sentence(build)))
  for name, (head, _) in HEADS.items():
    rows.append((name, "deterministic", str(DEFAULT_NODES), _sentence(head)))
  return rows


def verifiers() -> list[tuple[str, str, str]]:
  """(name, exactness, accepted proposals) of every verifier."""
  rules = [build() for build in VERIFIERS.values()]
  return [(v.name, v.exactness, ", ".join(sorted(v.accepts))) for v in rules]


def zoo() -> list[tuple[str, str]]:
  """(name, kind) of everything that ships with the package."""
  rows = []
  for path in sorted(ZOO.glob("*/config.json")):
    raw = json.loads(path.read_text())
    kind = "model" if raw.get("is_causal", True) else "masked diffusion model"
    if heads.recognises(raw):
      kind = f"{raw['head']} head"
    elif medusa.recognises(raw):
      kind = "medusa head"
    elif raw.get("policy") == "learned":
      kind = "filter of the policy learned"
    rows.append((path.parent.name, kind))
  return rows
