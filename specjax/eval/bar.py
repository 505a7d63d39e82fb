"""How far a long work is: a bar in a terminal, and a line now and then in a file or a notebook."""

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn

EVERY = 15.0  # seconds between two lines


class Bar:
  """A bar with a note behind it; one on stderr leaves no trace in a terminal."""

  def __init__(self, name: str, total: int, completed: int = 0, *, stderr: bool = False) -> None:
    console = Console(stderr=stderr, force_jupyter=False)  # else rich asks for ipywidgets
    note = TextColumn("{task.fields[note]}")
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), note)
    self._progress = Progress(*columns, console=console, transient=stderr)
    said = escape(name)  # it may have [/a/path] in it
    self._task = self._progress.add_task(said, total=total, completed=completed, note="")
    self._name, self._total, self._last = name, total, time.monotonic()

  def __enter__(self) -> "Bar":
    self._progress.start()
    return self

  def __exit__(self, *raised: Any) -> None:
    self._progress.stop()

  def say(self, words: str) -> None:
    """Prints a line above the bar."""
    self._progress.console.print(words, soft_wrap=True, markup=False, highlight=False)

  def update(self, completed: int, note: str = "") -> None:
    self._progress.update(self._task, completed=completed, note=note)
    if not self._progress.console.is_terminal and time.monotonic() - self._last >= EVERY:
      self._last = time.monotonic()
      self.say(f"{self._name}: {completed} of {self._total}" + (note and f", {note}"))
