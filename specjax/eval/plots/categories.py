"""Bars by category of questions, and below them the bars that Spec-Bench published."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.eval.plots import style
from specjax.eval.plots.speed import name
from specjax.eval.plots.style import INK

Bars = Mapping[str, tuple[float, Sequence[float] | None]]  # value and interval by group


def _grouped(axes: Axes, groups: Sequence[str], series: Mapping[str, tuple[Any, Bars]]) -> None:
  """Draws a bar for each of `series`, by label a colour and its bars, in every group."""
  width = 0.84 / max(len(series), 1)
  for i, (label, (colour, bars)) in enumerate(series.items()):
    places = {g: x + (i - (len(series) - 1) / 2) * width for x, g in enumerate(groups) if g in bars}
    axes.bar(
      list(places.values()), [bars[g][0] for g in places], 0.92 * width, color=colour, label=label
    )
    for group, x in places.items():
      value, interval = bars[group]
      axes.annotate(
        f"{value:.2f}",
        (x, 0),
        (0, 4),
        textcoords="offset points",
        ha="center",
        va="bottom",
        rotation=90,
        fontsize=8,
        color=INK,
        bbox={"fc": "white", "ec": "none", "pad": 1, "alpha": 0.85},
      )
      if interval:
        axes.plot([x, x], interval, color=INK, linewidth=1.1)
  axes.axhline(1, color=INK, linewidth=0.9, linestyle=style.DASHED)
  axes.set_xticks(range(len(groups)), groups)
  axes.set_xlim(-0.6, len(groups) - 0.4)


def _measured(summary: Mapping[str, Any], key: str) -> dict[str, tuple[Any, Bars]]:
  """The bars of every method but plain decoding."""
  methods, styles = summary["methods"], style.of_methods(list(summary["methods"]))
  return {
    name(label, m).replace("|", "\n  | "): (
      styles[label][0],
      {c: (x[key], x[f"{key}_interval"]) for c, x in m["figures"].items()},
    )
    for label, m in methods.items()
    if label != "none"
  }


def _ours(axes: Axes, summary: Mapping[str, Any], key: str) -> None:
  _grouped(axes, list(summary["questions"]), _measured(summary, key))
  axes.set_xticklabels([f"{c}\n({n})" for c, n in summary["questions"].items()])


def _figure(
  summary: Mapping[str, Any],
  key: str,
  titles: Sequence[str],
  groups: Sequence[str],
  series: Mapping[str, tuple[Any, Bars]],
) -> Figure:
  """Our bars of the figure `key` above, and published bars below."""
  figure, (ours, theirs) = style.panels(12, 6.8, rows=2, ruled=True)
  _ours(ours, summary, key)
  _grouped(theirs, groups, series)
  top = max(axes.get_ylim()[1] for axes in (ours, theirs))
  for axes, title in zip((ours, theirs), titles, strict=True):
    style.title(axes, title, ylim=(0, top))
  style.legend(ours)
  figure.set_layout_engine("constrained", hspace=0.08)
  return style.source(figure, summary)


def measured(summary: Mapping[str, Any]) -> Figure:
  """Speed-up by category and method, with 95% intervals, where nothing is published beside it."""
  figure, (axes,) = style.panels(12, 3.6, ruled=True)
  _ours(axes, summary, "speed_up")
  style.title(axes, "Speed over plain decoding (95% interval)")
  style.legend(axes)
  return style.source(figure, summary)


def speed_up(summary: Mapping[str, Any]) -> Figure:
  """Speed-up by category and method, ours with 95% intervals."""
  figures = summary["published"]["figures"]
  shades = colormaps["viridis"](np.linspace(0.1, 0.95, len(figures)))
  groups = [c for c in next(iter(figures.values())) if c != "tau"]
  series = {
    k: (shade, {c: (m[c], None) for c in groups})
    for (k, m), shade in zip(figures.items(), shades, strict=True)
  }
  titles = (
    "Speed over plain decoding, measured here (95% interval)",
    f"Speed over plain decoding, published (with prefill): {summary['published']['on']}",
  )
  figure = _figure(summary, "speed_up", titles, groups, series)
  style.legend(figure.axes[1])
  return figure


def tau(summary: Mapping[str, Any]) -> Figure:
  """Tokens per pass by category and method; published ones are known over all categories."""
  figures = summary["published"]["figures"]
  series = {"published": (style.PLAIN, {k: (m["tau"], None) for k, m in figures.items()})}
  titles = (
    "Tokens per pass, measured here (95% interval)",
    f"Mean accepted tokens over all categories, published: {summary['published']['on']}",
  )
  return _figure(summary, "tau", titles, list(figures), series)
