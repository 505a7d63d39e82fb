"""Acceptance by depth, the cost of a tree, and the choice of one."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from specjax.eval.plots import style
from specjax.eval.plots.speed import name
from specjax.eval.plots.style import INK, RULE


def acceptance(summary: Mapping[str, Any]) -> Figure:
  """alpha_d by depth, a line per method."""
  styles = style.of_methods(list(summary["methods"]))
  figure, (axes,) = style.panels(8, 3.8, ruled=True)
  deepest = 1
  for label, m in summary["methods"].items():
    points = [(d, a) for d, a in enumerate(m["acceptance_by_depth"], 1) if a is not None]
    if points:
      colour, marker = styles[label]
      axes.plot(
        *zip(*points, strict=True),
        marker + "-",
        color=colour,
        label=name(label, m),
        linewidth=2,
        markersize=7,
        markeredgecolor="white",
        clip_on=False,
      )
      deepest = max(deepest, points[-1][0])
  style.legend(axes)
  style.title(
    axes,
    "Chance that a depth is accepted once the one before is",
    ylim=(0, 1),
    xlim=(0.8, deepest + 0.2),
    xticks=range(1, deepest + 1),
    xlabel="draft depth",
  )
  return style.source(figure, summary)


def verify_cost(summary: Mapping[str, Any]) -> Figure:
  """v(N) / v(1), with each method's tokens per pass at its N: above the line, it gains."""
  cost, styles = summary["verify_cost"], style.of_methods(list(summary["methods"]))
  figure, (axes,) = style.panels(8, 3.8, ruled=True)
  low, high = ([x / cost["seconds"][0] for x in cost[k]] for k in ("low", "high"))
  axes.fill_between(cost["nodes"], low, high, color=RULE)
  axes.plot(
    cost["nodes"],
    cost["relative"],
    "o-",
    color=INK,
    linewidth=2,
    markersize=5,
    label="cost of N nodes",
  )
  for label, m in summary["methods"].items():
    if label != "none":
      colour, marker = styles[label]
      axes.plot(
        m["nodes"],
        m["tau"],
        marker,
        color=colour,
        markersize=10,
        linestyle="none",
        markeredgecolor="white",
        label="τ of " + name(label, m),
      )
  style.powers(axes, cost["nodes"])
  style.legend(axes)
  style.title(
    axes,
    "Tokens per pass (τ), and the cost of the pass without drafting",
    xlabel="nodes N in the draft tree, root included",
    ylim=(0, None),
    ylabel="in passes over one node",
  )
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
