"""A summary of `eval.tune` on the terminal: expected beside measured."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from specjax.eval import report

HEADER = (
  "draft", "target\nms", "draft\nms", "tokens/forward\nexpected", "\nmeasured",
  "tokens/s\nexpected", "\nmeasured", "\ndiffer",
)  # fmt: skip


def table(summary: Mapping[str, Any]) -> Table:
  """Expected beside measured, a row per candidate, the choice in bold; for the terminal."""
  shown = Table(
    box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, caption_justify="left",
    caption=f"{summary['drafter']}; {report.caption(summary)}",
  )  # fmt: skip
  for i, name in enumerate(HEADER):
    shown.add_column(name, justify="right" if i else "left", no_wrap=True)
  for name, f in summary["candidates"].items():
    cells = [name, f"{1e3 * f['target_seconds']:.2f}", f"{1e3 * f['draft_seconds']:.2f}",
             f"{f['tau']:.2f}", "", f"{f['expected']:.0f}", "", ""]  # fmt: skip
    if "measured" in f:
      differ = f"{f['differ']} of {summary['prompts']}"
      cells[4], cells[6], cells[7] = f"{f['measured_tau']:.2f}", f"{f['measured']:.0f}", differ
    shown.add_row(*cells, style="bold" if name == summary["chosen"] else None)
  return shown


def verdict(summary: Mapping[str, Any]) -> str:
  """The choice in a sentence, and what was fastest if it is another."""
  figures, chosen = summary["candidates"], summary["chosen"]
  decoded = {k: f["measured"] for k, f in figures.items() if "measured" in f}
  said = f"chosen: {chosen}, {figures[chosen]['expected']:.0f} tokens/s expected"
  if chosen in decoded:
    ratio = decoded[chosen] / decoded["plain"]
    said += f", {decoded[chosen]:.0f} measured, {ratio:.2f} of plain decoding"
  fastest = max(decoded, key=lambda k: decoded[k])
  if fastest != chosen:
    said += f"; fastest as measured: {fastest}, {decoded[fastest]:.0f}"
  return said
