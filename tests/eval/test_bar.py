"""What a long work shows where there is no terminal."""

from specjax.eval import bar


def test_a_file_gets_a_line_now_and_then(capsys, monkeypatch):
  for seconds, lines in ((0.0, ["run: 3 of 4, loss 2", "run: 4 of 4, loss 1"]), (60.0, [])):
    monkeypatch.setattr(bar, "EVERY", seconds)
    with bar.Bar("run", 4, 2) as shown:
      shown.update(3, "loss 2")
      shown.update(4, "loss 1")
      shown.say("stopped")
    said = capsys.readouterr().out.splitlines()
    assert [x for x in said if " of " in x] == lines and "stopped" in said
