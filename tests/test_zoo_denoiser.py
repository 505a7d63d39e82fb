"""The denoiser of the zoo, its filter and its student answer as their cards say."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from specjax import DiffusionDecoder
from specjax.cli.main import main
from specjax.eval import parallelbench
from specjax.eval.parallelbench import Config
from specjax.names.load import DEFAULT_DENOISER, load

CONFIG = Config(count=2, batch=80)
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


@pytest.mark.full
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_four_devices_change_no_token(mesh, cache):
  prompts = [model().chat(f"{task} : Ada Bob Kim Leo =") for task in ("reverse", "sort")]

  def decode(network):
    decoder = DiffusionDecoder(network, "threshold-0.9", cache=cache, blocks=16, batch=2)
    return [r.tokens for r in decoder(prompts, 16)]

  with jax.set_mesh(mesh):
    spread = decode(model().on(mesh))
  assert spread == decode(model())


def share(label: str, tasks) -> tuple[float, float]:
  """Right answers and passes per question, of some tasks."""
  asked, results, right = filled(label)
  rows = np.array([q.task in tasks for q in asked])
  return right[rows].mean(), np.array([r.passes for r in results])[rows].mean()


@pytest.mark.slow
def test_one_slot_per_pass_answers():
  accuracy, passes = share("confidence", SURE)
  assert accuracy > 0.9 and passes == CONFIG.max_new_tokens


@pytest.mark.slow
@pytest.mark.full(but=["threshold-0.95/student-6"])
@pytest.mark.parametrize(
  ("label", "fewer"),
  [("threshold", 3), ("factor", 3), ("learned", 3), ("threshold-0.95/student", 6)],
)
def test_fewer_passes_answer_as_well(label, fewer):
  accuracy, passes = share(label, SURE)
  assert accuracy > share("confidence", SURE)[0] - 0.05
  assert passes < CONFIG.max_new_tokens / fewer


@pytest.mark.full
def test_a_shuffle_collapses_where_a_copy_does_not():
  for task, least, most in (("copy", 0.9, 1.0), ("shuffle", 0.0, 0.3)):
    right = filled("confidence-16", (task,))[2]
    assert least <= right.mean() <= most
  assert filled("confidence", ("shuffle",))[2].mean() > 0.8


@pytest.mark.full
@pytest.mark.parametrize("policy", ["confidence", "threshold-0.9"])
def test_draft_and_verify_changes_no_token(policy):
  plain, verified = filled(policy)[1], filled(f"{policy}/guesses-4")[1]
  assert [r.filling.canvas for r in plain] == [r.filling.canvas for r in verified]
  assert [r.filling.when for r in plain] == [r.filling.when for r in verified]
  assert sum(r.passes for r in verified) < sum(r.passes for r in plain)


@pytest.mark.full
def test_the_end_is_predicted_in_a_canvas_that_is_too_long():
  def run(length: str):
    _, results, right = filled(f"confidence/{length}", ("copy",))
    return sum(r.filling.wasted for r in results), right.mean()

  wasted, accuracy = run("whole")
  assert run("end_of_text_prediction")[0] < 0.3 * wasted
  sure = run("sure_end")
  assert sure[0] < 0.2 * wasted and sure[1] >= accuracy


@pytest.mark.full
@pytest.mark.parametrize("label", ["threshold", "learned", "threshold-0.95/student"])
def test_a_batch_is_its_rows(label):
  asked, together, _ = filled(label)
  config = dataclasses.replace(CONFIG, batch=1)
  alone = parallelbench.make_decoder(model(), label, config)
  prompts = [model().chat(q.messages) for q in asked]
  room = max(map(len, prompts))
  for i in np.flatnonzero([len(p) == room for p in prompts])[:4]:
    (one,) = alone([prompts[i]], config.max_new_tokens)
    assert one.filling.canvas == together[i].filling.canvas and one.passes == together[i].passes


@pytest.mark.slow
def test_no_mask_is_left_and_prompts_stay():
  asked, results, _ = filled("threshold")
  for question, result in zip(asked, results, strict=True):
    ids = model().chat(question.messages)
    assert result.filling.canvas[: len(ids)] == ids and model().mask not in result.tokens


@pytest.mark.slow
def test_the_command_line_takes_them_unasked(tmp_path, capsys):
  picture = tmp_path / "canvas.png"
  asked = ["denoise", "--chat", "--prompt", "copy : Ada Bob Cy =", "--picture", str(picture)]
  for policy in ("threshold", "learned"):
    assert main([*asked, "--policy", policy, "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["text"].split() == ["Ada", "Bob", "Cy"] and line["method"] == policy
  assert picture.stat().st_size > 1000
  assert main(["bench", "--suite", "parallelbench", "--methods", "threshold-0.95/student",
               "--limit", "1", "--lengths", "3", "--batch", "10", "--repeats", "1", "--out",
               str(tmp_path)]) == 0  # fmt: skip
  assert "| threshold-0.95/student |" in capsys.readouterr().out
