"""Tables and what a measurement leaves behind."""

import dataclasses
import io
import itertools
import json
from collections import Counter

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from specjax.eval import interleaved, report, table, timing

ROWS = [
  {"method": "plain", "speed-up": "1.00", "of": 3},
  {"method": "a[b]", "speed-up": "2", "of": 4},
]


def test_markdown_has_the_columns_of_the_rows():
  assert table.markdown(ROWS).splitlines() == [
    "| method | speed-up | of |", "|---|---|---|", "| plain | 1.00 | 3 |", "| a[b] | 2 | 4 |",
  ]  # fmt: skip
  assert table.markdown([]) == ""


def test_the_terminal_shows_the_first_columns():
  sink = io.StringIO()
  Console(file=sink, width=60).print(table.terminal(ROWS, "below", columns=2, bold="plain"))
  said = sink.getvalue()
  assert "a[b]" in said and "below" in said and "speed-up" in said and "of" not in said


def test_brackets_are_no_markup():
  sink, name = io.StringIO(), "eagle3[/a/head]"
  Console(file=sink, width=60).print(table.terminal([{name: name}], "of [/bold]", bold=name))
  assert sink.getvalue().count(name) == 2 and "of [/bold]" in sink.getvalue()


def test_an_estimate_has_its_interval():
  assert table.estimate(1.234, (1.0, 2.0)) == "1.23 [1.00, 2.00]"
  assert table.estimate(1.234) == "1.23"


@dataclasses.dataclass(frozen=True)
class Config:
  out: str
  size: int = 3


def test_a_report_is_a_directory(tmp_path, capsys):
  out = report.directory(tmp_path / "a" / "b")
  config = Config(str(out))
  summary = report.summary(config, {"found": 1.5}, packages=("no-such-package",))
  assert summary["config"] == {"out": str(out), "size": 3}
  assert summary["versions"]["no-such-package"] is None
  report.save(out, summary, "| t |", {"plot": Figure()}, [{"x": 1}, {"x": 2}])
  assert json.loads((out / "summary.json").read_text()) == summary
  assert (out / "results.jsonl").read_text() == '{"x": 1}\n{"x": 2}\n'
  report.publish(config, {"found": 1.5}, "| t |")
  said = f"| t |\n{out}: plot.png, results.jsonl, summary.json, table.md\n"
  assert capsys.readouterr().out == said


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_everybody_begins_as_often_and_follows_each_other_as_often(n):
  names = "abcdefgh"[:n]
  seen = list(interleaved.turns(names, n, 2))
  assert len(set(seen)) == len(seen) == 2 * n * n
  orders = ["".join(name for _, _, name in seen[i : i + n]) for i in range(0, len(seen), n)]
  assert all(sorted(order) == sorted(names) for order in orders)
  assert Counter(order[0] for order in orders) == dict.fromkeys(names, 2)
  after = Counter(pair for order in orders for pair in itertools.pairwise(order))
  assert after == {(a, b): 2 for a in names for b in names if a != b}
  assert list(interleaved.turns(names, n, 2, done=n)) == seen[n * n :]


def test_a_pass_is_timed_by_the_loop(monkeypatch):
  """With a clock that goes by the work done: 3 ms a pass and 50 ms, however many are in a loop."""
  now, counts = [0.0], {0.003: [], 0.05: []}

  def loop(cost):
    def run(count):
      now[0] += cost * count
      counts[cost].append(count)

    return run

  monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
  seconds = timing.per_pass([loop(0.003), loop(0.05)], 5)
  np.testing.assert_allclose(seconds, [[0.003, 0.05]] * 5)
  assert counts[0.003] == [1, 1] + [7] * 5 and counts[0.05] == [1, 1] + [1] * 5
  assert timing.per_pass([], 3).shape == (3, 0)


def test_a_directory_that_cannot_be_made_is_known_before_anything_is_measured(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="file"):
    report.directory(tmp_path / "file")


def test_a_bar_shows_a_name_with_a_path_in_brackets(capsys, monkeypatch):
  """A name may hold what rich would take for its own marks."""
  monkeypatch.setenv("TTY_COMPATIBLE", "1")
  monkeypatch.setenv("COLUMNS", "200")
  for name in ("rest-4[/data/store.npz] at batch 1", "head-7[runs/hydra/model]", "json_schema[b]"):
    assert list(report.progress([1, 2, 3], name, 1)) == [2, 3]
    assert name in capsys.readouterr().err
