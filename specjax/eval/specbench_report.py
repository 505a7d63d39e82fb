"""The report on Spec-Bench: tables of our figures, beside those that Spec-Bench published."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from specjax.eval import report, table
from specjax.eval.bench import PLAIN

OVERALL = "overall"
PUBLISHED_ON = "Vicuna-7B-v1.3, greedy, fp16, batch 1, one A100-80GB"
# Spec-Bench's leaderboard: "mean accepted tokens", and speed-ups with the time of the prefill.
_COLUMNS = ("tau", OVERALL, "translation", "summarization", "RAG")
PUBLISHED = {
  method: dict(zip(_COLUMNS, figures, strict=True))
  for method, figures in {
    "SAM[EAGLE-2]": (4.58, 2.73, 2.01, 3.19, 2.52),
    "EAGLE-2": (4.34, 2.36, 1.88, 2.34, 2.13),
    "Token Recycling": (2.73, 2.22, 2.02, 2.27, 2.02),
    "Medusa": (2.31, 1.71, 1.65, 1.57, 1.49),
    "prompt lookup": (1.75, 1.66, 1.06, 2.66, 1.86),
    "draft model": (2.28, 1.52, 1.13, 1.71, 1.66),
    "REST": (1.82, 1.48, 1.31, 1.36, 1.73),
    "Lookahead": (1.64, 1.34, 1.14, 1.36, 1.22),
  }.items()
}
FOOTNOTE = (
  "Speed-up is tokens per second over those of plain decoding, without prefill unless the column "
  "says so; intervals are 95 % intervals over questions, or over batches of them. Differ: the "
  "questions whose ids differ from those of plain decoding, as they may where a rule keeps only "
  "the distribution or is LOSSY; a second answer counts where both methods read the same prompt. "
  "Largest margin: that of the two best logits where greedy ids first differ."
)


def name(label: str, m: Mapping[str, Any]) -> str:
  """A method in a table."""
  return label + (" (LOSSY)" if m["lossy"] else "")


def rows(summary: Mapping[str, Any]) -> list[dict[str, object]]:
  """The table over all questions, the most important columns first."""
  found: list[dict[str, object]] = []
  for label, m in summary["methods"].items():
    x, plain = m["figures"][OVERALL], label == PLAIN
    margins = [d["margin"] for d in m["divergences"] if d["margin"] is not None]
    differ = {d["question"] for d in m["divergences"]}
    found.append(
      {
        "method": name(label, m),
        "tokens/pass": table.estimate(x["tau"], None if plain else x["tau_interval"]),
        "speed-up": table.estimate(x["speed_up"], None if plain else x["speed_up_interval"]),
        "ms/token": f"{x['ms_per_token']:.2f}",
        "differ": "" if plain else f"{len(differ)} of {summary['prompts']}",
        "with prefill": f"{x['speed_up_with_prefill']:.2f}",
        "largest margin": f"{max(margins):.1e}" if margins else "",
        "verifier": f"{m['verifier']}, {m['exactness']}",
      }
    )
  return found


def by_category(summary: Mapping[str, Any], *keys: str, interval: bool = False) -> table.Rows:
  """A table of these figures, with a column for each category and its number of questions."""

  def cell(label: str, x: Mapping[str, Any]) -> str:
    shown = interval and label != PLAIN
    return " / ".join(
      table.estimate(x[key], x.get(f"{key}_interval") if shown else None) for key in keys
    )

  return [
    {"method": name(label, m)}
    | {f"{c} ({n})": cell(label, m["figures"][c]) for c, n in summary["questions"].items()}
    for label, m in summary["methods"].items()
  ]


def caption(summary: Mapping[str, Any]) -> str:
  """What was asked, how and where."""
  left = summary["left_out"]
  note = f" {left} questions that are too long for the model's positions are left out."
  return report.caption(summary) + (note if left else "")


def published() -> table.Rows:
  """Spec-Bench's own figures: tokens per pass, and speed-ups."""
  headings = {"tau": "tokens/pass"}
  return [
    {"method": label} | {headings.get(c, c): f"{x:.2f}" for c, x in m.items()}
    for label, m in PUBLISHED.items()
  ]


def text(summary: Mapping[str, Any]) -> str:
  """The report in Markdown."""
  parts = [caption(summary), table.markdown(rows(summary))]
  for heading, key in (
    ("Speed-up over plain decoding", "speed_up"),
    ("Tokens per pass", "tau"),
    ("Milliseconds per token", "ms_per_token"),
  ):
    parts += [f"## {heading}", table.markdown(by_category(summary, key, interval=True))]
  parts += [f"## Published, with prefill: {PUBLISHED_ON}", table.markdown(published()), FOOTNOTE]
  return "\n\n".join(parts)


def terminal(summary: Mapping[str, Any]) -> list[Table]:
  """What the command line shows: the figures over all questions, and those by category."""
  figures = by_category(summary, "tau", "speed_up")
  drafted = [row for row in figures if row["method"] != PLAIN]
  kinds = [
    {"category": c} | {str(row["method"]): row[c] for row in drafted} for c in list(figures[0])[2:]
  ]
  return [
    table.terminal(rows(summary), caption(summary), columns=5),
    table.terminal(kinds, "tokens per pass / speed-up, by category and its questions"),
  ]
