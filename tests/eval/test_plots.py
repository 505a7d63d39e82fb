"""The pictures, read back: bars, points and names are those of the summary, and no text is cut."""

import dataclasses
import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from specjax.decoding.batching import Filling, Result
from specjax.eval import specbench_report
from specjax.eval.plots import categories, denoising, speed, trees


def method(speed_up, interval, tau, depths, nodes, lossy=False):
  return {
    "speed_up": speed_up, "speed_up_interval": interval, "tau": tau, "lossy": lossy,
    "acceptance_by_depth": depths, "nodes": nodes,
    "tried_by_depth": [400 // 3**d for d in range(len(depths))],
  }  # fmt: skip


ABOUT = {
  "model": "runs/some/gsm8k-7m", "prompts": 40, "config": {"temperature": 0.0, "batch": 1},
  "machine": {"backend": "cpu", "cpu": "Some Processor @ 2.50GHz", "device": "cpu", "cores": 2},
}  # fmt: skip
SUMMARY = ABOUT | {
  "methods": {
    "none": method(1.0, (1.0, 1.0), 1.0, [], 1),
    "prompt_lookup": method(1.31, (1.2, 1.4), 1.91, [0.6, None, 0.5], 8),
    "medusa-16": method(0.62, None, 2.93, [0.8, 0.4], 16),
    "eagle/tree[results/tune/tree.json]": method(2.04, (1.9, 2.2), 3.14, [0.9, 0.8, 0.7], 4),
    "eagle-8": method(2.05, (2.0, 2.1), 4.2, [0.9, 0.8, 0.7, 0.6], 8, lossy=True),
  },
  "verify_cost": {
    "nodes": [1, 2, 4, 8, 16], "seconds": [2.0, 2.2, 2.6, 4.0, 7.0], "low": [1.9, 2, 2.5, 3.9, 6],
    "high": [2.1, 2.4, 2.7, 4.4, 9.0], "relative": [1.0, 1.1, 1.3, 2.0, 3.5],
  },
}  # fmt: skip


def texts(figure) -> list[Text]:
  """What is drawn: not the labels of ticks that lie outside the limits, nor of hidden panels."""
  outside = set()
  for axes in figure.axes:
    for axis in (axes.xaxis, axes.yaxis):
      low, high = sorted(axis.get_view_interval())
      ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
      outside |= {label for tick in ticks for label in (tick.label1, tick.label2)
                  if not (axes.get_visible() and low <= tick.get_loc() <= high)}  # fmt: skip
  hidden = {t for axes in figure.axes if not axes.get_visible() for t in axes.findobj(Text)}
  found = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
  return [t for t in found if t not in outside | hidden]


def legible(figure) -> set[str]:
  """What is written on a figure, after a look that nothing is cut or over another text."""
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in texts(figure)]
  for text, box in boxes:
    assert box.x0 >= -1 and box.y0 >= -1, f"{text} is cut"
    assert box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1, f"{text} is cut"
  for (a, box), (b, other) in itertools.combinations(boxes, 2):
    assert not (
      min(box.x1, other.x1) - max(box.x0, other.x0) > 0
      and min(box.y1, other.y1) - max(box.y0, other.y0) > 1
    ), f"{a} lies over {b}"
  return {text for text, _ in boxes}


def test_a_cut_and_a_covered_text_are_found():
  figure = speed.speed_up(SUMMARY)
  figure.axes[0].text(1.5, 1.0, "over another", transform=figure.axes[0].transData, va="center")
  figure.axes[0].text(1.5, 1.02, "over one", transform=figure.axes[0].transData, va="center")
  with pytest.raises(AssertionError, match="lies over"):
    legible(figure)
  figure = speed.speed_up(SUMMARY)
  figure.text(0.98, 0.5, "that goes on and on")
  with pytest.raises(AssertionError, match="is cut"):
    legible(figure)


def test_bars_are_as_long_as_the_speed_up():
  figure = speed.speed_up(SUMMARY)
  axes = figure.axes[0]
  bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in axes.patches}
  assert [bars[i].get_width() for i in range(5)] == [1.0, 1.31, 0.62, 2.04, 2.05]
  assert [bool(bars[i].get_hatch()) for i in range(5)] == [False] * 4 + [True]
  names = [t.get_text() for t in axes.get_yticklabels()]
  assert names == ["plain", "prompt_lookup", "medusa-16", "eagle/tree[tree.json]", "eagle-8 LOSSY"]
  intervals = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() == "|"]
  assert intervals == [
    (1.2, 1.4),
    (1.9, 2.2),
    (2.0, 2.1),
  ]  # none of plain, none where there is none
  said = legible(figure)
  assert {"2.04\u00d7", "τ = 3.14", "1.00\u00d7"} <= said
  assert any("gsm8k-7m, 40 prompts, greedy, batch 1; Some Processor" in text for text in said)


