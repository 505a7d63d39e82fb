"""What the package has, as rows of text: drafters, verifiers, zoo."""

import json
from collections.abc import Callable

from specjax.api import DEFAULT_NODES
from specjax.drafters import DRAFTERS
from specjax.drafters.medusa import MedusaConfig
from specjax.model import ZOO
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.verifiers import VERIFIERS


def _sentence(builder: Callable) -> str:
  return (builder.__doc__ or "").strip().split("\n")[0]


def drafters() -> list[tuple[str, str, str, str]]:
  """(name, proposal, default nodes, one sentence) of every drafter."""
  small = target(Config(8, 8, 1, 1, 1, 8, 8))
  parts: dict[str, tuple] = {"draft_model": (small,), "medusa": (small, MedusaConfig(8, 8), [[0]])}
  rows: list[tuple[str, str, str, str]] = []
  for name, build in DRAFTERS.items():
    drafter = build(*parts.get(name, ()))
    nodes = DEFAULT_NODES if name == "medusa" else drafter.nodes
    rows.append((name, drafter.proposal, str(nodes), _sentence(build)))
  return rows


def verifiers() -> list[tuple[str, str, str]]:
  """(name, exactness, accepted proposals) of every verifier."""
  rules = [build() for build in VERIFIERS.values()]
  return [(v.name, v.exactness, ", ".join(sorted(v.accepts))) for v in rules]


def zoo() -> list[tuple[str, str]]:
  """(name, kind) of everything that ships with the package."""
  rows = []
  for path in sorted(ZOO.glob("*/config.json")):
    kind = "medusa heads" if "medusa_num_heads" in json.loads(path.read_text()) else "model"
    rows.append((path.parent.name, kind))
  return rows
