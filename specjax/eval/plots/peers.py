"""Bars of the time of a token in several programs, see benchmarks/speed/peers.py."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from specjax.eval.plots import style
from specjax.eval.plots.style import COLOURS, INK


def bars(summary: Mapping[str, Any]) -> Figure:
  """A bar per contender with its 95% interval, a colour per program, plain decoding lighter."""
  found = summary["contenders"]
  programs = list(dict.fromkeys(name.partition(",")[0] for name in found))
  names = [name for p in programs for name in found if name.partition(",")[0] == p]
  figure, (axes,) = style.panels(9, 1.3 + 0.44 * len(names))
  most = max(max(m["ms_per_token_interval"] or (m["ms_per_token"],)) for m in found.values())
  for row, name in enumerate(names):
    m, plain = found[name], name in programs
    colour = COLOURS[programs.index(name.partition(",")[0]) % len(COLOURS)]
    axes.barh(row, m["ms_per_token"], 0.66, color=colour, alpha=0.55 if plain else 1)
    if m["ms_per_token_interval"]:
      axes.plot(m["ms_per_token_interval"], [row, row], "|-", color=INK, linewidth=1.2)
    said = f"{m['ms_per_token']:.1f}"
    if not plain:
      said += f"   {m['over_own_plain']:.2f}\u00d7 its plain"
    end = max(m["ms_per_token_interval"] or (m["ms_per_token"],))
    axes.annotate(
      said, (end, row), (6, 0), textcoords="offset points", va="center", fontsize=10.5, color=INK
    )
  axes.set_yticks(range(len(names)), names)
  axes.invert_yaxis()
  axes.spines[["left", "bottom"]].set_visible(False)
  style.title(
    axes,
    "Milliseconds per token, without the prompt (95% interval over questions)",
    xlim=(0, most * 1.3),
    xticks=[],
  )
  return style.source(figure, summary)
