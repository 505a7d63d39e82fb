"""Acceptance by depth, the cost of a tree, and the choice of one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specjax.eval.plots import style
from specjax.eval.plots.speed import name
from specjax.eval.plots.style import COLOURS, INK, PLAIN

FEW = 100  # tries; a point that rests on fewer is hollow


def acceptance(summary: Mapping[str, Any]) -> Figure:
  """alpha_d by depth, a line per method."""
  styles = style.of_methods(list(summary["methods"]))
  figure, (axes,) = style.panels(8, 3.8, ruled=True)
  deepest = 1
  for label, m in summary["methods"].items():
    by_depth = zip(m["acceptance_by_depth"], m["tried_by_depth"], strict=True)
    points = [(d, a, tried) for d, (a, tried) in enumerate(by_depth, 1) if a is not None]
    if points:
      colour, marker = styles[label]
      line: dict[str, Any] = {"color": colour, "markersize": 7, "clip_on": False}
      axes.plot(
        *list(zip(*points, strict=True))[:2],
        marker + "-",
        label=name(label, m),
        linewidth=2,
        markeredgecolor="white",
        **line,
      )
      for depth, rate, tried in points:
        if tried < FEW:
          axes.plot(depth, rate, marker, markerfacecolor="white", **line)
      deepest = max(deepest, points[-1][0])
  style.legend(axes)
  style.title(
    axes,
    f"Chance that a depth is accepted once the one before is (hollow: fewer than {FEW} tries)",
    ylim=(0, 1),
    xlim=(0.8, deepest + 0.2),
    xticks=range(1, deepest + 1),
    xlabel="draft depth",
  )
  return style.source(figure, summary)


def verify_cost(summary: Mapping[str, Any]) -> Figure:
  """What a round costs, in passes over one node, beside the tokens that it gives.

  The round's cost is tokens per pass over speed-up. What the target's pass does not take of it is
  drafting, verifying and committing.
  """
  cost = summary["verify_cost"]
  methods = {k: m for k, m in summary["methods"].items() if k != "none"}
  figure, (axes,) = style.panels(8, 1.9 + 0.45 * len(methods))
  parts = (PLAIN, "the model's pass over its nodes"), (COLOURS[1], "drafting and the rest")
  for row, m in enumerate(methods.values()):
    whole = m["tau"] / m["speed_up"]
    one = min(float(np.interp(m["nodes"], cost["nodes"], cost["relative"])), whole)
    for (colour, said), left, width in zip(parts, (0, one), (one, whole - one), strict=True):
      axes.barh(row, width, 0.6, left, color=colour, label=None if row else said)
    axes.plot(
      m["tau"],
      row,
      "D",
      color=COLOURS[0],
      markersize=8,
      linestyle="none",
      label=None if row else "tokens that a round gives",
    )
    axes.annotate(
      f"{m['speed_up']:.2f}\u00d7 as fast",
      (max(m["tau"], whole), row),
      (10, 0),
      textcoords="offset points",
      va="center",
      fontsize=10,
      color=INK,
    )
  axes.set_yticks(range(len(methods)), [name(k, m) for k, m in methods.items()])
  axes.invert_yaxis()
  axes.margins(x=0.2)
  style.title(
    axes,
    "A method gains where a round gives more than it costs",
    xlim=(0, None),
    xlabel="passes over one node, each a token of plain decoding",
  )
  if methods:
    figure.legend(frameon=False, fontsize=10, loc="outside upper left", ncols=3)
  return style.source(figure, summary)


def choice(summary: Mapping[str, Any]) -> Figure:
  """Tokens per second over nodes of the drafts of `eval.tune`, the choice ringed."""
  candidates, styles = summary["candidates"], style.of_methods(summary["config"]["drafters"])
  figure, (axes,) = style.panels(8, 4.2, ruled=True)
  nodes = sorted({f["nodes"] for f in candidates.values()})
  for drafter, (colour, marker) in styles.items():
    drafts = sorted(
      (f for f in candidates.values() if f["drafter"] == drafter), key=lambda f: f["nodes"]
    )
    shown = name(drafter, {"lossy": False})
    for key, face in (("expected", "white"), ("tokens_per_second", colour)):
      points = [(f["nodes"], f[key]) for f in drafts if key in f]
      if points:
        axes.plot(
          *zip(*points, strict=True),
          marker,
          color=colour,
          markersize=8,
          linestyle="none",
          markerfacecolor=face,
          label=f"{shown}, {'expected' if key == 'expected' else 'measured'}",
        )
  chosen = candidates[summary["chosen"]]
  axes.plot(
    chosen["nodes"],
    chosen["tokens_per_second"],
    "o",
    markersize=15,
    markerfacecolor="none",
    markeredgecolor=INK,
  )
  style.powers(axes, [n for n in nodes if n & (n - 1) == 0])
  style.legend(axes)
  style.title(
    axes,
    "Tokens per second by the size of the draft, the choice ringed",
    xlabel="nodes N of the draft, root included",
    ylim=(0, None),
  )
  return style.source(figure, summary)