def test_acceptance_has_a_line_per_method_without_the_depths_never_tried():
  figure = trees.acceptance(SUMMARY)
  drawn = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}
  lines = {label: points for label, points in drawn.items() if not label.startswith("_")}
  assert lines["prompt_lookup"] == [[1, 0.6], [3, 0.5]]
  hollow = [points for label, points in drawn.items() if label not in lines]
  assert hollow == [[[3, 0.5]], [[3, 0.7]], [[3, 0.7]], [[4, 0.6]]]  # 44, 44, 44 and 14 tries
  assert list(lines) == ["prompt_lookup", "medusa-16", "eagle/tree[tree.json]", "eagle-8 LOSSY"]
  assert set(lines) <= legible(figure)


def test_plain_decoding_alone_is_a_picture_too():
  alone = SUMMARY | {"methods": {"none": SUMMARY["methods"]["none"]}}
  for draw in (speed.speed_up, trees.acceptance, trees.verify_cost):
    legible(draw(alone))


def test_a_method_gains_where_its_tokens_lie_beyond_its_cost():
  figure = trees.verify_cost(SUMMARY)
  (axes,) = figure.axes
  ends = {}
  for bar in axes.patches:
    ends.setdefault(round(bar.get_y() + 0.3), []).append(bar.get_x() + bar.get_width())
  tokens = [float(line.get_xdata()[0]) for line in axes.lines]
  assert tokens == [1.91, 2.93, 3.14, 4.2]
  assert [x for x, _ in ends.values()] == [1.91 / 1.31, 3.5, 1.3, 2.0]  # no more than the round
  for (_, whole), gained, factor in zip(
    ends.values(), tokens, (1.31, 0.62, 2.04, 2.05), strict=True
  ):
    assert whole == pytest.approx(gained / factor) and (gained > whole) == (factor > 1)
  said = legible(figure)
  assert {"0.62\u00d7 as fast", "medusa-16", "drafting and the rest"} <= said


def test_categories_have_a_bar_per_method_beside_the_published_ones():
  kinds = ("overall", "MT-Bench", "translation", "summarization", "QA", "math", "RAG")

  def figures(i):
    return {
      c: {"tau": 1 + i + k / 10, "tau_interval": (1 + i, 2 + i), "speed_up": i + k / 10,
          "speed_up_interval": None}
      for k, c in enumerate(kinds)
    }  # fmt: skip

  labels = ("none", "prompt_lookup", "medusa-16", "eagle/tree[results/tree.json]", "eagle-8")
  published = specbench_report.PUBLISHED
  summary = ABOUT | {
    "questions": dict.fromkeys(kinds, 80),
    "methods": {k: {"lossy": k == "eagle-8", "figures": figures(i)} for i, k in enumerate(labels)},
    "published": {"on": specbench_report.PUBLISHED_ON, "figures": published},
  }  # fmt: skip
  for draw, key in ((categories.speed_up, "speed_up"), (categories.tau, "tau")):
    figure = draw(summary)
    ours, theirs = figure.axes
    drawn = [[bar.get_height() for bar in bars] for bars in ours.containers]
    assert drawn == [[figures(i)[c][key] for c in kinds] for i in (1, 2, 3, 4)]
    intervals = [tuple(line.get_ydata()) for line in ours.lines if line.get_linestyle() == "-"]
    assert intervals == [(1 + i, 2 + i) for i in (1, 2, 3, 4) for _ in kinds if key == "tau"]
    heights = [[bar.get_height() for bar in bars] for bars in theirs.containers]
    assert heights == (
      [[m["tau"] for m in published.values()]] if key == "tau"
      else [[x for c, x in m.items() if c != "tau"] for m in published.values()]
    )  # fmt: skip
    assert ours.get_ylim() == theirs.get_ylim()
    said = legible(figure)
    assert {"RAG\n(80)", "eagle-8 LOSSY", "eagle/tree[tree.json]", "4.58"} - said <= {"4.58"}
    assert any("published" in text and "Vicuna-7B-v1.3" in text for text in said)
  alone = summary | {"methods": {"none": summary["methods"]["none"]}}
  legible(categories.speed_up(alone))


def candidate(nodes, expected=None, measured=None, drafter="eagle[runs/a]"):
  found = {"expected": expected, "tokens_per_second": measured}
  return {"nodes": nodes, "drafter": drafter} | {k: v for k, v in found.items() if v}


def test_the_choice_is_ringed():
  figures = {
    "none": candidate(1, None, 98.0, "none"), "eagle/static-1[runs/a]": candidate(2, 140.0),
    "eagle-4[runs/a]": candidate(4, 190.0, 170.0), "eagle-8[runs/a]": candidate(8, 160.0, 166.0),
    "jacobi-4": candidate(4, None, 90.0, "jacobi-4"),
  }  # fmt: skip
  about = ABOUT | {"config": ABOUT["config"] | {"drafters": ["eagle[runs/a]", "jacobi-4"]}}
  figure = trees.choice(about | {"candidates": figures, "chosen": "eagle-4[runs/a]"})
  (axes,) = figure.axes
  (ring,) = [line for line in axes.lines if line.get_markersize() == 15]
  assert ring.get_xydata().tolist() == [[4, 170.0]]
  lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
  assert lines["eagle[a], expected"] == [[2, 140], [4, 190], [8, 160]]
  assert lines["eagle[a], measured"] == [[4, 170], [8, 166]]
  assert lines["plain, measured"] == [[1, 98]] and lines["jacobi-4, measured"] == [[4, 90]]
  legible(figure)


