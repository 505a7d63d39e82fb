"""A benchmark's summary as a table, in Markdown and on the terminal."""

import pathlib
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

HEADER = (
  "method", "tokens/forward", "speed-up", "tokens/s", "differ", "verifier", "nodes",
  "with prefill", "ms/round", "MBSU", "largest margin", "of alpha*",
)  # fmt: skip
_ON_SCREEN = 5  # how many of them fit


def rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
  """The cells of every method, in the order of HEADER; 95% intervals in brackets."""
  return [_row(label, m, summary["prompts"]) for label, m in summary["methods"].items()]


def _row(label: str, m: Mapping[str, Any], prompts: int) -> tuple[str, ...]:
  plain = label == "none"

  def estimate(key: str) -> str:
    interval = None if plain else m[f"{key}_interval"]
    return f"{m[key]:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")

  margins = [d["margin"] for d in m["divergences"] if d["margin"] is not None]
  return (
    label + (" (LOSSY)" if m["lossy"] else ""),
    estimate("tau"),
    estimate("speed_up"),
    f"{m['tokens_per_second']:.0f}",
    "" if plain else f"{len(m['divergences'])} of {prompts}",
    f"{m['verifier']}, {m['exactness']}",
    str(m["nodes"]),
    f"{m['speed_up_with_prefill']:.2f}",
    f"{m['ms_per_round']:.2f}",
    f"{m['mbsu']:.2f}",
    f"{max(margins):.1e}" if margins else "",
    f"{100 * m['first']['reached']:.0f} %" if m["first"] else "",
  )


def caption(summary: Mapping[str, Any]) -> str:
  """What was decoded, how, where."""
  c, machine = summary["config"], summary["machine"]
  how = "greedy" if c["temperature"] == 0 else f"temperature {c['temperature']:g}"
  model = pathlib.Path(summary["model"]).name
  source = pathlib.Path(c["prompts"]).name if c["prompts"] else "our own"
  return (
    f"{model} ({summary['parameters'] / 1e6:.1f}M parameters), {summary['prompts']} prompts of "
    f"{source}, up to {c['max_new_tokens']} new tokens, {how}, batch {c['batch']}, median of "
    f"{c['repeats']}; {machine['cpu']}, {machine['cores']} cores, {machine['device']}; jax "
    f"{summary['versions']['jax']}."
  )


def _footnote(summary: Mapping[str, Any]) -> str:
  parts = ["differ: prompts whose ids are not plain decoding's"]
  if any(not m["must_equal_plain"] for m in summary["methods"].values()):
    parts.append("(expected: the rule keeps the distribution, or less where LOSSY, not the ids)")
  if any(m["first"] for m in summary["methods"].values()):
    parts.append("; of alpha*: how often a first guess was accepted, of what the best exact rule "
                 "could do with these guesses")  # fmt: skip
  return " ".join(parts) + "; largest margin: top-1 minus top-2 logit where they part, greedy."


def cost_lines(cost: Mapping[str, Any]) -> list[str]:
  """A verify cost in Markdown."""
  return [
    f"Cost of verifying N nodes at {cost['context']} cached tokens, in passes over one node:",
    "",
    "| N | " + " | ".join(map(str, cost["nodes"])) + " |",
    "|" + "---|" * (len(cost["nodes"]) + 1),
    "| v(N) / v(1) | " + " | ".join(f"{x:.2f}" for x in cost["relative"]) + " |",
    "| ms | " + " | ".join(f"{1e3 * x:.2f}" for x in cost["seconds"]) + " |",
  ]


def markdown(summary: Mapping[str, Any]) -> str:
  """The table with its caption and the verify cost."""
  lines = [
    caption(summary),
    "",
    "| " + " | ".join(HEADER) + " |",
    "|" + "---|" * len(HEADER),
    *("| " + " | ".join(row) + " |" for row in rows(summary)),
    "",
    _footnote(summary),
    "",
    *cost_lines(summary["verify_cost"]),
  ]
  return "\n".join(lines) + "\n"


def table(summary: Mapping[str, Any]) -> Table:
  """The columns that fit on a terminal."""
  shown = Table(
    box=box.SIMPLE_HEAD,
    pad_edge=False,
    collapse_padding=True,
    caption=caption(summary),
    caption_justify="left",
  )
  for i, name in enumerate(HEADER[:_ON_SCREEN]):
    shown.add_column(name, justify="right" if i else "left", no_wrap=True)
  for row in rows(summary):
    shown.add_row(*(cell.replace("[", r"\[") for cell in row[:_ON_SCREEN]))
  return shown
