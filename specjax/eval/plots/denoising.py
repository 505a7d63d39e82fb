"""Masked diffusion: a canvas after every pass, accuracy by passes, and likelihood by seconds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.decoding.batching import Result
from specjax.eval.plots import style
from specjax.names.load import Model

MASKED, OLDER, NEW, NEW_END = 0.86, 1.0, (0.55, 0.80, 0.95), (0.96, 0.80, 0.45)
Curve = tuple[Sequence[float], Sequence[float]]  # passes, accuracies


def _text(model: Model, token: int) -> str:
  return model.decode([token]).strip() or str(token)


def _panel(axes: Axes, model: Model, result: Result, title: str) -> None:
  filled = result.filling
  slots = [i for i, when in enumerate(filled.when) if when >= 0]
  rounds = max(filled.when) + 1
  shades = np.full((rounds, len(slots), 3), MASKED)
  for column, slot in enumerate(slots):
    born, token = filled.when[slot], filled.canvas[slot]
    ends = token in model.stop
    shades[born:, column] = OLDER
    shades[born, column] = NEW_END if ends else NEW
    text = "end" if ends else _text(model, token)
    for row in range(born, rounds):
      axes.text(
        column,
        row,
        text,
        ha="center",
        va="center",
        fontsize=6.5,
        color=style.INK if row == born else style.PLAIN,
      )
  axes.imshow(shades, aspect="auto")
  passes = "1 pass" if result.passes == 1 else f"{result.passes} passes"
  axes.set_title(f"{title}: {passes}", loc="left", fontsize=10)
  axes.set_xticks([])
  axes.set_yticks(range(rounds), [str(i + 1) for i in range(rounds)])
  axes.set_xticks(np.arange(len(slots)) - 0.5, minor=True)
  axes.set_yticks(np.arange(rounds) - 0.5, minor=True)
  axes.grid(which="minor", color="white", lw=1)
  axes.tick_params(which="both", length=0, labelsize=7)
  axes.spines[:].set_visible(False)


def canvas(model: Model, results: Mapping[str, Result]) -> Figure:
  """Rows are passes and columns slots: grey is masked, white filled before, coloured filled now."""
  fillings = [r.filling for r in results.values()]
  rounds = [max(f.when) + 1 for f in fillings]
  slots = [sum(when >= 0 for when in f.when) for f in fillings]
  drawn = [pair for f in fillings for pair in zip(f.canvas, f.when, strict=True)]
  longest = max(len(_text(model, token)) for token, when in drawn if when >= 0)
  size = (0.12 + 0.07 * longest) * max(slots) + 0.5, 0.2 * sum(rounds) + 0.45 * len(rounds)
  figure = Figure(figsize=size, dpi=140, layout="constrained")
  grid = figure.add_gridspec(len(rounds), max(slots), height_ratios=rounds)
  for i, (title, result) in enumerate(results.items()):
    _panel(figure.add_subplot(grid[i, : slots[i]]), model, result, title)
    figure.axes[i].set_ylabel("pass", fontsize=8)
  return figure


def accuracy(
  tasks: Mapping[str, Mapping[str, Curve]],
  asked: str,
  best: Mapping[str, Mapping[str, Curve]] | None = None,
) -> Figure:
  """Accuracy by passes per question: a panel per task, a line per method, crosses at `best`.

  `asked` says of which model and how many questions.
  """
  columns = min(5, len(tasks))
  rows = -(-len(tasks) // columns)
  figure, grid = style.panels(2.6 * columns + 0.4, 2.4 * rows + 0.9, columns, rows, shared=True)
  for axes, (task, curves) in zip(grid, tasks.items(), strict=False):
    styles = style.of_methods(list(curves))
    for label, (passes, right) in curves.items():
      colour, marker = styles[label]
      axes.plot(
        passes,
        100 * np.asarray(right),
        marker + "-",
        color=colour,
        label=label,
        linewidth=1.2,
        markersize=7 if len(passes) == 1 else 4,
      )
      for x, y in zip(*(best[task][label] if best else ((), ())), strict=True):
        axes.plot(x, 100 * y, "x", color=colour, markersize=9, markeredgewidth=2)
    axes.set_title(task.replace("_", " "), loc="left", fontsize=11)
    axes.set_ylim(-5, 105)
  most = max(x for curves in tasks.values() for passes, _ in curves.values() for x in passes)
  style.powers(grid[0], [2**i for i in range(int(np.log2(max(most, 1))) + 1)])
  for axes in grid[max(len(tasks) - columns, 0) : len(tasks)]:
    axes.tick_params(labelbottom=True)
  for axes in grid[len(tasks) :]:
    axes.set_visible(False)
  figure.supxlabel(f"passes per question ({asked})", fontsize=11)
  figure.supylabel("right answers, %", fontsize=11)
  handles, labels = grid[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=9)
  return figure


def likelihood(cells: Sequence[Mapping[str, Any]], judge: str) -> Figure:
  """Nats per token under the judge by seconds per answer; crosses are the judge's own answers."""
  figure, (axes,) = style.panels(9, 1.5 + 0.24 * max(len(cells), 12))
  ordered = sorted(cells, key=lambda cell: cell["nats"])
  for cell, height in zip(ordered, np.linspace(0.02, 0.98, len(cells)), strict=True):
    label = cell["method"].removeprefix(f"{judge}, ")
    colour, marker = (style.COLOURS[0], "o") if label == cell["method"] else (style.COLOURS[4], "X")
    at = cell["seconds"], cell["nats"]
    axes.plot(*at, marker, color=colour, markersize=6)
    line = {"arrowstyle": "-", "color": style.RULE, "relpos": (0, 0.5)}
    axes.annotate(
      label,
      at,
      (1.03, height),
      textcoords="axes fraction",
      va="center",
      fontsize=9,
      color=style.INK,
      arrowprops=line,
    )
  axes.set(xlabel="seconds per answer", ylabel=f"nats per token under {judge}")
  axes.margins(0.05)
  return figure


def losses(metrics: Sequence[Mapping[str, float]], mean_of: int = 10) -> Figure:
  """Loss by step of a training, in means of so many steps; `metrics` are those of its file."""
  figure, (axes,) = style.panels(6, 3.5, ruled=True)
  step, loss = (np.array([m[k] for m in metrics]) for k in ("step", "loss"))
  whole = len(loss) // mean_of * mean_of
  axes.plot(step, loss, color=style.PLAIN, linewidth=0.5)
  axes.plot(*(x[:whole].reshape(-1, mean_of).mean(1) for x in (step, loss)), color=style.COLOURS[0])
  axes.set(xlabel="step", ylabel="nats per masked token, weighed", ylim=(0, loss[1:].max()))
  return figure
