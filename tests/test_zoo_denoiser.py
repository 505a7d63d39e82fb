"""The zoo's denoiser with its filter and its student: what the README says of them, in small."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from specjax.cli import main
from specjax.eval import parallelbench
from specjax.eval.parallelbench import Config
from specjax.model import DEFAULT_DENOISER, load

PARTS = {"student": f"{DEFAULT_DENOISER}-student", "filter": f"{DEFAULT_DENOISER}-filter"}
CONFIG = Config(count=2, batch=80, **PARTS)
SURE = ("copy", "reverse", "sort", "replace_index", "insert_index", "remove_index")


@functools.cache
def model():
  return load(DEFAULT_DENOISER)


@functools.cache
def filled(label: str, tasks=None):
  """(questions, results, right bool[Q])."""
  config = CONFIG if tasks is None else dataclasses.replace(CONFIG, tasks=tasks, count=10)
  asked = parallelbench.questions(config)
  decoder = parallelbench.make_decoder(model(), label, config)
  results = decoder([model().chat(q.messages) for q in asked], config.max_new_tokens)
  right = [q.right(parallelbench.said(model(), r)) for q, r in zip(asked, results, strict=True)]
  return asked, results, np.array(right)


def share(label: str, tasks) -> tuple[float, float]:
  """Right answers and passes per question, of some tasks."""
  asked, results, right = filled(label)
  rows = np.array([q.task in tasks for q in asked])
  return right[rows].mean(), np.array([r.forwards for r in results])[rows].mean()


def test_one_slot_per_pass_answers():
  accuracy, passes = share("confidence", SURE)
  assert accuracy > 0.9 and passes == CONFIG.max_new_tokens


@pytest.mark.parametrize(
  ("label", "fewer"),
  [("threshold", 3), ("factor", 3), ("learned", 3), ("entropy_threshold/student", 6)],
)
def test_fewer_passes_answer_as_well(label, fewer):
  accuracy, passes = share(label, SURE)
  assert accuracy > share("confidence", SURE)[0] - 0.05
  assert passes < CONFIG.max_new_tokens / fewer


def test_a_shuffle_collapses_where_a_copy_does_not():
  for task, least, most in (("copy", 0.9, 1.0), ("shuffle", 0.0, 0.3)):
    right = filled("confidence-16", (task,))[2]
    assert least <= right.mean() <= most
  assert filled("confidence", ("shuffle",))[2].mean() > 0.8


@pytest.mark.parametrize("policy", ["confidence", "threshold-0.9"])
def test_draft_and_verify_changes_no_token(policy):
  plain, verified = filled(policy)[1], filled(f"{policy}/guesses-4")[1]
  assert [r.canvas for r in plain] == [r.canvas for r in verified]
  assert [r.when for r in plain] == [r.when for r in verified]
  assert sum(r.forwards for r in verified) < sum(r.forwards for r in plain)


def test_the_end_is_predicted_in_a_canvas_that_is_too_long():
  whole = [r.wasted for r in filled("confidence/whole", ("copy",))[1]]
  predicted = [r.wasted for r in filled("confidence/end_of_text_prediction", ("copy",))[1]]
  assert sum(predicted) < 0.3 * sum(whole)


@pytest.mark.parametrize("label", ["threshold", "learned", "entropy_threshold/student"])
def test_a_batch_is_its_rows(label):
  asked, together, _ = filled(label)
  config = dataclasses.replace(CONFIG, batch=1)
  alone = parallelbench.make_decoder(model(), label, config)
  prompts = [model().chat(q.messages) for q in asked]
  room = max(map(len, prompts))
  for i in np.flatnonzero([len(p) == room for p in prompts])[:4]:
    (one,) = alone([prompts[i]], config.max_new_tokens)
    assert one.canvas == together[i].canvas and one.forwards == together[i].forwards


def test_no_mask_is_left_and_prompts_stay():
  asked, results, _ = filled("threshold")
  for question, result in zip(asked, results, strict=True):
    ids = model().chat(question.messages)
    assert result.canvas[: len(ids)] == ids and model().mask not in result.tokens


def test_the_command_line_takes_them_unasked(tmp_path, capsys):
  picture = tmp_path / "canvas.png"
  asked = ["denoise", "--chat", "--prompt", "copy : Ada Bob Cy =", "--picture", str(picture)]
  for policy in ("threshold", "learned"):
    assert main([*asked, "--policy", policy, "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["text"].split() == ["Ada", "Bob", "Cy"] and line["policy"] == policy
  assert picture.stat().st_size > 1000
  assert main(["bench", "--suite", "parallelbench", "--methods", "entropy_threshold/student",
               "--limit", "1", "--lengths", "3", "--batch", "10", "--repeats", "1", "--out",
               str(tmp_path)]) == 0  # fmt: skip
  assert "| entropy_threshold/student |" in capsys.readouterr().out
