"""Acceptance by depth, the cost of a tree, and the choice of one."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.eval.plots import style
from specjax.eval.plots.speed import name
from specjax.eval.plots.style import COLOURS, INK, PLAIN, RULE


def acceptance(summary: Mapping[str, Any]) -> Figure:
  """alpha_d by depth, a line per method."""
  styles = style.of_methods(list(summary["methods"]))
  figure, (axes,) = style.panels(8, 3.8, ruled=True)
  deepest = 1
  for label, m in summary["methods"].items():
    points = [(d, a) for d, a in enumerate(m["acceptance_by_depth"], 1) if a is not None]
    if points:
      colour, marker = styles[label]
      axes.plot(*zip(*points, strict=True), marker + "-", color=colour, label=name(label, m),
                linewidth=2, markersize=7, markeredgecolor="white", clip_on=False)  # fmt: skip
      deepest = max(deepest, points[-1][0])
  style.legend(axes)
  style.title(axes, "Chance that a depth is accepted once the one before is", ylim=(0, 1),
              xlim=(0.8, deepest + 0.2), xticks=range(1, deepest + 1),
              xlabel="draft depth")  # fmt: skip
  return style.source(figure, summary)


def verify_cost(summary: Mapping[str, Any]) -> Figure:
  """v(N) / v(1), with each method's tokens per forward at its N: above the line, it gains."""
  cost, styles = summary["verify_cost"], style.of_methods(list(summary["methods"]))
  figure, (axes,) = style.panels(8, 3.8, ruled=True)
  low, high = ([x / cost["seconds"][0] for x in cost[k]] for k in ("low", "high"))
  axes.fill_between(cost["nodes"], low, high, color=RULE)
  axes.plot(cost["nodes"], cost["relative"], "o-", color=INK, linewidth=2, markersize=5,
            label="cost of N nodes")  # fmt: skip
  for label, m in summary["methods"].items():
    if label != "none":
      colour, marker = styles[label]
      axes.plot(m["nodes"], m["tau"], marker, color=colour, markersize=10, linestyle="none",
                markeredgecolor="white", label="τ of " + name(label, m))  # fmt: skip
  style.powers(axes, cost["nodes"])
  style.legend(axes)
  style.title(axes, "A tree pays where its tokens per forward (τ) lie above its cost",
              xlabel="nodes N in the draft tree, root included", ylim=(0, None),
              ylabel="in passes over one node")  # fmt: skip
  return style.source(figure, summary)


def _of_kind(figures: Mapping[str, Any]) -> list[tuple[str, str, str, list[Mapping[str, Any]]]]:
  """(kind, colour, marker, figures of its drafts) for "plain", "chain D" and "tree N"."""
  kinds = (("plain", PLAIN, "o"), ("chain", COLOURS[1], "s"), ("tree", COLOURS[0], "o"))
  return [(k, c, m, [f for n, f in figures.items() if n.split()[0] == k]) for k, c, m in kinds]


def _agreement(axes: Axes, summary: Mapping[str, Any]) -> None:
  """Measured over expected tokens per second; points are labelled with their nodes."""
  decoded = {k: f for k, f in summary["candidates"].items() if "measured" in f}
  chosen = decoded.get(summary["chosen"])
  speeds = [f[k] for f in decoded.values() for k in ("expected", "measured")]
  ends = (0.92 * min(speeds), 1.08 * max(speeds))
  axes.plot(ends, ends, color=PLAIN, linewidth=1, linestyle=style.DASHED)
  for _, colour, marker, figures in _of_kind(decoded):
    x, y = ([f[k] for f in figures] for k in ("expected", "measured"))
    axes.plot(x, y, marker, color=colour, markersize=8, markeredgecolor="white")
    for f in figures:
      axes.annotate(str(f["nodes"]), (f["expected"], f["measured"]), (5, -9), fontsize=9, color=INK,
                    textcoords="offset points",
                    fontweight="bold" if f is chosen else "normal")  # fmt: skip
  if chosen:
    axes.plot(chosen["expected"], chosen["measured"], "o", markersize=15, markerfacecolor="none",
              markeredgecolor=INK)  # fmt: skip
  axes.grid(axis="x", color=RULE, linewidth=0.8)
  style.title(axes, "Each draft by its nodes, the choice ringed", xlim=ends, ylim=ends,
              xlabel="expected tokens/s", ylabel="measured tokens/s")  # fmt: skip


def _by_nodes(axes: Axes, summary: Mapping[str, Any]) -> None:
  """Tokens per second over nodes: expected hollow and dotted, measured solid."""
  nodes = sorted({f["nodes"] for f in summary["candidates"].values()})
  for kind, colour, marker, figures in _of_kind(summary["candidates"]):
    for key, line, face in (("expected", ":", "white"), ("measured", "-", colour)):
      points = [(f["nodes"], f[key]) for f in figures if key in f]
      if points:
        axes.plot(*zip(*points, strict=True), marker + line, color=colour, linewidth=1.8,
                  markersize=7, markerfacecolor=face, label=f"{kind}, {key}")  # fmt: skip
  chosen = summary["candidates"][summary["chosen"]]["nodes"]
  axes.axvline(chosen, color=RULE, linewidth=8, zorder=0)
  style.powers(axes, [n for n in nodes if n & (n - 1) == 0])
  style.legend(axes)
  style.title(axes, "Tokens per second by size", xlabel="nodes N of the draft, root included",
              ylim=(0, None))  # fmt: skip


def choice(summary: Mapping[str, Any]) -> Figure:
  """Measured over expected speed, and both over nodes, from a summary of `eval.tune`."""
  figure, (left, right) = style.panels(12, 4.6, columns=2, ruled=True)
  _agreement(left, summary)
  _by_nodes(right, summary)
  return style.source(figure, summary)
