"""The style of all pictures: panels, colours, titles, legends."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.eval.report import decoding, machine

# Okabe and Ito's palette, told apart with any kind of colour vision; plain decoding is grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
MARKERS = "osD^vPX"
PLAIN, INK, RULE = "#8C8C8C", "#222222", "#D9D9D9"
DASHED = (0, (4, 3))


def panels(
  width: float,
  height: float,
  columns: int = 1,
  rows: int = 1,
  *,
  shared: bool = False,
  ruled: bool = False,
) -> tuple[Figure, list[Axes]]:
  """A figure of a size in inches and its empty panels, row by row; axes may be shared or ruled."""
  figure = Figure(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
  grid = list(figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared).flat)
  for axes in grid:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PLAIN)
    axes.tick_params(colors=INK, length=0, labelsize=10.5)
    axes.set_axisbelow(True)
    if ruled:
      axes.grid(axis="y", color=RULE, linewidth=0.8)
    for axis in (axes.xaxis, axes.yaxis):
      axis.label.set(color=INK, size=11)
  return figure, grid


def title(axes: Axes, text: str, **settings: Any) -> None:
  """Writes a heading above the left end of a panel; `settings` go to `Axes.set`."""
  axes.set_title(text, loc="left", fontsize=12.5, color=INK, pad=10)
  axes.set(**settings)


def legend(axes: Axes) -> None:
  """Puts the legend of a panel to its right."""
  if axes.get_legend_handles_labels()[0]:
    axes.legend(frameon=False, fontsize=10, loc="center left", bbox_to_anchor=(1.01, 0.5))


def powers(axes: Axes, numbers: Sequence[int]) -> None:
  """Makes a horizontal axis logarithmic, with a tick at each of `numbers`."""
  axes.set_xscale("log", base=2)
  axes.minorticks_off()
  axes.set_xticks(numbers, [str(n) for n in numbers])


def source(figure: Figure, summary: Mapping[str, Any]) -> Figure:
  """Writes below a figure what was decoded, how and where, and returns the figure."""
  text = f"{decoding(summary)}; {machine(summary)}"
  figure.supxlabel(text, x=0.01, ha="left", fontsize=8.5, color="#6B6B6B")
  return figure


def of_methods(names: Sequence[str]) -> dict[str, tuple[str, str]]:
  """Colour and marker of each method, the same in every picture; those of "none" are PLAIN."""
  drafted = [name for name in names if name != "none"]
  chosen = zip(drafted, itertools.cycle(zip(COLOURS, MARKERS, strict=True)), strict=False)
  return {"none": (PLAIN, "o"), **dict(chosen)}
