"""Tables in Markdown and on the terminal. Rows map the same names of columns to their cells."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Rows = Sequence[Mapping[str, object]]


def estimate(value: float, interval: Sequence[float] | None = None) -> str:
  """A figure with its interval in brackets, where there is one."""
  return f"{value:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def markdown(rows: Rows) -> str:
  """The whole table; "" without rows."""
  lines = [list(rows[0]), *(row.values() for row in rows)] if rows else []
  text = ["| " + " | ".join(str(x).replace("|", r"\|") for x in line) + " |" for line in lines]
  return "\n".join([*text[:1], "|" + "---|" * len(lines[0]), *text[1:]]) if text else ""


def terminal(rows: Rows, caption: str = "", columns: int | None = None, bold: str = "") -> Table:
  """The first `columns`, by default all; the row whose first cell is `bold` is bold."""
  shown = Table(
    box=box.SIMPLE_HEAD,
    pad_edge=False,
    collapse_padding=True,
    caption=escape(caption),
    caption_justify="left",
  )
  for i, name in enumerate(list(rows[0])[:columns]):
    shown.add_column(Text(name), justify="right" if i else "left", overflow="fold")
  for row in rows:
    cells = [str(cell) for cell in row.values()]
    shown.add_row(*map(Text, cells[:columns]), style="bold" if cells[0] == bold else None)
  return shown
