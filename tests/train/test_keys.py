"""Files that a trainer keeps: made with other settings, or by another model, they are refused."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from options import changed

import specjax
from specjax.data.chat import TEMPLATES
from specjax.data.packing import PackedRows
from specjax.train import heads
from specjax.train.recipe import features, run
from specjax.train.recipe.answers import Asked, answered

PROMPTS = [[1, 2, 3], [4, 5]]
ASKED = [Asked(ids) for ids in PROMPTS]


@pytest.fixture(scope="module")
def model(lm_run):
  return specjax.load(f"{lm_run.out}/model")


@pytest.fixture
def settings(tiny_heads, tmp_path):
  return changed(tiny_heads, out=str(tmp_path / "run"), answers=str(tmp_path / "answers.jsonl"),
                 max_new_tokens=3)  # fmt: skip


@pytest.fixture
def written(model, settings, tmp_path):
  """A file of answers at temperature 1, with its key."""
  answered(model, ASKED, settings, 1.0)
  return tmp_path / "answers.jsonl"


def other(model, name):
  config = model.config
  changes = {
    "weights": {"params": jax.tree.map(lambda x: x * 2, model.params)},
    "config.rope_theta": {"config": dataclasses.replace(config, rope_theta=7.0)},
    "config.norm_epsilon": {"config": dataclasses.replace(config, norm_epsilon=0.5)},
    "template": {"template": TEMPLATES["chatml"]},
    "stop": {"stop": (7,)},
    "tokenizer": {"tokenizer": specjax.load("gsm8k-7m").tokenizer},
  }  # fmt: skip
  return dataclasses.replace(model, **changes[name])


OF_MODEL = ("weights", "config.rope_theta", "config.norm_epsilon", "template", "stop", "tokenizer")
OF_ANSWERS = {
  "temperature": r"1.0 \(now 0.5\)", "max_new_tokens": r"3 \(now 30\)", "seed": r"0 \(now 4\)",
  **{f"model.{name}": r".*\(now " for name in OF_MODEL},
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ANSWERS)
def test_answers_of_other_settings_are_refused(model, settings, written, name):
  before = written.read_bytes()
  temperature = 0.5 if name == "temperature" else 1.0
  change = {"max_new_tokens": 30} if name == "max_new_tokens" else {}
  change |= {"seed": 4} if name == "seed" else {}
  own = other(model, name.removeprefix("model.")) if name.startswith("model.") else model
  with pytest.raises(ValueError, match=rf"answers='.*' was made with .*{name}={OF_ANSWERS[name]}"):
    answered(own, ASKED, changed(settings, **change), temperature)
  assert written.read_bytes() == before


def test_answers_of_the_same_settings_are_read(model, settings, written):
  lines = [json.loads(line) for line in written.read_text().splitlines()]
  said = [ids for ((ids, _),) in answered(model, ASKED, settings, 1.0)]
  assert said == [line["prompt"] + line["answer"] for line in lines]
  assert answered(model, ASKED[:1], changed(settings, answer_batch=1), 1.0)


def test_answers_without_a_key_are_read_and_it_is_said(model, settings, written, capsys):
  (written.parent / "answers.jsonl.key.json").unlink()
  answered(model, ASKED, changed(settings, max_new_tokens=30), 0.0)
  assert "has no answers.jsonl.key.json beside it" in capsys.readouterr().err
  assert not (written.parent / "answers.jsonl.key.json").exists()


def test_greedy_answers_do_not_depend_on_the_seed(model, settings, tmp_path):
  answered(model, ASKED, settings)
  answered(model, ASKED, changed(settings, seed=5))
  with pytest.raises(ValueError, match=r"temperature=0.0 \(now 1.0\): use the same settings, or"):
    answered(model, ASKED, settings, 1.0)


@pytest.mark.parametrize("name", [x for x in OF_MODEL if x not in ("template", "stop")])
def test_states_of_another_model_are_refused(model, tmp_path, name):
  ids = np.ones((1, 4), np.int32)
  rows = PackedRows(ids, ids.cumsum(1) - 1, ids * 0, ids > 0)
  features.compute(model, rows, (), tmp_path)
  key = {"weights": "model", "tokenizer": "tokenizer"}.get(name, f"model.{name}")
  with pytest.raises(ValueError, match=f"were computed with {key}=.*: choose another directory"):
    features.compute(other(model, name), rows, (), tmp_path)


@pytest.mark.parametrize("name", OF_MODEL)
def test_a_run_of_another_model_is_not_continued(model, settings, name):
  """The model's directory has the same name, and something else in it."""
  out = run.begin(settings)
  run.claim(out, settings, PROMPTS, model.ingredients())
  with pytest.raises(ValueError, match=rf"holds a run with .*model\.{name}="):
    run.claim(out, settings, PROMPTS, other(model, name).ingredients())


def test_the_command_refuses_answers_before_it_trains(tiny_heads, tmp_path, written):
  config = changed(tiny_heads, out=str(tmp_path / "other"), answers=str(written), temperature=0.0)
  with pytest.raises(ValueError, match=r"answers='.*' was made with max_new_tokens=3 \(now 16\)"):
    heads.main(config)