def test_heads_are_sorted_and_have_two_bars_each():
  def head(tau, speed_up, rates):
    kinds = {"same": (tau, speed_up), "own": (tau - 0.5, speed_up + 0.3)}
    return {"hit_rates": rates, "figures": {
      k: method(s, (s - 0.1, s + 0.1), t, [], 16) for k, (t, s) in kinds.items()
    }}  # fmt: skip

  many = {f"head_{i}": head(2 + 0.1 * i, 1 + 0.1 * i, [0.5, 0.4 + 0.02 * i]) for i in range(13)}
  kinds = {"same": "16 nodes", "own": "its own best tree"}
  figure = speed.heads(ABOUT | {"heads": many}, kinds)
  bars, lines = figure.axes
  assert [t.get_text() for t in bars.get_yticklabels()][:2] == ["head 12", "head 11"]
  lengths = sorted(p.get_width() for p in bars.patches if p.get_width())
  expected = sorted(f["speed_up"] for h in many.values() for f in h["figures"].values())
  assert lengths == expected
  assert lines.lines[0].get_ydata().tolist() == many["head_12"]["hit_rates"]
  assert set(kinds.values()) <= legible(figure)


def test_accuracy_is_drawn_at_its_passes():
  points = {"confidence": ([16.0], [1.0]), "threshold-0.9": ([4.0], [0.9])}
  curves = {"factor": ([2.0, 8.0], [0.1, 0.8])}
  tasks = {f"task_{i}": points for i in range(6)} | {"shuffle": curves}
  figure = denoising.accuracy(tasks, "lists-3m, 7 questions", {k: {n: ((1.0,), (1.0,)) for n in v}
                                      for k, v in tasks.items()})  # fmt: skip
  panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}
  assert list(panels) == [task.replace("_", " ") for task in tasks]
  drawn = [line.get_xydata().tolist() for line in panels["task 3"].lines]
  assert [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes] == [
    False, False, True, True, True, True, True, True, True, True,
  ]  # fmt: skip
  assert drawn == [[[16.0, 100.0]], [[1.0, 100.0]], [[4.0, 90.0]], [[1.0, 100.0]]]
  curve = panels["shuffle"].lines[0].get_xydata()
  np.testing.assert_allclose(curve, [[2, 10], [8, 80]])
  assert {"confidence", "threshold-0.9", "passes per question (lists-3m, 7 questions)"} <= legible(
    figure
  )


def test_likelihoods_and_losses_are_drawn_where_they_are():
  cells = [
    {"method": "threshold-0.9", "seconds": 2.0, "nats": 1.5},
    {"method": "judge, eagle3-4", "seconds": 1.0, "nats": 0.5},
  ]
  figure = denoising.likelihood(cells, "judge")
  assert [line.get_xydata().tolist() for line in figure.axes[0].lines] == [[[1, 0.5]], [[2, 1.5]]]
  assert {"threshold-0.9", "eagle3-4", "nats per token under judge"} <= legible(figure)
  figure = denoising.losses([{"step": i, "loss": 9.0 - i} for i in range(9)], 4)
  mean = figure.axes[0].lines[1].get_xydata().tolist()
  assert mean == [[1.5, 7.5], [5.5, 3.5]]


@dataclasses.dataclass
class Words:
  """What a canvas needs of a model."""

  stop: tuple[int, ...] = (0,)

  def decode(self, ids):
    return ["", "Ada", "Bob", "Christopher"][ids[0]]


def test_a_canvas_has_a_row_per_pass():
  def filled(when):
    return Result("", "", [], [], max(when) + 1, 0.0, filling=Filling([9, 1, 2, 3, 0], when))

  figure = denoising.canvas(
    Words(), {"one": filled([-1, 0, 1, 2, 3]), "all": filled([-1] + 4 * [0])}
  )
  one, together = figure.axes
  assert one.get_title(loc="left") == "one: 4 passes"
  assert together.get_title(loc="left") == "all: 1 pass"
  written = [(t.get_position(), t.get_text()) for t in one.texts]
  assert written[:4] == [((0, row), "Ada") for row in range(4)]  # born in pass 1, kept after
  assert written[-1] == ((3, 3), "end")
  shades = one.images[0].get_array()
  assert shades.shape == (4, 4, 3)
  np.testing.assert_allclose(shades[0, 0], denoising.NEW)
  np.testing.assert_allclose(shades[3, 3], denoising.NEW_END)
  np.testing.assert_allclose(shades[0, 1:], denoising.MASKED)
  legible(figure)
