"""A canvas after every pass, as a picture."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.decoding.batching import Result
from specjax.decoding.model import Model

MASKED, OLDER, NEW, NEW_END = 0.86, 1.0, (0.55, 0.80, 0.95), (0.96, 0.80, 0.45)


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
    text = "end" if ends else model.decode([token]).strip() or str(token)
    for row in range(born, rounds):
      new = row == born
      axes.text(column, row, text, ha="center", va="center", fontsize=6.5,
                color="#222222" if new else "#8C8C8C")  # fmt: skip
  axes.imshow(shades, aspect="auto")
  passes = "1 pass" if result.forwards == 1 else f"{result.forwards} passes"
  axes.set_title(f"{title}: {passes}", loc="left", fontsize=10)
  axes.set_xticks([])
  axes.set_yticks(range(rounds), [str(i + 1) for i in range(rounds)])
  axes.set_xticks(np.arange(len(slots)) - 0.5, minor=True)
  axes.set_yticks(np.arange(rounds) - 0.5, minor=True)
  axes.grid(which="minor", color="white", lw=1)
  axes.tick_params(which="both", length=0, labelsize=7)
  axes.spines[:].set_visible(False)


def picture(model: Model, results: Mapping[str, Result]) -> Figure:
  """Rows are passes, columns slots: grey is masked, colour is kept in this pass, white before.

  Args:
    results: by title, a panel each.
  """
  rounds = [max(r.filling.when) + 1 for r in results.values()]
  slots = [sum(when >= 0 for when in r.filling.when) for r in results.values()]
  figure = Figure(figsize=(0.36 * sum(slots) + 0.5, 0.24 * max(rounds) + 0.6), dpi=140,
                  layout="constrained")  # fmt: skip
  grid = figure.add_gridspec(max(rounds), len(slots), width_ratios=slots)
  for i, (title, result) in enumerate(results.items()):
    _panel(figure.add_subplot(grid[: rounds[i], i]), model, result, title)
  figure.axes[0].set_ylabel("pass", fontsize=8)
  return figure
