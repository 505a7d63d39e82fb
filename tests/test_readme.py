"""The README's Python runs as it stands."""

import pathlib
import re

import specjax
from specjax.eval.prompts import OUR_QUESTIONS

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_runs(capsys):
  exec(BLOCKS[0], {})
  assert "same tokens: True" in capsys.readouterr().out


def test_the_canvas_fills(capsys):
  exec(BLOCKS[1], {})
  slow, fast = (line.split() for line in capsys.readouterr().out.splitlines())
  assert slow[:-1] == fast[:-1] == ["Leo", "Kim", "Bob", "Ada"]
  assert int(slow[-1]) == 16 > 2 * int(fast[-1])


def test_several_devices_say_the_same(capsys):
  exec(BLOCKS[2], {})
  assert "same tokens: True" in capsys.readouterr().out


def test_the_drafter_of_your_own_is_lossless():
  scope: dict = {}
  exec(BLOCKS[3], scope)
  model = specjax.load()
  prompts = [model.chat(question) for question in OUR_QUESTIONS[:3]]
  for temperature in (0.0, 0.8):
    plain, own = (
      specjax.Decoder(model, drafter, batch=2, temperature=temperature)(prompts, 24)
      for drafter in ("none", (scope["repeat"](), ()))
    )
    assert [r.tokens for r in own] == [r.tokens for r in plain]
