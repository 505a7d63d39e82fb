"""A benchmark's summary as three pictures: speed-up, acceptance by depth, verify cost."""

import pathlib
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any kind of colour vision; plain decoding is grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
MARKERS = "osD^vPX"
PLAIN, INK, RULE = "#8C8C8C", "#222222", "#D9D9D9"


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
  figure = Figure(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
  return figure, _axes(figure)


def _axes(figure: Figure, columns: int = 1, column: int = 1) -> Axes:
  axes = figure.add_subplot(1, columns, column)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color(PLAIN)
  axes.tick_params(colors=INK, length=0, labelsize=11)
  axes.set_axisbelow(True)
  return axes


def _frame(figure: Figure, axes: Axes, title: str, summary: Mapping[str, Any]) -> None:
  axes.set_title(title, loc="left", fontsize=12.5, color=INK, pad=10)
  config, machine = summary["config"], summary["machine"]
  how = "greedy" if config["temperature"] == 0 else f"temperature {config['temperature']:g}"
  where = machine["cpu"] if machine["backend"] == "cpu" else machine["device"]
  figure.supxlabel(
    f"{pathlib.Path(summary['model']).name}, {summary['prompts']} prompts, {how}, batch "
    f"{config['batch']}; {where}, {machine['cores']} cores",
    x=0.01, ha="left", fontsize=8.5, color="#6B6B6B",
  )  # fmt: skip


def _style(summary: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
  """Colour and marker of each method, the same in every picture."""
  drafted = [k for k in summary["methods"] if k != "none"]
  style = {k: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, k in enumerate(drafted)}
  return {"none": (PLAIN, "o")} | style


def _name(label: str, figures: Mapping[str, Any]) -> str:
  name, _, size = label.partition(":")
  name = "plain" if name == "none" else name.replace("_", " ")
  size = f"{size} nodes" if size.isdigit() else pathlib.Path(size).stem
  return name + (f", {size}" if size else "") + (" LOSSY" if figures["lossy"] else "")


def speed_up(summary: Mapping[str, Any]) -> Figure:
  """Bars of speed-up with 95% intervals, tokens per forward written on them."""
  methods, style = summary["methods"], _style(summary)
  figure, axes = _canvas(8, 1.3 + 0.5 * len(methods))
  right = max((m["speed_up_interval"] or (0, m["speed_up"]))[1] for m in methods.values())
  axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
  for row, (label, m) in enumerate(methods.items()):
    end = m["speed_up"]
    axes.barh(
      row, end, 0.64, color=style[label][0], hatch="//" if m["lossy"] else None,
      edgecolor="white", linewidth=0,
    )  # fmt: skip
    if label != "none" and m["speed_up_interval"]:
      low, high = m["speed_up_interval"]
      axes.plot([low, high], [row, row], "|-", color=INK, linewidth=1.4, markeredgewidth=1.4)
      end = max(end, high)
    axes.text(
      end + 0.02 * right, row, f"{m['speed_up']:.2f}\u00d7", va="center", fontsize=12,
      fontweight="bold", color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip
    axes.text(
      0.015 * right, row, f"τ = {m['tau']:.2f}", va="center", fontsize=10.5, color=INK,
      bbox={"facecolor": "white", "edgecolor": "none", "pad": 2.5, "alpha": 0.85},
    )  # fmt: skip
  axes.set_yticks(range(len(methods)), [_name(k, m) for k, m in methods.items()])
  axes.invert_yaxis()
  axes.set_xlim(0, right * 1.12)
  axes.spines[["left", "bottom"]].set_visible(False)
  axes.set_xticks([])
  _frame(figure, axes, "Speed over plain decoding (95% interval); τ: tokens per forward", summary)
  return figure


def acceptance(summary: Mapping[str, Any]) -> Figure:
  """alpha_d by depth, a line per method."""
  style = _style(summary)
  figure, axes = _canvas(8, 3.8)
  deepest = 1
  for label, m in summary["methods"].items():
    points = [(d, a) for d, a in enumerate(m["acceptance_by_depth"], 1) if a is not None]
    if points:
      colour, marker = style[label]
      axes.plot(
        *zip(*points, strict=True), marker + "-", color=colour, label=_name(label, m),
        linewidth=2, markersize=7, markeredgecolor="white", clip_on=False,
      )  # fmt: skip
      deepest = max(deepest, points[-1][0])
  axes.set_xlim(0.8, deepest + 0.2)
  axes.set_xticks(range(1, deepest + 1))
  axes.set_ylim(0, 1)
  axes.grid(axis="y", color=RULE, linewidth=0.8)
  axes.set_xlabel("draft depth", fontsize=11, color=INK)
  if axes.lines:
    axes.legend(frameon=False, fontsize=10.5, loc="center left", bbox_to_anchor=(1.01, 0.5))
  _frame(figure, axes, "Chance that a depth is accepted once the one before is", summary)
  return figure


def verify_cost(summary: Mapping[str, Any]) -> Figure:
  """v(N) / v(1), with each method's tokens per forward at its N: above the line, it gains."""
  cost, style = summary["verify_cost"], _style(summary)
  figure, axes = _canvas(8, 3.8)
  base = cost["seconds"][0]
  low, high = ([x / base for x in cost[k]] for k in ("low", "high"))
  axes.fill_between(cost["nodes"], low, high, color=RULE)
  axes.plot(
    cost["nodes"], cost["relative"], "o-", color=INK, linewidth=2, markersize=5,
    label="cost of N nodes",
  )  # fmt: skip
  for label, m in summary["methods"].items():
    if label != "none":
      colour, marker = style[label]
      axes.plot(
        m["nodes"], m["tau"], marker, color=colour, markersize=10, markeredgecolor="white",
        linestyle="none", label="τ of " + _name(label, m),
      )  # fmt: skip
  axes.set_xscale("log", base=2)
  axes.set_xticks(cost["nodes"], [str(n) for n in cost["nodes"]])
  axes.minorticks_off()
  axes.set_ylim(0, None)
  axes.grid(axis="y", color=RULE, linewidth=0.8)
  axes.set_xlabel("nodes N in the draft tree, root included", fontsize=11, color=INK)
  axes.set_ylabel("in passes over one node", fontsize=11, color=INK)
  axes.legend(frameon=False, fontsize=10.5, loc="center left", bbox_to_anchor=(1.01, 0.5))
  _frame(figure, axes, "A tree pays where its tokens per forward (τ) lie above its cost", summary)
  return figure


def _of_kind(figures: Mapping[str, Any]) -> list[tuple[str, str, str, list[Mapping[str, Any]]]]:
  """(kind, colour, marker, figures of its drafts) for "plain", "chain D" and "tree N"."""
  kinds = (("plain", PLAIN, "o"), ("chain", COLOURS[1], "s"), ("tree", COLOURS[0], "o"))
  return [(k, c, m, [f for n, f in figures.items() if n.split()[0] == k]) for k, c, m in kinds]


def _agreement(axes: Axes, summary: Mapping[str, Any]) -> None:
  """Measured against expected tokens per second, points named by their nodes."""
  decoded = {k: f for k, f in summary["candidates"].items() if "measured" in f}
  chosen = decoded.get(summary["chosen"])
  speeds = [f[k] for f in decoded.values() for k in ("expected", "measured")]
  ends = [0.92 * min(speeds), 1.08 * max(speeds)]
  axes.plot(ends, ends, color=PLAIN, linewidth=1, linestyle=(0, (4, 3)))
  for _, colour, marker, figures in _of_kind(decoded):
    x, y = ([f[k] for f in figures] for k in ("expected", "measured"))
    axes.plot(x, y, marker, color=colour, markersize=8, markeredgecolor="white")
    for f in figures:
      axes.annotate(
        str(f["nodes"]), (f["expected"], f["measured"]), (5, -9), textcoords="offset points",
        fontsize=9, color=INK, fontweight="bold" if f is chosen else "normal",
      )  # fmt: skip
  if chosen:
    axes.plot(
      chosen["expected"], chosen["measured"], "o", markersize=15, markerfacecolor="none",
      markeredgecolor=INK,
    )  # fmt: skip
  axes.set_xlim(*ends)
  axes.set_ylim(*ends)
  axes.grid(color=RULE, linewidth=0.8)
  axes.set_xlabel("expected tokens/s", fontsize=11, color=INK)
  axes.set_ylabel("measured tokens/s", fontsize=11, color=INK)


def _by_nodes(axes: Axes, summary: Mapping[str, Any]) -> None:
  """Tokens per second against nodes: expected hollow and dotted, measured solid."""
  nodes = sorted({f["nodes"] for f in summary["candidates"].values()})
  for kind, colour, marker, figures in _of_kind(summary["candidates"]):
    for key, line, face in (("expected", ":", "white"), ("measured", "-", colour)):
      points = [(f["nodes"], f[key]) for f in figures if key in f]
      if points:
        axes.plot(
          *zip(*points, strict=True), marker + line, color=colour, linewidth=1.8, markersize=7,
          markerfacecolor=face, label=f"{kind}, {key}",
        )  # fmt: skip
  chosen = summary["candidates"][summary["chosen"]]["nodes"]
  axes.axvline(chosen, color=RULE, linewidth=8, zorder=0)
  axes.set_xscale("log", base=2)
  ticks = [n for n in nodes if n & (n - 1) == 0]
  axes.set_xticks(ticks, [str(n) for n in ticks])
  axes.minorticks_off()
  axes.set_ylim(0, None)
  axes.grid(axis="y", color=RULE, linewidth=0.8)
  axes.set_xlabel("nodes N of the draft, root included", fontsize=11, color=INK)
  axes.legend(frameon=False, fontsize=10, loc="center left", bbox_to_anchor=(1.01, 0.5))


def tune(summary: Mapping[str, Any]) -> Figure:
  """Of a summary of `eval.tune`: measured against expected speed, and both against nodes."""
  figure = Figure(figsize=(12, 4.6), dpi=160, layout="constrained", facecolor="white")
  left, right = _axes(figure, 2, 1), _axes(figure, 2, 2)
  _agreement(left, summary)
  _by_nodes(right, summary)
  right.set_title("Tokens per second by size", loc="left", fontsize=12.5, color=INK, pad=10)
  _frame(figure, left, "Each draft by its nodes, the choice ringed", summary)
  return figure


def write(summary: Mapping[str, Any], out: pathlib.Path) -> None:
  """Saves speedup.png, acceptance.png and verify_cost.png in `out`."""
  for name, draw in (
    ("speedup", speed_up), ("acceptance", acceptance), ("verify_cost", verify_cost)
  ):  # fmt: skip
    draw(summary).savefig(out / f"{name}.png")
