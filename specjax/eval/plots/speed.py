"""Bars of the speed over plain decoding: of methods, and of heads at two trees each."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.eval.plots import style
from specjax.eval.plots.style import COLOURS, INK


def name(label: str, figures: Mapping[str, Any]) -> str:
  """A method as it is typed, without the folders of its files; "plain" for none."""
  short = re.sub(r"\[(.*?)\]", lambda found: f"[{pathlib.Path(found[1]).name}]", label)
  return ("plain" if label == "none" else short) + (" LOSSY" if figures["lossy"] else "")


def _bar(axes: Axes, row: float, height: float, colour: str, m: Mapping[str, Any]) -> float:
  """Draws a bar of speed-up with its interval and tau, and returns the right end of both."""
  lossy = "//" if m["lossy"] else None
  axes.barh(row, m["speed_up"], height, color=colour, hatch=lossy, edgecolor="white", linewidth=0)
  axes.annotate(
    f"τ = {m['tau']:.2f}",
    (0, row),
    (6, 0),
    textcoords="offset points",
    va="center",
    fontsize=3 + 12 * height,
    color=INK,
    bbox={"fc": "white", "ec": "none", "pad": 1.5, "alpha": 0.85},
  )
  low, high = m["speed_up_interval"] or (m["speed_up"],) * 2
  if high > low:
    axes.plot([low, high], [row, row], "|-", color=INK, linewidth=1.4, markeredgewidth=1.4)
  return max(m["speed_up"], high)


def speed_up(summary: Mapping[str, Any]) -> Figure:
  """Bars of speed-up with 95% intervals, tokens per pass written on them."""
  methods, styles = summary["methods"], style.of_methods(list(summary["methods"]))
  figure, (axes,) = style.panels(8, 1.3 + 0.5 * len(methods))
  axes.axvline(1, color=INK, linewidth=0.9, linestyle=style.DASHED)
  most = 0.0
  for row, (label, m) in enumerate(methods.items()):
    shown = m if label != "none" else {**m, "speed_up_interval": None}
    end = _bar(axes, row, 0.64, styles[label][0], shown)
    axes.annotate(
      f"{m['speed_up']:.2f}\u00d7",
      (end, row),
      (9, 0),
      textcoords="offset points",
      va="center",
      fontsize=12,
      fontweight="bold",
      color=INK,
      bbox={"fc": "white", "ec": "none", "pad": 1},
    )
    most = max(most, end)
  axes.set_yticks(range(len(methods)), [name(k, m) for k, m in methods.items()])
  axes.invert_yaxis()
  axes.spines[["left", "bottom"]].set_visible(False)
  style.title(
    axes,
    "Speed over plain decoding (95% interval); τ: tokens per pass",
    xlim=(0, most * 1.14),
    xticks=[],
  )
  return style.source(figure, summary)


def heads(summary: Mapping[str, Any], kinds: Mapping[str, str]) -> Figure:
  """Speed-up of every head at two trees, by the tau of the first, and its hit rates by depth."""
  first = next(iter(kinds))
  by_tau = sorted(summary["heads"].items(), key=lambda item: -item[1]["figures"][first]["tau"])
  figure, (bars, lines) = style.panels(13, 1.7 + 0.4 * len(by_tau), columns=2)
  for shift, colour, (kind, label) in zip((-0.2, 0.2), COLOURS, kinds.items(), strict=False):
    for row, (_, head) in enumerate(by_tau):
      _bar(bars, row + shift, 0.38, colour, head["figures"][kind])
    bars.barh(0, 0, color=colour, label=label)  # an entry of the legend
  bars.axvline(1, color=INK, linewidth=0.9, linestyle=style.DASHED)
  bars.set_yticks(range(len(by_tau)), [key.replace("_", " ") for key, _ in by_tau])
  bars.invert_yaxis()
  style.title(bars, "Speed over plain decoding; τ: tokens per pass")
  bars.legend(frameon=False, fontsize=10, loc="upper left", bbox_to_anchor=(0, -0.04), ncols=2)
  for row, (key, head) in enumerate(by_tau):
    rates, best = head["hit_rates"], row < 6  # more colours could not be told apart
    shade, label = (COLOURS[row], key.replace("_", " ")) if best else (style.RULE, "_the others")
    lines.plot(range(1, len(rates) + 1), rates, "o-", color=shade, label=label, zorder=2 + best)
  deepest = max(len(head["hit_rates"]) for _, head in by_tau)
  style.title(
    lines,
    "Best guess right, given the true text before it",
    ylim=(0, 1),
    xticks=range(1, 1 + deepest),
    xlabel="depth",
  )
  style.legend(lines)
  return style.source(figure, summary)
